"""Times a loaded model's passes, so that the planner starts from their costs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from augury.batch import Batch
from augury.interfaces import Drafter, Model
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import DrafterProfile
from augury.speculation.planner import DraftPlanner

_SIZES = (1, 2, 4, 8, 16)  # timed several times over, before anything else
# once, in the order of their worth: a slow machine's time is up before the last
_FINE_SIZES = (32, 64, 3, 6, 12, 24, 5, 9, 17, 48)
_DEEP_SIZES = (1, 4, 16)
_DEPTH = 1024  # where the cost of a context is measured
_SHALLOWEST = 256  # the least depth that says something about it
_CHUNK = 64  # tokens of a text that is processed to get there
_NO_ROWS = np.empty(0, np.int32)
_LARGEST = 128  # tokens of a pass that has a figure of its own: every round goes through all figures
_BUDGET_S = 0.5  # felt at a start, but not much
_TURNS = 2


def planner_for(model: Model, chain: Sequence[Drafter], draft_max: int, *, replays_accepted: bool) -> DraftPlanner | None:
    """A planner for a chain of drafters in every slot, by the measured costs of this model's passes; None without drafters."""
    if not chain:
        return None
    costs = measure_passes(model, model.state_spec.n_slots * (draft_max + 1))
    return DraftPlanner(costs, map(DrafterProfile.of, chain), replays_accepted=replays_accepted)


def measure_passes(model: Model, n_largest: int) -> PassCosts:
    """Time passes of 1 to `n_largest` tokens, all with logits, on slot 0, whose states are overwritten.

    The least of several times is taken: other programs only ever add.
    """
    spec = model.state_spec
    steps = [n for n in model.pass_sizes if n not in _SIZES] or _FINE_SIZES
    sizes, fine = ([n for n in each if n <= min(n_largest, spec.n_ctx)] for each in (_SIZES, steps))
    best: dict[tuple[int, int], float] = {}
    _seconds(model, sizes[-1], 0)  # memory is touched for the first time
    start = perf_counter()
    for turn in range(_TURNS):
        rest: list[tuple[int, int]] = []
        if turn == _TURNS - 1:
            depth = 0
            if spec.n_ctx >= _DEPTH // 2 and spec.n_bytes_per_position:
                depth = _fill(model, min(_DEPTH, spec.n_ctx - 1), start + _BUDGET_S)
            deep = [(n, min(depth, spec.n_ctx - n)) for n in _DEEP_SIZES if n in sizes and depth]
            rest = [*deep, *((n, 0) for n in fine)]
        for n, depth in [*((n, 0) for n in sizes), *rest]:
            is_needed = turn == 0 and n <= 2 and depth == 0  # the least that measures the cost of drafting
            if is_needed or perf_counter() - start < _BUDGET_S:
                best[n, depth] = min(_seconds(model, n, depth), best.get((n, depth), np.inf))
    times = [PassTime(n, depth, seconds) for (n, depth), seconds in best.items()]
    return PassCosts(times, min(n_largest, _LARGEST), model.pass_sizes)


def _fill(model: Model, depth: int, end: float) -> int:
    """Fill the positions before `depth`: a pass must not attend to positions that were never stored.

    It would also read memory that the system has not given yet, and be faster than one after a text. Keys and values of the
    first position are moved to all others. A recurrent state follows a text alone, which is processed for half of the time
    that is left until `end`, by the clock.

    Returns:
        Up to which position; 0: not far enough to measure the cost of a context.
    """
    if not model.state_spec.n_bytes_per_sequence:
        if perf_counter() >= end:
            return 0
        targets = np.arange(1, depth, dtype=np.int32)
        moves = np.stack([np.zeros_like(targets), np.zeros_like(targets), targets], axis=1)  # slot, from, to
        model.forward(Batch.chain([0], start=depth, accepted=moves))
        return depth
    end -= (end - perf_counter()) / 2
    filled, per_chunk = 0, 0.0
    while filled < depth and (before := perf_counter()) + per_chunk < end:
        n = min(_CHUNK, depth - filled)
        model.forward(Batch.chain(np.zeros(n, np.int32), start=filled, rows=_NO_ROWS)).wait()
        filled, per_chunk = filled + n, perf_counter() - before
    return filled if filled >= _SHALLOWEST else 0


def _seconds(model: Model, n: int, depth: int) -> float:
    spec, aside = model.state_spec, None
    if spec.n_bytes_per_sequence and spec.can_keep_aside and n > 1:  # as drafts are verified
        aside = np.arange(n) >= max(1, n - (n if spec.draft_max is None else spec.draft_max))
    batch = Batch.chain(np.zeros(n, np.int32), start=depth, is_drafted=aside)
    start = perf_counter()
    device_s = model.forward(batch).wait()
    return perf_counter() - start if device_s is None else device_s
