"""Speculation: who drafts, how far, and what it costs."""
