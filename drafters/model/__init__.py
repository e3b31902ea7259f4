"""The common parts of drafters that run a model."""
