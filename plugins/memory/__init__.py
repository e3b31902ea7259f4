"""Memory managers: which tokens the slots of a model keep."""
