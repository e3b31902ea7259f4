"""What becomes of the heads of queries, keys and values: norm, rotary embedding, and the cache."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import clamped
from augury.backends.numba_cuda.kernels.cells import NOT_KEPT, StoreArgs, store_cell
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, fma, kernel, lane, mul, record, together
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS
from augury.backends.numba_cuda.kernels.norm import BIASED, NOTHING, NormArgs, moments, normed

MAX_DIM = 512  # of a head
HeadsArgs = record("HeadsArgs", i="n_heads n_kv_heads head_dim value_dim")
TurnArgs = record("TurnArgs", f="turns", i="n_pairs offset is_interleaved")
"""A rope: `turns` (positions, n_pairs, 2) of cosines and sines, of pairs from value `offset` on, which may be neighbours."""


@lane
def turned_value(head, first, turn, i, start):
    """Value i of a head, whose first is head[first]; cosines and sines of its pairs begin at `start`.

    Values before and after the pairs stay.
    """
    at = i - turn.offset
    if at < 0 or at >= 2 * turn.n_pairs:
        return head[first + i]
    if turn.is_interleaved:
        pair, is_first, other = at // 2, at % 2 == 0, turn.offset + (at ^ 1)
    else:
        is_first = at < turn.n_pairs
        pair = at if is_first else at - turn.n_pairs
        other = i + turn.n_pairs if is_first else i - turn.n_pairs
    cosine, sine = turn.turns[start + 2 * pair], turn.turns[start + 2 * pair + 1]
    return fma(head[first + i], cosine, mul(head[first + other], -sine if is_first else sine))


@lane
def _norm_values(head, norm, at, dim, first, mean, inverse):
    """Norm every 32nd value of a head, from the `first` on, in place."""
    for j in range(first, dim, WARP):
        head[j] = normed(head, j, norm, at + j, dim, mean, inverse)


@together
def norm_head(head, norm, group, dim, parts):
    """Norm a head of a warp in place, by weights of its group."""
    mean, inverse = moments(head, 0, dim, WARP, norm, parts)
    at = group * dim * (2 if norm.kind & BIASED else 1)
    _norm_values(head, norm, at, dim, cuda.threadIdx.x, mean, inverse)


@kernel("jffiiiiir", HeadsArgs, NormArgs, NormArgs, NormArgs, TurnArgs, StoreArgs, StoreArgs)
def prepare_heads(
    inputs, rows, factors, stride, has_factors, is_rope_first, length, lag, limit, heads, q, k, v, turn, keys, values
):
    """Clamp, norm and turn heads; store keys and values, the rest stays in its place. A warp takes one head of one token.

    Args:
        inputs: Of the pass.
        rows: (n, stride), each of all heads of queries, then of keys, then of values.
        factors: (positions,) what queries are multiplied with.
        is_rope_first: Whether queries and keys are turned before they are normed.
        lag: Positions that heads are turned less than the token's.
        limit: Values lie between it and its negative.
        q, k, v: Norms of heads, whose weights are those of every head, one after another.
        keys, values: Caches (slots, n_kv_heads, length, …).
    """
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    n_heads, n_kv_heads, head_dim = heads.n_heads, heads.n_kv_heads, heads.head_dim
    is_value = head >= n_heads + n_kv_heads
    is_query = head < n_heads
    start = t * stride + head * head_dim
    group, dim, kept_as, (weight, kind, eps) = head, head_dim, NOT_KEPT, q
    if is_value:
        group = head - n_heads - n_kv_heads
        start = t * stride + (n_heads + n_kv_heads) * head_dim + group * heads.value_dim
        dim, kept_as, (weight, kind, eps) = heads.value_dim, values.kept_as, v
    elif not is_query:
        group = head - n_heads
        kept_as, (weight, kind, eps) = keys.kept_as, k
    norm = NormArgs(weight, kind, eps)
    staged = cuda.shared.array(MAX_DIM, np.float32)
    turned = cuda.shared.array(MAX_DIM, np.float32)
    parts = cuda.shared.array(1, np.float32)
    for j in range(i, dim, WARP):
        staged[j] = clamped(rows[start + j], limit)
    is_normed_last = is_rope_first and not is_value
    if norm.kind != NOTHING and not is_normed_last:
        norm_head(staged, norm, group, dim, parts)
    cuda.syncthreads()
    at = max(0, inputs[POSITIONS + t] - lag) * 2 * turn.n_pairs
    for j in range(i, dim, WARP):
        turned[j] = staged[j] if is_value else turned_value(staged, 0, turn, j, at)
    if norm.kind != NOTHING and is_normed_last:
        norm_head(turned, norm, group, dim, parts)
    if kept_as == NOT_KEPT:
        factor = factors[inputs[POSITIONS + t]] if is_query and has_factors else np.float32(1)
        for j in range(i, dim, WARP):
            rows[start + j] = mul(turned[j], factor)
        return
    cell = (inputs[SLOTS + t] * n_kv_heads + group) * length + inputs[CELLS + t]
    if is_value:
        store_cell(turned, staged, dim, values, cell)
    else:
        store_cell(turned, staged, dim, keys, cell)
