"""Attention in splits of logical positions: a token's sums depend neither on where its cells lie nor on the rest of the pass.

A split is 256 positions, counted from 0. Within it scores become weights relative to its own largest score; splits are then
merged in rising order. A split of which a token sees nothing takes no part.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    SIMULATED,
    WARP,
    add,
    cuda,
    div,
    exp,
    float_of_half,
    fma,
    kernel,
    lane,
    larger,
    load16,
    mul,
    quotient,
    remainder,
    warp_max,
)
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of, first_seen
from augury.backends.numba_cuda.kernels.norm import sum_of_block
from augury.backends.numba_cuda.kernels.quantise import quantise

SPLIT = 256  # positions
ATTEND_THREADS = 32 if SIMULATED else 128
_WARPS = ATTEND_THREADS // WARP
_STAGED = 2 * ATTEND_THREADS  # values of groups of threads; of heads of 256 there is one group
_NONE = float("-inf")


@lane
def _halves(word):
    return float_of_half(word & np.uint32(0xFFFF)), float_of_half(word >> np.uint32(16))


@lane
def _score(q, start, keys, at, dim, scale):
    """Scale * q k: of four neighbours each one sum, in rising order, then these in pairs."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for i in range(0, dim, 8):
        first, second, third, fourth = load16(keys, (at + i) >> 1)
        k0, k1 = _halves(first)
        k2, k3 = _halves(second)
        a, b = fma(q[start + i], k0, a), fma(q[start + i + 1], k1, b)
        c, d = fma(q[start + i + 2], k2, c), fma(q[start + i + 3], k3, d)
        k0, k1 = _halves(third)
        k2, k3 = _halves(fourth)
        a, b = fma(q[start + i + 4], k0, a), fma(q[start + i + 5], k1, b)
        c, d = fma(q[start + i + 6], k2, c), fma(q[start + i + 7], k3, d)
    return mul(add(add(a, b), add(c, d)), np.float32(scale))


@lane
def _scores_of(inputs, t, q, start, keys, base, dim, scale, split, first, last, thread, scores):
    """The scores of a thread's positions of a split, and the largest of them."""
    most = np.float32(_NONE)
    for i in range(thread, SPLIT, ATTEND_THREADS):
        position = split * SPLIT + i
        scores[i] = np.float32(_NONE)
        if first <= position <= last:
            scores[i] = _score(q, start, keys, (base + cell_of(inputs, t, position)) * dim, dim, scale)
            most = larger(most, scores[i])
    return most


@lane
def _weights_of(scores, most, thread):
    """Make weights of a thread's scores; returns their sum."""
    most = np.float32(most)
    total = np.float32(0)
    for i in range(thread, SPLIT, ATTEND_THREADS):
        weight = np.float32(0) if scores[i] == np.float32(_NONE) else exp(scores[i] - most)
        scores[i] = weight
        total = add(total, weight)
    return total


@lane
def _mixed(inputs, t, scores, values, base, dim, pair, split, first, last, group, n_groups):
    """Two neighbouring values of the mix of a group's positions: every n-th, of n groups."""
    a, b = np.float32(0), np.float32(0)
    start = split * SPLIT
    begin = max(first, start)
    position, end = begin + group - remainder(begin, n_groups), min(last + 1, start + SPLIT)
    if position < begin:
        position += n_groups
    while position < end:  # of a range that steps by a variable, numba divides to know its length
        low, high = _halves(values[((base + cell_of(inputs, t, position)) * dim >> 1) + pair])
        a, b = fma(scores[position - start], low, a), fma(scores[position - start], high, b)
        position += n_groups
    return a, b


@kernel("jfwwfiiiiiiiir")
def attend(
    inputs, rows, keys, values, parts, stride, n_heads, n_kv_heads, head_dim, value_dim, length, window, n_splits, scale
):
    """What one split gives one head of one token: (value_dim,) mixed, the largest score, and the sum of the weights.

    Args:
        inputs: Of the pass.
        rows: (n, stride), each beginning with the heads of queries.
        keys, values: Caches, see `prepare_heads`, as words of two halves.
        parts: (n, n_heads, n_splits, value_dim + 2).
        window: How many positions a token sees; 0: all.
    """
    split, head, t = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    if t >= inputs[N_TOKENS]:
        return
    last = inputs[POSITIONS + t]
    first = first_seen(last, window)
    if split * SPLIT > last or (split + 1) * SPLIT <= first:
        return
    scores = cuda.shared.array(SPLIT, np.float32)
    parts_of_warps = cuda.shared.array(_WARPS, np.float32)
    most_of_warps = cuda.shared.array(_WARPS, np.float32)
    staged = cuda.shared.array(_STAGED, np.float32)
    thread = cuda.threadIdx.x
    base = (inputs[SLOTS + t] * n_kv_heads + quotient(head, quotient(n_heads, n_kv_heads))) * length
    start = t * stride + head * head_dim
    most = _scores_of(inputs, t, rows, start, keys, base, head_dim, scale, split, first, last, thread, scores)
    most = warp_max(most)
    if thread % WARP == 0:
        most_of_warps[thread // WARP] = most
    cuda.syncthreads()
    for warp in range(_WARPS):
        most = larger(most, most_of_warps[warp])
    total = sum_of_block(_weights_of(scores, most, thread), parts_of_warps)  # all weights are there when it ends
    n_pairs = value_dim >> 1
    n_groups = max(1, quotient(ATTEND_THREADS, n_pairs))
    to = ((t * n_heads + head) * n_splits + split) * (value_dim + 2)
    if n_groups > 1:
        group = quotient(thread, n_pairs)
        if group < n_groups:
            pair = remainder(thread, n_pairs)
            a, b = _mixed(inputs, t, scores, values, base, value_dim, pair, split, first, last, group, n_groups)
            staged[group * value_dim + 2 * pair] = a
            staged[group * value_dim + 2 * pair + 1] = b
        cuda.syncthreads()
        for i in range(thread, value_dim, ATTEND_THREADS):
            value = staged[i]
            for group in range(1, n_groups):
                value = add(value, staged[group * value_dim + i])
            parts[to + i] = value
    else:
        for pair in range(thread, n_pairs, ATTEND_THREADS):
            a, b = _mixed(inputs, t, scores, values, base, value_dim, pair, split, first, last, 0, 1)
            parts[to + 2 * pair] = a
            parts[to + 2 * pair + 1] = b
    if thread == 0:
        parts[to + value_dim] = most
        parts[to + value_dim + 1] = total


@lane
def _merged(parts, at, n_splits, first, end, dim, i):
    """Value i of a head, from its splits in rising order."""
    size = dim + 2
    most = parts[at + first * size + dim]
    for split in range(first + 1, end):
        most = larger(most, parts[at + split * size + dim])
    total, value = np.float32(0), np.float32(0)
    for split in range(first, end):
        share = exp(parts[at + split * size + dim] - most)
        total = fma(parts[at + split * size + dim + 1], share, total)
        value = fma(parts[at + split * size + i], share, value)
    return div(value, total)


@kernel("jffbfjiiiiiii")
def merge_splits(
    inputs, parts, out, quantised, factors, sums, n_heads, value_dim, n_splits, window, width, as_floats, as_bytes
):
    """Merge what the splits of all heads gave, as floats (n, width), as units, or both; a warp takes 32 values."""
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    thread = cuda.threadIdx.x
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if WARP * unit >= width:
        return
    i = WARP * unit + thread % WARP
    last = inputs[POSITIONS + t]
    first = first_seen(last, window)
    value = np.float32(0)
    if i < n_heads * value_dim:
        at = (t * n_heads + quotient(i, value_dim)) * n_splits * (value_dim + 2)
        value = _merged(parts, at, n_splits, first // SPLIT, last // SPLIT + 1, value_dim, remainder(i, value_dim))
    if as_floats:
        out[t * width + i] = value
    if as_bytes:
        quantise(value, thread % WARP, quantised, factors, sums, t * (width // WARP) + unit)
