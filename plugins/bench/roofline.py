"""The bytes and multiply-adds per second of each kernel of a pass, against the limits of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attrs import frozen

from augury.plugins.bench.model_runner import ModelRunner
from augury.plugins.bench.timing import Measurement
from augury.profile import KernelTime, Limits, Profiled

_N_WINDOWS = 5  # in each the limits are probed once, between passes


@frozen
class Roofline:
    """Passes of `n` tokens after `depth`.

    `seconds` is the median; `kernels` are those of the median profile, the steps of one name summed.
    """

    n: int
    depth: int
    seconds: float
    kernels: tuple[KernelTime, ...]
    limits: Limits


def measure_roofline(model: Profiled, runner: ModelRunner, n: int, depth: int, repetitions: int = 4) -> Roofline:
    """Profile passes with the logits of all tokens, and probe the limits between them.

    The time of a pass is measured without profiling it, in turns, and with the choice of the best tokens.

    Args:
        model: The runner's model.
        runner: Fills the slot, and has the tokens.
        n: Tokens of a pass.
        depth: Tokens that the slot holds before.
        repetitions: Passes between two probes.
    """
    runner.prepare(depth)
    measurement = Measurement("curve", n, depth)
    batch = runner.batch(depth, n, n_rows=n)
    model.profile(batch)
    passes: list[Sequence[KernelTime]] = []
    seconds, limits = [], []
    for _ in range(_N_WINDOWS):
        limits.append(model.limits())
        for _ in range(repetitions):
            runner.seconds(measurement)  # to follow a pass, as in a text, not the reckoning of a profile
            seconds.append(runner.seconds(measurement))
            passes.append(model.profile(batch))
    passes.sort(key=lambda steps: sum(step.seconds for step in steps))
    kernels: dict[str, KernelTime] = {}
    for step in passes[len(passes) // 2]:  # a pass that was: medians of its steps would come to less
        before = kernels.get(step.name, KernelTime(step.name, 0.0, 0, 0, 0))
        kernels[step.name] = KernelTime(
            step.name,
            before.seconds + step.seconds,
            before.n_bytes + step.n_bytes,
            before.n_multiply_adds + step.n_multiply_adds,
            before.n_steps + 1,
        )
    found = Limits(
        statistics.median(each.bytes_per_s for each in limits), statistics.median(each.multiply_adds_per_s for each in limits)
    )
    return Roofline(n, depth, statistics.median(seconds), tuple(kernels.values()), found)
