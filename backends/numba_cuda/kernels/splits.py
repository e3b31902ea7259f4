"""What splits of positions give heads becomes one: the last block of a head to end merges them, in rising order."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import sigmoid, softplus
from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    cuda,
    div,
    exp,
    fma,
    lane,
    larger,
    mul,
    quotient,
    record,
    remainder,
    together,
)
from augury.backends.numba_cuda.kernels.quantise import put, unit_of

_NONE = float("-inf")
MergeArgs = record("MergeArgs", f="sinks gates", i="has_sinks gate_stride gate_size is_softplus")
"""What is done beside merging.

`sinks` (n_heads,) are scores with nothing to mix, if `has_sinks`. Of `gates` (tokens, gate_stride) each multiplies `gate_size`
neighbouring values, through a softplus or sigmoid; with a size of 0 there are none.
"""


@lane
def n_joined(dim):
    """How many neighbouring heads of so many values, a multiple of 8, have whole units."""
    return 1 if dim % 32 == 0 else 2 if dim % 16 == 0 else 4


@lane
def merged(parts, start, n, other, n_others, dim, i, sink):
    """Value i of a head, from n splits of which the first one's values begin at a place, then from others.

    They are so many splits further on. A sink of -inf is none.
    """
    step, most, at = dim + 2, np.float32(sink), start
    for split in range(n + n_others):  # places are added up: to multiply for each would take more registers
        if split == n:
            at = start + other * step
        most = larger(most, parts[at + dim])
        at += step
    total, value, at = exp(np.float32(sink) - most), np.float32(0), start
    for split in range(n + n_others):
        if split == n:
            at = start + other * step
        share = exp(parts[at + dim] - most)
        total = fma(parts[at + dim + 1], share, total)
        value = fma(parts[at + i], share, value)
        at += step
    return div(value, total)


@together
def merge_heads(inputs, t, row, first_head, n, own, other, parts, dim, n_splits, how, to):
    """Merge what two ranges of splits, from the first up to an end, gave n heads of token t: rows (tokens, width).

    Args:
        inputs: Of the pass.
        row: Of the first head among those of `parts`, see `attend`.
        first_head: Its first value begins a unit.
        how: See `MergeArgs`.
    """
    (first, end), (other_first, other_end) = own, other
    i, size, step = cuda.threadIdx.x % WARP, n * dim, n_splits * (dim + 2)
    first_unit, n_warps = cuda.threadIdx.x // WARP, cuda.blockDim.x // WARP
    at = row * step + first * (dim + 2)
    for j in range(WARP * first_unit + i, size, WARP * n_warps):
        head, number = quotient(j, dim), remainder(j, dim)
        sink = how.sinks[first_head + head] if how.has_sinks else np.float32(_NONE)
        n_others, start = other_end - other_first, at + head * step
        parts[start + number] = merged(parts, start, end - first, other_first - first, n_others, dim, number, sink)
    for unit in range(first_unit, (size + WARP - 1) // WARP, n_warps):  # of one loop the compiler would make three, at once
        value, j = np.float32(0), WARP * unit + i
        column = first_head * dim + j
        if j < size:
            value = parts[at + quotient(j, dim) * step + remainder(j, dim)]
            if how.gate_size:
                gate = how.gates[t * how.gate_stride + quotient(column, how.gate_size)]
                value = mul(value, softplus(gate) if how.is_softplus else sigmoid(gate))
        put(value, i, to, t * to.width + column, unit_of(inputs, t, column // WARP, to.width // WARP))
