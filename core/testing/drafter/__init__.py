"""The conformance suite of drafters: they are driven by scripts, and run in whole engines."""
