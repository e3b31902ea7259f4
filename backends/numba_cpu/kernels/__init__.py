"""Kernels of the CPU backend, and the emitters of their LLVM IR."""
