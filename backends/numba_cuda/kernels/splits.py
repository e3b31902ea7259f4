"""Merging the results of splits of positions: the last block of a head to end merges them, in rising order."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import sigmoid, softplus
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, lane, record, together, warp_max, warp_sum
from augury.backends.numba_cuda.kernels.quantise import put, unit_of

_NONE = float("-inf")
SPLIT = 256  # positions
_AT_ONCE = 4  # splits, and values of each, that a thread reads before it mixes them
_N_HELD = _AT_ONCE * (_AT_ONCE + 1)
MergeArgs = record("MergeArgs", f="sinks gates", i="has_sinks gate_stride gate_size is_softplus")
"""Work beside merging.

`sinks` (n_heads,) are scores with nothing to mix, if `has_sinks`. Of `gates` (tokens, gate_stride) each multiplies `gate_size`
neighbouring values, through a softplus or sigmoid; with a size of 0 there are none.
"""


@lane
def n_joined(dim):
    """How many neighbouring heads of so many values, a multiple of 8, have whole units."""
    return 1 if dim % 32 == 0 else 2 if dim % 16 == 0 else 4


@lane
def merged(parts, start, n, dim, i, sink):
    """Value i of a head, from n splits of which the first one's values begin at a place. A sink of -inf is none."""
    step, most, at = dim + 2, np.float32(sink), start + dim
    for _ in range(n):  # places are added up: to multiply for each would take more registers
        most, at = gpu.larger(most, parts[at]), at + step
    total, value, at = gpu.exp(np.float32(sink) - most), np.float32(0), start
    for _ in range(n):
        share = gpu.exp(parts[at + dim] - most)
        total = gpu.fma(parts[at + dim + 1], share, total)
        value = gpu.fma(parts[at + i], share, value)
        at += step
    return gpu.div(value, total)


@lane
def _place(start, i, splits, step):
    """Where the values of the i-th split of a head begin: one of n from the first on, or of others from another one on."""
    first, n, first_other, _ = splits
    return start + (first + i if i < n else first_other + i - n) * step


@lane
def _largest(parts, start, splits, dim, i):
    """The largest score of every 32nd split, from the i-th on."""
    most = np.float32(_NONE)
    for split in range(i, splits[1] + splits[3], WARP):
        most = gpu.larger(most, parts[_place(start, split, splits, dim + 2) + dim])
    return most


@lane
def _sum_of_weights(parts, start, splits, dim, i, most):
    """The sum of the weights of every 32nd split, from the i-th on."""
    total = np.float32(0)
    for split in range(i, splits[1] + splits[3], WARP):
        at = _place(start, split, splits, dim + 2) + dim
        total = gpu.fma(parts[at + 1], gpu.exp(parts[at] - np.float32(most)), total)
    return total


@lane
def _mix(parts, start, splits, dim, first, most, held, mixed):
    """Make `mixed` four values of a head, every 32nd from the `first` on, of all splits, of which four are read at once."""
    n_all = splits[1] + splits[3]
    for i in range(_AT_ONCE):
        mixed[i] = np.float32(0)
    for split in range(0, n_all, _AT_ONCE):
        for j in range(_AT_ONCE):
            at = _place(start, min(split + j, n_all - 1), splits, dim + 2)
            for i in range(_AT_ONCE):
                held[_AT_ONCE * j + i] = parts[at + first + WARP * i] if first + WARP * i < dim else np.float32(0)
            held[_AT_ONCE * _AT_ONCE + j] = parts[at + dim]
        for j in range(_AT_ONCE):
            share = gpu.exp(held[_AT_ONCE * _AT_ONCE + j] - np.float32(most)) if split + j < n_all else np.float32(0)
            for i in range(_AT_ONCE):
                mixed[i] = gpu.fma(held[_AT_ONCE * j + i], share, mixed[i])


@lane
def _store(parts, start, dim, first, total, mixed):
    for i in range(_AT_ONCE):
        if first + WARP * i < dim:
            parts[start + first + WARP * i] = gpu.div(mixed[i], np.float32(total))


@together
def merge_head(parts, start, splits, dim, sink):
    """Let the first values of a head, which begin at a place, become the mix of some splits; a warp does.

    Args:
        splits: The first of them, and how many; the first of others that come after them, and how many.
        sink: A score with nothing to mix; -inf: none.
    """
    i = cuda.threadIdx.x % WARP
    held = cuda.local.array(_N_HELD, np.float32)
    mixed = cuda.local.array(_AT_ONCE, np.float32)
    most = gpu.larger(warp_max(_largest(parts, start, splits, dim, i)), sink)
    total = gpu.add(warp_sum(_sum_of_weights(parts, start, splits, dim, i, most)), gpu.exp(sink - most))
    for first in range(i, dim, WARP * _AT_ONCE):
        _mix(parts, start, splits, dim, first, most, held, mixed)
        _store(parts, start, dim, first, total, mixed)


@together
def put_heads(inputs, t, first_head, n, parts, start, dim, step, params, to):
    """Store n merged heads of token t in rows (tokens, width); a warp takes every so many units, as the block has warps.

    Args:
        first_head: Its first value begins a unit.
        start: Where in `parts` its values begin, and `step` further on those of the next head.
    """
    i, size = cuda.threadIdx.x % WARP, n * dim
    for unit in range(cuda.threadIdx.x // WARP, (size + WARP - 1) // WARP, cuda.blockDim.x // WARP):
        value, j = np.float32(0), WARP * unit + i
        column = first_head * dim + j
        if j < size:
            head = gpu.quotient(j, dim)
            value = parts[start + head * step + j - head * dim]
            if params.gate_size:
                gate = params.gates[t * params.gate_stride + gpu.quotient(column, params.gate_size)]
                value = gpu.mul(value, softplus(gate) if params.is_softplus else sigmoid(gate))
        put(value, i, to, t * to.width + column, unit_of(inputs, t, column // WARP, to.width // WARP))
