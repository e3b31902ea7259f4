"""Drafters, a file for each `--spec-type`; siblings hold their parts."""
