"""Kernels, and what they are written in: numba.cuda, or a simulator of it (see `dialect`)."""
