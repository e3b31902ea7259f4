"""Backend `numba-cuda`: kernels compiled by numba for an NVIDIA GPU."""

from __future__ import annotations

from augury.backends.numba_cuda.backend import NumbaCuda, NumbaCudaOptions
from augury.hookspecs import hookimpl
from augury.interfaces import Backend

__all__ = ["NumbaCuda", "NumbaCudaOptions"]


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `numba-cuda`; nobody recommends it before it was measured on a GPU, so `auto` never takes it."""
    return (NumbaCuda,)
