"""The preparation of heads of queries, keys and values, as `kernels/head.py` reads it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from augury.backends.numba_cpu.kernels.head import HeadSteps
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.memory import Arena
from augury.backends.numba_cpu.weights import Weights
from augury.blocks import Preparation, Rope

_OVERREAD = 16  # floats that a kernel may read (never use) beyond a table
TABLES = "rope tables"


def place_steps(steps: Preparation, weights: Weights, arena: Arena, n_ctx: int) -> int:
    """The address of the `HeadSteps` that prepare heads; 0 if there are none."""
    if steps.is_nothing:
        return 0
    turns, n_pairs, is_interleaved, offset = 0, 0, False, 0
    if (rope := steps.rope) is not None:
        turns = arena.shared(_turns_key(rope), lambda: np.pad(rope.turns(n_ctx).ravel(), (0, _OVERREAD)).astype("f4"), TABLES)
        n_pairs, is_interleaved, offset = len(rope.frequencies), rope.is_interleaved, rope.offset
    factors = 0
    if (temperature := steps.temperature) is not None:
        factors = arena.shared(temperature, lambda: temperature.factors(n_ctx).astype("f4"), TABLES)
    written = HeadSteps(
        limit=steps.clamp or 0.0,
        norm=weights.norm(steps.norm),
        turns=turns,
        n_pairs=n_pairs,
        is_interleaved=is_interleaved,
        is_turned_first=steps.is_rope_first,
        factors=factors,
        offset=offset,
        lag=steps.lag,
    )
    return arena.shared(written, lambda: table([written]), "scratch")


def table_of(rope: Rope | None, n_ctx: int) -> Mapping[Hashable, int]:
    """Bytes of a rope's table: of every position's turns float64 exist for a moment, beside the float32 that stay."""
    return {} if rope is None else {_turns_key(rope): n_ctx * len(rope.frequencies) * 8 * 5}


def _turns_key(rope: Rope) -> tuple[object, ...]:
    """The key of a rope's table, beside the number of positions."""
    return ("turns", rope.frequencies.tobytes(), rope.magnitude, rope.ahead)
