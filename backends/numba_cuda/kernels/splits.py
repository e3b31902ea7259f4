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
    remainder,
    together,
)
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of

_NONE = float("-inf")


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


@lane
def _opened(gate, is_softplus):
    return softplus(gate) if is_softplus else sigmoid(gate)


@together
def merge_heads(
    inputs,
    t,
    row,
    first_head,
    n,
    first,
    end,
    other_first,
    other_end,
    parts,
    sinks,
    out,
    quantised,
    factors,
    sums,
    gates,
    n_heads,
    dim,
    n_splits,
    width,
    has_sinks,
    gate_stride,
    gate_size,
    is_softplus,
    as_floats,
    as_bytes,
):
    """Merge what two ranges of splits gave n heads of token t, as floats (tokens, width), as units, or both.

    Args:
        inputs: Of the pass.
        row: Of token t among those of `parts`.
        first_head: Its first value begins a unit.
        parts: See `attend`.
        sinks: (n_heads,) scores with nothing to mix, if `has_sinks`.
        gates: (tokens, gate_stride): each multiplies `gate_size` neighbouring values; 0: there are none.
    """
    i, size, step = cuda.threadIdx.x % WARP, n * dim, n_splits * (dim + 2)
    first_unit, n_warps = cuda.threadIdx.x // WARP, cuda.blockDim.x // WARP
    at = (row * n_heads + first_head) * step + first * (dim + 2)
    for j in range(WARP * first_unit + i, size, WARP * n_warps):
        head = quotient(j, dim)
        sink = sinks[first_head + head] if has_sinks else np.float32(_NONE)
        value = merged(
            parts, at + head * step, end - first, other_first - first, other_end - other_first, dim, remainder(j, dim), sink
        )
        parts[at + head * step + remainder(j, dim)] = value  # which no other thread reads
    for unit in range(first_unit, (size + WARP - 1) // WARP, n_warps):  # of one loop the compiler would make three, at once
        value, j = np.float32(0), WARP * unit + i
        to = first_head * dim + j
        if j < size:
            value = parts[at + quotient(j, dim) * step + remainder(j, dim)]
            if gate_size:
                value = mul(value, _opened(gates[t * gate_stride + quotient(to, gate_size)], is_softplus))
        if as_floats:
            out[t * width + to] = value
        if as_bytes:
            quantise(value, i, quantised, factors, sums, unit_of(inputs, t, to // WARP, width // WARP))
