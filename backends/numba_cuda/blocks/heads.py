"""What becomes of heads before they are compared: norm, rotary embedding, and the cache; see `kernels.heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.cells import NOT_KEPT
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.heads import prepare_heads
from augury.backends.numba_cuda.kernels.norm import NOTHING
from augury.backends.numba_cuda.tape import Tape, norm_kind

if TYPE_CHECKING:
    from augury.backends.numba_cuda.cache import Cache
    from augury.backends.numba_cuda.device import Pointer
    from augury.backends.numba_cuda.rows import Rows
    from augury.backends.numba_cuda.weights import Weights
    from augury.blocks import Norm, Rope, Temperature

__all__ = ["Heads", "factors_of", "prepare", "turns_of"]


@frozen(eq=False)
class Heads:
    """So many heads of so many values each, how they are normed, and what keeps them if they are kept."""

    n: int
    dim: int
    norm: Norm | None = None
    cache: Cache | None = None


def prepare(
    tape: Tape,
    rows: Rows,
    n_ctx: int,
    queries: Heads,
    keys: Heads | None = None,
    values: Heads | None = None,
    *,
    rope: Rope | None = None,
    clamp: float | None = None,
    temperature: Temperature | None = None,
    is_rope_first: bool = False,
    lag: int = 0,
) -> None:
    """Write what becomes of rows that begin with the heads of queries, of keys, and of values; see `prepare_heads`."""
    weights, nothing = tape.weights, rows.at
    keys, values = keys or Heads(0, queries.dim), values or Heads(0, queries.dim)
    heads = (queries, keys, values)
    norms = [each.norm if each.n else None for each in heads]
    weights_of = [nothing if norm is None else weights.norm(norm, each.n) for norm, each in zip(norms, heads, strict=True)]
    kinds = [NOTHING if norm is None else norm_kind(norm) for norm in norms]
    turns, n_pairs, how = nothing, 0, (0, 0)
    if rope is not None:
        turns, n_pairs, how = turns_of(weights, rope, n_ctx), len(rope.frequencies), (rope.offset, int(rope.is_interleaved))
    factors = nothing if temperature is None else factors_of(weights, temperature, n_ctx)
    planes: list[Pointer] = []
    for each in (keys, values):
        planes += [nothing] * 2 if each.cache is None else [each.cache.codes, each.cache.halves]
    sizes = (rows.width, queries.n, keys.n, queries.dim, values.dim, n_pairs, *how, int(is_rope_first), *kinds)
    kept = [NOT_KEPT if each.cache is None else each.cache.number for each in (keys, values)]
    numbers = (np.inf if clamp is None else clamp, *(0.0 if norm is None else norm.eps for norm in norms))
    places = (rows.at, *weights_of, turns, factors, *planes)
    grid = (queries.n + keys.n + values.n, tape.size.n_tokens)
    tape.add(prepare_heads, grid, WARP, *places, *sizes, int(temperature is not None), *kept, n_ctx, lag, *numbers)


def turns_of(weights: Weights, rope: Rope, n_ctx: int) -> Pointer:
    """The cosine and the sine of every pair at every position, (n_ctx, pairs, 2) float32."""

    def make() -> np.ndarray:
        angles = np.arange(n_ctx, dtype=np.float64)[:, None] * rope.frequencies
        return (np.stack([np.cos(angles), np.sin(angles)], axis=2) * rope.magnitude).astype(np.float32)

    return weights.constant(("turns", rope.frequencies.tobytes(), rope.magnitude), make)


def factors_of(weights: Weights, temperature: Temperature, n_ctx: int) -> Pointer:
    """What queries of every position are multiplied with, (n_ctx,) float32."""

    def make() -> np.ndarray:
        periods = (np.arange(n_ctx) + temperature.offset) // temperature.period
        return (1.0 + temperature.scale * np.log1p(periods)).astype(np.float32)

    return weights.constant((temperature, n_ctx), make)
