"""Proves plugins: checks that any drafter, memory manager or backend must pass, and the toys that they run on."""
