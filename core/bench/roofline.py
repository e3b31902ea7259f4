"""What each kernel of a pass reads and computes per second, beside what the machine can at the same time."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from attrs import frozen

from augury.types import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.bench.passes import ModelRunner

__all__ = ["KernelTime", "Limits", "Profiled", "Roofline", "measure_roofline"]

_N_WINDOWS = 5  # in each the limits are probed once, between passes


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
    """What a model's threads can do together."""

    bytes_per_s: float  # reading memory that no cache holds
    multiply_adds_per_s: float  # of weights and activations as the kernels multiply them, in registers


@runtime_checkable
class Profiled(Protocol):
    """A model that can say where the time of a pass goes."""

    def profile(self, batch: Batch) -> Sequence[KernelTime]:
        """Compute a pass like `Model.forward`, and tell its steps in order."""
        ...

    def limits(self) -> Limits:
        """Probe what the model's threads can do, which takes a fraction of a second."""
        ...


@frozen
class Roofline:
    """Medians over passes of `n` tokens behind `depth`; `kernels` sum the steps of one name."""

    n: int
    depth: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    limits: Limits


def measure_roofline(model: Profiled, runner: ModelRunner, n: int, depth: int, repetitions: int = 4) -> Roofline:
    """Profile passes with the logits of all tokens, and probe the limits between them.

    Args:
        model: The runner's model.
        runner: Fills the slot, and has the tokens.
        n: Tokens of a pass.
        depth: Tokens that the slot holds before.
        repetitions: Passes between two probes.
    """
    runner.prepare(depth)
    positions = np.arange(depth, depth + n, dtype=np.int32)
    batch = Batch(runner.tokens[depth : depth + n].copy(), np.zeros(n, np.int32), positions, np.arange(n, dtype=np.int32))
    model.profile(batch)
    passes: list[Sequence[KernelTime]] = []
    seconds, limits = [], []
    for _ in range(_N_WINDOWS):
        limits.append(model.limits())
        for _ in range(repetitions):
            start = perf_counter()
            passes.append(model.profile(batch))
            seconds.append(perf_counter() - start)
    kernels: dict[str, KernelTime] = {}
    for steps in zip(*passes, strict=True):
        step = steps[0]
        before = kernels.get(step.name, KernelTime(step.name, 0.0, 0, 0, 0))
        kernels[step.name] = KernelTime(
            step.name,
            before.seconds + statistics.median(each.seconds for each in steps),
            before.n_bytes + step.n_bytes,
            before.n_multiply_adds + step.n_multiply_adds,
            before.n_steps + 1,
        )
    found = Limits(
        statistics.median(each.bytes_per_s for each in limits), statistics.median(each.multiply_adds_per_s for each in limits)
    )
    return Roofline(n, depth, statistics.median(seconds), tuple(kernels.values()), found)
