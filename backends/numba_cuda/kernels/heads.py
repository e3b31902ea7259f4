"""What becomes of the heads of queries, keys and values: norm, rotary embedding, and the cache."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    cuda,
    fma,
    half_of_float,
    kernel,
    lane,
    mul,
    quotient,
    remainder,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS
from augury.backends.numba_cuda.kernels.norm import inverse_root, squares

MAX_DIM = 256  # of a head


@lane
def _turned(head, turns, i, size, n_pairs, is_interleaved, start):
    """Value i of a head, of whose pairs `turns` has the cosines and sines from `start` on; what follows them stays."""
    if i >= 2 * n_pairs:
        return head[i]
    if is_interleaved:
        pair, is_first, other = i // 2, i % 2 == 0, i ^ 1
    else:
        is_first = i < n_pairs
        pair = i if is_first else i - n_pairs
        other = i + n_pairs if is_first else i - n_pairs
    cosine, sine = turns[start + 2 * pair], turns[start + 2 * pair + 1]
    return fma(head[i], cosine, mul(head[other], -sine if is_first else sine))


@lane
def _stored(value):
    return np.uint16(half_of_float(np.float32(value)))


@kernel("jffffhhiiiiiiiiiirr")
def prepare_heads(
    inputs,
    rows,
    q_weight,
    k_weight,
    turns,
    keys,
    values,
    stride,
    n_heads,
    n_kv_heads,
    head_dim,
    value_dim,
    n_pairs,
    is_interleaved,
    has_q_norm,
    has_k_norm,
    length,
    q_eps,
    k_eps,
):
    """Norm and turn queries in place; norm, turn and store keys; store values. A warp takes one head of one token.

    Args:
        inputs: Of the pass.
        rows: (n, stride), each of all heads of queries, then of keys, then of values.
        q_weight, k_weight: Of the norms, where there are some.
        turns: (positions, n_pairs, 2).
        keys, values: (slots, n_kv_heads, length, head_dim or value_dim).
    """
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    of_keys = head >= n_heads
    is_value = head >= n_heads + n_kv_heads
    group = head - n_heads - (n_kv_heads if is_value else 0)
    cell = (inputs[SLOTS + t] * n_kv_heads + group) * length + inputs[CELLS + t]
    if is_value:
        start = t * stride + (n_heads + n_kv_heads) * head_dim + group * value_dim
        for j in range(i, value_dim, WARP):
            values[cell * value_dim + j] = _stored(rows[start + j])
        return
    start = t * stride + head * head_dim
    staged = cuda.shared.array(MAX_DIM, np.float32)
    if has_k_norm if of_keys else has_q_norm:
        total = warp_sum(squares(rows, start, head_dim, i, WARP))
        inverse = inverse_root(total, head_dim, k_eps if of_keys else q_eps)
        weight = k_weight if of_keys else q_weight
        for j in range(i, head_dim, WARP):
            staged[j] = mul(mul(rows[start + j], inverse), weight[j])
    else:
        for j in range(i, head_dim, WARP):
            staged[j] = rows[start + j]
    cuda.syncthreads()
    at = inputs[POSITIONS + t] * 2 * n_pairs
    for j in range(i, head_dim, WARP):
        value = _turned(staged, turns, j, head_dim, n_pairs, is_interleaved, at)
        if of_keys:
            keys[cell * head_dim + j] = _stored(value)
        else:
            rows[start + j] = value


@kernel("hjiiii")
def move_cells(cache, moves, n_moves, n_kv_heads, dim, length):
    """Copy cells of a cache, one after another: `moves` (m, 3) of slot, from, to. A thread takes one value of a head."""
    i = cuda.blockIdx.x * WARP + cuda.threadIdx.x
    if i >= n_kv_heads * dim:
        return
    for move in range(n_moves):
        slot, source, to = moves[3 * move], moves[3 * move + 1], moves[3 * move + 2]
        start, at = (slot * n_kv_heads + quotient(i, dim)) * length, remainder(i, dim)
        cache[(start + to) * dim + at] = cache[(start + source) * dim + at]
