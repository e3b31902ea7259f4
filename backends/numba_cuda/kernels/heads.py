"""The preparation of heads of queries, keys and values: norm, rotary embedding, and the cache."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import clamped
from augury.backends.numba_cuda.kernels.cells import NOT_KEPT, StoreArgs, store_cell
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record, together
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS
from augury.backends.numba_cuda.kernels.norm import BIASED, NOTHING, NormArgs, moments, normed

MAX_DIM = 512  # of a head
_AT_ONCE = 4  # values that a thread reads before it waits for one
_N_HELD = 2 * _AT_ONCE
HeadsArgs = record(
    "HeadsArgs",
    f="rows factors",
    i="stride n_heads n_kv_heads head_dim value_dim length lag has_factors is_rope_first",
    r="limit",
)
"""Heads in rows (n, stride): of queries, then of keys, then of values.

Values come between `limit` and its negative. Queries and keys are turned as `lag` positions before the token's, and normed
after that, if `is_rope_first`. Queries are multiplied by `factors` (positions,), if `has_factors`. Caches have `length`
cells.
"""
TurnArgs = record("TurnArgs", f="turns", i="n_pairs offset is_interleaved")
"""A rope: `turns` (positions, n_pairs, 2) of cosines and sines, of pairs from value `offset` on, which may be neighbours."""


@lane
def _pair_of(turn, i):
    """The pair that value i of a head is of, -1 if of none, whether it is the first of it, and which is the other one."""
    at = i - turn.offset
    if at < 0 or at >= 2 * turn.n_pairs:
        return -1, False, i
    if turn.is_interleaved:
        return at // 2, at % 2 == 0, turn.offset + (at ^ 1)
    is_first = at < turn.n_pairs
    return at if is_first else at - turn.n_pairs, is_first, i + turn.n_pairs if is_first else i - turn.n_pairs


@lane
def _turned(value, other, is_first, cosine, sine):
    return gpu.fma(value, np.float32(cosine), gpu.mul(other, -np.float32(sine) if is_first else np.float32(sine)))


@lane
def turned_value(head, first, turn, i, start):
    """Value i of a head, whose first is head[first]; cosines and sines of its pairs begin at `start`.

    Values before and after the pairs stay.
    """
    pair, is_first, other = _pair_of(turn, i)
    if pair < 0:
        return head[first + i]
    cosine, sine = turn.turns[start + 2 * pair], turn.turns[start + 2 * pair + 1]
    return _turned(head[first + i], head[first + other], is_first, cosine, sine)


@lane
def _clamp_values(rows, start, dim, limit, first, held, staged):
    """Stage every 32nd value of a head, from the `first` on, of which a few are read at once."""
    for begin in range(first, dim, _AT_ONCE * WARP):
        for j in range(_AT_ONCE):
            i = begin + j * WARP
            held[j] = rows[start + i] if i < dim else np.float32(0)
        for j in range(_AT_ONCE):
            if begin + j * WARP < dim:
                staged[begin + j * WARP] = clamped(held[j], limit)


@lane
def _turn_values(head, turn, start, dim, first, held, turned):
    """Turn such values, by as many cosines and sines."""
    for begin in range(first, dim, _AT_ONCE * WARP):
        for j in range(_AT_ONCE):
            pair, is_first, other = _pair_of(turn, begin + j * WARP)
            is_there = pair >= 0 and begin + j * WARP < dim
            held[2 * j] = turn.turns[start + 2 * pair] if is_there else np.float32(1)
            held[2 * j + 1] = turn.turns[start + 2 * pair + 1] if is_there else np.float32(0)
        for j in range(_AT_ONCE):
            i = begin + j * WARP
            pair, is_first, other = _pair_of(turn, i)
            if i < dim:
                turned[i] = head[i] if pair < 0 else _turned(head[i], head[other], is_first, held[2 * j], held[2 * j + 1])


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


@kernel("j", HeadsArgs, NormArgs, NormArgs, NormArgs, TurnArgs, StoreArgs, StoreArgs)
def prepare_heads(inputs, params, q, k, v, turn, keys, values):
    """Clamp, norm and turn heads; store keys and values, the rest stays in its place. A warp takes one head of one token.

    Args:
        q, k, v: Norms of heads, whose weights are those of every head, one after another.
        turn: The rope of queries and keys.
        keys, values: Caches (slots, n_kv_heads, length, …).
    """
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    n_tokens, position = gpu.read_early(inputs, N_TOKENS), gpu.read_early(inputs, POSITIONS + t)
    slot, cell = gpu.read_early(inputs, SLOTS + t), gpu.read_early(inputs, CELLS + t)
    rows, n_heads, n_kv_heads, head_dim = params.rows, params.n_heads, params.n_kv_heads, params.head_dim
    is_value = head >= n_heads + n_kv_heads
    is_query = head < n_heads
    start = t * params.stride + head * head_dim
    group, dim, kept_as, (weight, kind, eps) = head, head_dim, NOT_KEPT, q
    if is_value:
        group = head - n_heads - n_kv_heads
        start = t * params.stride + (n_heads + n_kv_heads) * head_dim + group * params.value_dim
        dim, kept_as, (weight, kind, eps) = params.value_dim, values.kept_as, v
    elif not is_query:
        group = head - n_heads
        kept_as, (weight, kind, eps) = keys.kept_as, k
    norm = NormArgs(weight, kind, eps)
    staged = cuda.shared.array(MAX_DIM, np.float32)
    turned = cuda.shared.array(MAX_DIM, np.float32)
    parts = cuda.shared.array(1, np.float32)
    held = cuda.local.array(_N_HELD, np.float32)
    _clamp_values(rows, start, dim, params.limit, i, held, staged)
    if t >= n_tokens:  # asked after rows are read, which there are for any token, so that they are waited for together
        return
    is_normed_last = params.is_rope_first and not is_value
    if norm.kind != NOTHING and not is_normed_last:
        norm_head(staged, norm, group, dim, parts)
    cuda.syncthreads()
    if is_value:
        for j in range(i, dim, WARP):
            turned[j] = staged[j]
    else:
        _turn_values(staged, turn, max(0, position - params.lag) * 2 * turn.n_pairs, dim, i, held, turned)
    if norm.kind != NOTHING and is_normed_last:
        norm_head(turned, norm, group, dim, parts)
    if kept_as == NOT_KEPT:
        factor = params.factors[position] if is_query and params.has_factors else np.float32(1)
        for j in range(i, dim, WARP):
            rows[start + j] = gpu.mul(turned[j], factor)
        return
    cell += (slot * n_kv_heads + group) * params.length
    if is_value:
        store_cell(turned, staged, dim, values, cell)
    else:
        store_cell(turned, staged, dim, keys, cell)
