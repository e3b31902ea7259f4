"""Drafters, a file for each `--spec-type`; siblings hold what they are made of."""
