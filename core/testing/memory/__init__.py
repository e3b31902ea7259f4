"""The conformance suite of memory managers."""
