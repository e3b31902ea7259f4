"""Kernels, and their dialect: numba.cuda, or a simulator of it (see `dialect`)."""
