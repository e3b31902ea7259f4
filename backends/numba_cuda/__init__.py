"""Backend `numba-cuda`: kernels compiled by numba for an NVIDIA GPU."""

from __future__ import annotations

from augury.backends.numba_cuda.backend import NumbaCuda, NumbaCudaOptions
from augury.hookspecs import hookimpl
from augury.interfaces import Backend

__all__ = ["NumbaCuda", "NumbaCudaOptions"]


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `numba-cuda`; `auto` never takes it, because that would take asking how many layers of a model fit on the GPU."""
    return (NumbaCuda,)
