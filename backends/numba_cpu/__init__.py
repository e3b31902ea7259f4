"""Backend `numba-cpu`: kernels compiled by numba, run by threads that enter Python once per pass."""

from __future__ import annotations

from collections.abc import Sequence

from augury.backends.numba_cpu.backend import NumbaCpu, NumbaCpuOptions
from augury.hookspecs import hookimpl
from augury.interfaces import Backend

__all__ = ["NumbaCpu", "NumbaCpuOptions"]


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `numba-cpu`."""
    return (NumbaCpu,)


@hookimpl(trylast=True)
def augury_choose(kind: str, names: Sequence[str]) -> str | None:
    """Recommend `numba-cpu`."""
    return "numba-cpu" if kind == "backend" and "numba-cpu" in names else None
