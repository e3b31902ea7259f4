"""Constraints on `llguidance`: JSON schemas, regular expressions, grammars and choices."""
