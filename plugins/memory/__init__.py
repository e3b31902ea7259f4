"""Memory managers: what the slots of a model keep."""
