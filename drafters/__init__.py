"""Drafters, a file for each `--spec-type` or pair of similar ones; siblings hold their parts."""
