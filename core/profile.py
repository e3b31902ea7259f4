"""Profiles of passes: an ability that a backend's models may have, for `augury bench roofline`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from attrs import frozen

from augury.batch import Batch


@frozen
class KernelTime:
    """One step of a pass, or several of one name: seconds, bytes of weights and cached states read, multiply-adds."""

    name: str
    seconds: float
    n_bytes: int
    n_multiply_adds: int
    n_steps: int = 1


@frozen
class Limits:
    """The limits of a model's threads together."""

    bytes_per_s: float  # reading memory that no cache holds
    multiply_adds_per_s: float  # of weights and activations as the kernels multiply them, in registers


@runtime_checkable
class Profiled(Protocol):
    """A model that can profile its passes."""

    def profile(self, batch: Batch) -> Sequence[KernelTime]:
        """Compute a pass like `Model.forward`, and return its steps in order."""
        ...

    def limits(self) -> Limits:
        """Probe the limits of the model's threads, in a fraction of a second."""
        ...
