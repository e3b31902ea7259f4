"""What is done to heads of queries, keys and values, as `kernels/head.py` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.kernels.head import HeadSteps
from augury.backends.numba_cpu.kernels.struct import table

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Preparation, Rope, Temperature

_OVERREAD = 16  # floats that a kernel may read (never use) beyond a table
TABLES = "rope tables"


def place_steps(steps: Preparation, weights: Weights, arena: Arena, n_ctx: int) -> int:
    """The address of the `HeadSteps` that prepare heads; 0 if there are none."""
    if steps.is_nothing:
        return 0
    turns, n_pairs, is_interleaved, offset = 0, 0, False, 0
    if (rope := steps.rope) is not None:
        turns = arena.shared(_turns_key(rope), lambda: _turns(rope, n_ctx), TABLES)
        n_pairs, is_interleaved, offset = len(rope.frequencies), rope.is_interleaved, rope.offset
    factors = 0
    if (temperature := steps.temperature) is not None:
        factors = arena.shared(temperature, lambda: _factors(temperature, n_ctx), TABLES)
    written = HeadSteps(
        limit=steps.clamp or 0.0,
        norm=weights.norm(steps.norm),
        turns=turns,
        n_pairs=n_pairs,
        is_interleaved=is_interleaved,
        is_turned_first=steps.is_rope_first,
        factors=factors,
        offset=offset,
    )
    return arena.shared(written, lambda: table([written]), "scratch")


def table_of(rope: Rope | None, n_ctx: int) -> Mapping[Hashable, int]:
    """Bytes of a rope's table: of every position's turns float64 exist for a moment, beside the float32 that stay."""
    return {} if rope is None else {_turns_key(rope): n_ctx * len(rope.frequencies) * 8 * 5}


def _turns_key(rope: Rope) -> tuple[object, ...]:
    """What a rope's table depends on, beside the number of positions."""
    return ("turns", rope.frequencies.tobytes(), rope.magnitude)


def _turns(rope: Rope, n_ctx: int) -> np.ndarray:
    """The cosines and sines of every position, (n_ctx, 2, pairs) float32."""
    angles = np.arange(n_ctx, dtype=np.float64)[:, None] * rope.frequencies
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rope.magnitude
    return np.append(turns, np.zeros(_OVERREAD)).astype(np.float32)


def _factors(temperature: Temperature, n_ctx: int) -> np.ndarray:
    """What queries of every position are multiplied by, (n_ctx,) float32."""
    periods = (np.arange(n_ctx) + temperature.offset) // temperature.period
    return (1 + temperature.scale * np.log1p(periods)).astype(np.float32)
