"""Times a loaded model's passes, so that the planner starts from what they cost here."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from augury.batch import Batch
from augury.interfaces import Model
from augury.speculation.costs import PassCosts, PassTime

__all__ = ["measure_passes"]

_SIZES = (1, 2, 4, 8, 16)  # timed several times over, before anything else
# once, in the order of their worth: a slow machine's time is up before the last
_FINE_SIZES = (32, 64, 3, 6, 12, 24, 5, 9, 17, 48)
_DEEP_SIZES = (1, 4, 16)
_DEPTH = 1024  # where what a context costs is measured
_LARGEST = 256  # tokens of a pass that has a figure of its own: every round goes through all figures
_BUDGET_S = 0.5  # felt at a start, but not much
_TURNS = 2


def measure_passes(model: Model, n_largest: int) -> PassCosts:
    """Time passes of 1 to `n_largest` tokens, all with logits, on slot 0, whose states are overwritten.

    The best of several times is taken: whatever else runs only ever adds.
    """
    n_ctx, has_text = model.state_spec.n_ctx, not model.state_spec.n_bytes_per_sequence  # a recurrent state cannot be made up
    sizes, fine = ([n for n in each if n <= min(n_largest, n_ctx)] for each in (_SIZES, _FINE_SIZES))
    deep = [(n, min(_DEPTH, n_ctx - n)) for n in _DEEP_SIZES if n in sizes and n_ctx >= _DEPTH // 2 and has_text]
    best: dict[tuple[int, int], float] = {}
    _seconds(model, sizes[-1], 0)  # memory is touched for the first time
    start = perf_counter()
    for turn in range(_TURNS):
        if deep and turn == _TURNS - 1 and perf_counter() - start < _BUDGET_S:
            _fill(model, max(depth for _, depth in deep))
        rest = [*deep, *((n, 0) for n in fine)] if turn == _TURNS - 1 else []
        for n, depth in [*((n, 0) for n in sizes), *rest]:
            is_needed = turn == 0 and n <= 2 and depth == 0  # the least that says what drafting costs
            if is_needed or perf_counter() - start < _BUDGET_S:
                best[n, depth] = min(_seconds(model, n, depth), best.get((n, depth), np.inf))
    return PassCosts([PassTime(n, depth, seconds) for (n, depth), seconds in best.items()], min(n_largest, _LARGEST))


def _fill(model: Model, depth: int) -> None:
    """Let the positions before `depth` hold what the first does: a pass must not attend to what was never stored.

    It would also read memory that the system has not given yet, and be faster than one after a text.
    """
    targets = np.arange(1, depth, dtype=np.int32)
    moves = np.stack([np.zeros_like(targets), np.zeros_like(targets), targets], axis=1)  # slot, from, to
    model.forward(Batch.chain([0], start=depth, accepted=moves))


def _seconds(model: Model, n: int, depth: int) -> float:
    batch = Batch.chain(np.zeros(n, np.int32), start=depth)
    start = perf_counter()
    device_s = model.forward(batch).wait()
    return perf_counter() - start if device_s is None else device_s
