"""Backend `reference`: plain numpy in float64, slow on purpose, the oracle for other backends."""

from __future__ import annotations

from augury.backends.reference.backend import Reference
from augury.hookspecs import hookimpl
from augury.interfaces import Backend

__all__ = ["Reference"]


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `reference`."""
    return (Reference,)
