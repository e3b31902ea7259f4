"""The common parts of lookup drafters."""

MAX_CORPUS_TOKENS = 1 << 24
"""The most tokens of a corpus; a larger file is none."""
