"""Constraints: JSON schemas, regular expressions, grammars and choices, by `llguidance`; and a budget of reasoning."""
