"""What becomes of the heads of queries, keys and values: norm, rotary embedding, and the cache."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import clamped
from augury.backends.numba_cuda.kernels.cells import NOT_KEPT, store_cell
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, fma, kernel, lane, mul, together
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS
from augury.backends.numba_cuda.kernels.norm import BIASED, NOTHING, moments, normed

MAX_DIM = 512  # of a head


@lane
def turned_value(head, first, turns, i, n_pairs, offset, is_interleaved, start):
    """Value i of a head, whose first is head[first]; `turns` has cosines and sines of its pairs from `offset` on.

    Those begin at `start`. Values before and after the pairs stay.
    """
    at = i - offset
    if at < 0 or at >= 2 * n_pairs:
        return head[first + i]
    if is_interleaved:
        pair, is_first, other = at // 2, at % 2 == 0, offset + (at ^ 1)
    else:
        is_first = at < n_pairs
        pair = at if is_first else at - n_pairs
        other = i + n_pairs if is_first else i - n_pairs
    cosine, sine = turns[start + 2 * pair], turns[start + 2 * pair + 1]
    return fma(head[first + i], cosine, mul(head[first + other], -sine if is_first else sine))


@lane
def _norm_values(head, weight, at, dim, first, mean, inverse, kind):
    """Norm every 32nd value of a head, from the `first` on, in place."""
    for j in range(first, dim, WARP):
        head[j] = normed(head, j, weight, at + j, dim, mean, inverse, kind)


@together
def norm_head(head, weight, group, dim, kind, eps, parts):
    """Norm a head of a warp in place, by weights of its group."""
    mean, inverse = moments(head, 0, dim, WARP, kind, eps, parts)
    at = group * dim * (2 if kind & BIASED else 1)
    _norm_values(head, weight, at, dim, cuda.threadIdx.x, mean, inverse, kind)


@kernel("j" + 6 * "f" + "bhbh" + 17 * "i" + "rrrr")
def prepare_heads(
    inputs,
    rows,
    q_norm,
    k_norm,
    v_norm,
    turns,
    factors,
    key_codes,
    key_halves,
    value_codes,
    value_halves,
    stride,
    n_heads,
    n_kv_heads,
    head_dim,
    value_dim,
    n_pairs,
    offset,
    is_interleaved,
    is_rope_first,
    q_kind,
    k_kind,
    v_kind,
    has_factors,
    keys_kept_as,
    values_kept_as,
    length,
    lag,
    limit,
    q_eps,
    k_eps,
    v_eps,
):
    """Clamp, norm and turn heads; store keys and values, the rest stays in its place. A warp takes one head of one token.

    Args:
        inputs: Of the pass.
        rows: (n, stride), each of all heads of queries, then of keys, then of values.
        q_norm, k_norm, v_norm: Of every head weights, and the bias if there is one, where `q_kind` and so on say how to norm.
        turns: (positions, n_pairs, 2), of pairs from `offset` on.
        factors: (positions,) what queries are multiplied with.
        key_codes, key_halves, value_codes, value_halves: Planes of caches, see `cells`, (slots, n_kv_heads, length, …) each.
        is_rope_first: Whether queries and keys are turned before they are normed.
        lag: Positions that heads are turned less than the token's.
        limit: Values lie between it and its negative.
    """
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    is_value = head >= n_heads + n_kv_heads
    is_query = head < n_heads
    start = t * stride + head * head_dim
    group, dim, kind, weight, eps, kept_as = head, head_dim, q_kind, q_norm, q_eps, NOT_KEPT
    if is_value:
        group = head - n_heads - n_kv_heads
        start = t * stride + (n_heads + n_kv_heads) * head_dim + group * value_dim
        dim, kind, weight, eps, kept_as = value_dim, v_kind, v_norm, v_eps, values_kept_as
    elif not is_query:
        group = head - n_heads
        kind, weight, eps, kept_as = k_kind, k_norm, k_eps, keys_kept_as
    staged = cuda.shared.array(MAX_DIM, np.float32)
    turned = cuda.shared.array(MAX_DIM, np.float32)
    parts = cuda.shared.array(1, np.float32)
    for j in range(i, dim, WARP):
        staged[j] = clamped(rows[start + j], limit)
    is_normed_last = is_rope_first and not is_value
    if kind != NOTHING and not is_normed_last:
        norm_head(staged, weight, group, dim, kind, eps, parts)
    cuda.syncthreads()
    at = max(0, inputs[POSITIONS + t] - lag) * 2 * n_pairs
    for j in range(i, dim, WARP):
        turned[j] = staged[j] if is_value else turned_value(staged, 0, turns, j, n_pairs, offset, is_interleaved, at)
    if kind != NOTHING and is_normed_last:
        norm_head(turned, weight, group, dim, kind, eps, parts)
    if kept_as == NOT_KEPT:
        factor = factors[inputs[POSITIONS + t]] if is_query and has_factors else np.float32(1)
        for j in range(i, dim, WARP):
            rows[start + j] = mul(turned[j], factor)
        return
    cell = (inputs[SLOTS + t] * n_kv_heads + group) * length + inputs[CELLS + t]
    if is_value:
        store_cell(turned, staged, dim, kept_as, value_codes, value_halves, cell)
    else:
        store_cell(turned, staged, dim, kept_as, key_codes, key_halves, cell)
