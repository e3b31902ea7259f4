"""What becomes of heads before they are compared: norm, rotary embedding, and the cache; see `kernels.heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.backends.numba_cuda.kernels.cells import NOT_KEPT
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.heads import prepare_heads
from augury.backends.numba_cuda.tape import Tape, norm_kind

if TYPE_CHECKING:
    from augury.backends.numba_cuda.cache import Cache
    from augury.backends.numba_cuda.device import Arguments, Pointer
    from augury.backends.numba_cuda.rows import Rows
    from augury.backends.numba_cuda.weights import Weights
    from augury.blocks import Norm, Rope, Temperature

__all__ = ["Heads", "factors_of", "prepare", "turned"]


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
    keys, values = keys or Heads(0, queries.dim), values or Heads(0, queries.dim)
    arguments: Arguments = {"rows": rows.at, "stride": rows.width, "length": n_ctx, "lag": lag, "is_rope_first": is_rope_first}
    arguments |= {"n_heads": queries.n, "n_kv_heads": keys.n, "head_dim": queries.dim, "value_dim": values.dim}
    arguments["limit"] = np.inf if clamp is None else clamp
    for prefix, each in (("q", queries), ("k", keys), ("v", values)):
        if each.n and each.norm is not None:
            arguments |= {f"{prefix}_norm": tape.weights.norm(each.norm, each.n), f"{prefix}_kind": norm_kind(each.norm)}
            arguments[f"{prefix}_eps"] = each.norm.eps
    for name, each in (("key", keys), ("value", values)):
        arguments[f"{name}s_kept_as"] = NOT_KEPT if each.cache is None else each.cache.number
        if each.cache is not None:
            arguments |= {f"{name}_codes": each.cache.codes, f"{name}_halves": each.cache.halves}
    if temperature is not None:
        arguments |= {"factors": factors_of(tape.weights, temperature, n_ctx), "has_factors": True}
    grid = (queries.n + keys.n + values.n, tape.size.n_tokens)
    tape.launch(prepare_heads, grid, WARP, **arguments, **turned(tape.weights, rope, n_ctx))


def turned(weights: Weights, rope: Rope | None, n_ctx: int) -> Arguments:
    """The arguments of kernels for a rope: cosines and sines, how many pairs, where they begin, whether they are neighbours."""
    if rope is None:
        return {}
    pairs = {"n_pairs": len(rope.frequencies), "offset": rope.offset, "is_interleaved": rope.is_interleaved}
    return {"turns": turns_of(weights, rope, n_ctx), **pairs}


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
