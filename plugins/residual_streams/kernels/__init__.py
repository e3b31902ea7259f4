"""Kernels that read and write residual streams."""
