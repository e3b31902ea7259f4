"""Speculation: the choice of drafters and of draft lengths, by measured costs."""
