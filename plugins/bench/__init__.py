"""Measuring speed: one pass, a prompt, generation; alone, and in turns with another program."""
