"""Kernels, by backend."""
