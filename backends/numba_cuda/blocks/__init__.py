"""How blocks come onto a tape: those of layers by their operations, and the ends of a model."""
