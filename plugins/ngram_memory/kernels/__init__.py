"""Kernels of memories of n-grams, for each backend."""
