"""Kernels of the CPU backend, and what writes them as LLVM IR."""
