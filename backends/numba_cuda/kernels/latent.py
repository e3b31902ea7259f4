"""The parts of latent attention beside attending: heads' own matrices, and the way into and out of its cache.

Heads have a matrix each, see `matmul`: their rows lie head by head, row h * n + t of token t of n. Attention reads them token
by token.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import sigmoid
from augury.backends.numba_cuda.kernels.cells import StoreArgs, store_cell
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, record
from augury.backends.numba_cuda.kernels.heads import TurnArgs, norm_head, turned_value
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS, first_seen
from augury.backends.numba_cuda.kernels.norm import NOTHING, NormArgs
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_of
from augury.backends.numba_cuda.kernels.splits import SPLIT, merged

MAX_ROW = 640  # values that are kept of a position
_NONE = float("-inf")
LatentsArgs = record("LatentsArgs", f="rows heads", i="stride n_latent n_turned length head_dim size n")
"""Rows (tokens, stride) of latents, then values to turn, and rows of heads of `head_dim` values.

The first `size` values of heads go elsewhere, where there is room for n tokens. Caches have `length` cells.
"""


@kernel("jfiiii", TargetArgs)
def split_heads(inputs, x, stride, head_dim, size, n, to):
    """The first `size` values of heads of rows (tokens, stride), head by head; a warp takes 32."""
    row, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    head, t = gpu.quotient(row, n), gpu.remainder(row, n)
    if t >= inputs[N_TOKENS] or i >= to.width:
        return
    value = x[t * stride + head * head_dim + i] if i < size else np.float32(0)
    put(value, i % WARP, to, row * to.width + i, row * (to.width // WARP) + i // WARP)


@kernel("j", LatentsArgs, NormArgs, NormArgs, TurnArgs, StoreArgs, TargetArgs)
def prepare_latents(inputs, params, latent, turned, turn, cache, to):
    """Store latents, normed, and turned values; write the first values of heads by themselves. A warp takes either.

    Args:
        latent, turned: Norms of either.
        turn: The rope of the values to turn.
        cache: (slots, length, …).
        to: (n_heads * n, width), head by head.
    """
    rows, stride, n_latent, n_turned = params.rows, params.stride, params.n_latent, params.n_turned
    head, t, i = cuda.blockIdx.x - 1, cuda.blockIdx.y, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    row, staged = cuda.shared.array(MAX_ROW, np.float32), cuda.shared.array(MAX_ROW, np.float32)
    parts = cuda.shared.array(1, np.float32)
    if head >= 0:
        for j in range(i, to.width, WARP):
            value = params.heads[t * stride + head * params.head_dim + j] if j < params.size else np.float32(0)
            put(value, i, to, (head * params.n + t) * to.width + j, (head * params.n + t) * (to.width // WARP) + j // WARP)
        return
    start = t * stride
    for j in range(i, n_turned, WARP):
        staged[j] = rows[start + n_latent + j]
    if turned.kind != NOTHING:
        norm_head(staged, turned, 0, n_turned, parts)
    cuda.syncthreads()
    for j in range(i, n_turned, WARP):
        row[n_latent + j] = turned_value(staged, 0, turn, j, inputs[POSITIONS + t] * 2 * turn.n_pairs)
    cuda.syncthreads()
    for j in range(i, n_latent, WARP):
        staged[j] = rows[start + j]
    norm_head(staged, latent, 0, n_latent, parts)
    for j in range(i, n_latent, WARP):
        row[j] = staged[j]
    store_cell(row, staged, n_latent + n_turned, cache, inputs[SLOTS + t] * params.length + inputs[CELLS + t])


@kernel("jff" + 8 * "i", TargetArgs)
def merge_latents(inputs, parts, sinks, n_heads, n_splits, window, size, n, has_sinks, first_token, n_merged, to):
    """Merge the `size` values of each head that splits gave `n_merged` tokens, head by head; see `merged`."""
    i, head = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, gpu.quotient(cuda.blockIdx.y, n_merged)
    t = gpu.remainder(cuda.blockIdx.y, n_merged)
    at, t = (t * n_heads + head) * n_splits * (size + 2), first_token + t
    if t >= inputs[N_TOKENS] or i >= to.width:
        return
    row, last, value = head * n + t, inputs[POSITIONS + t], np.float32(0)
    if i < size:
        first = first_seen(last, window) // SPLIT
        sink = sinks[head] if has_sinks else np.float32(_NONE)
        value = merged(parts, at + first * (size + 2), last // SPLIT + 1 - first, size, i, sink)
    put(value, i % WARP, to, row * to.width + i, row * (to.width // WARP) + i // WARP)


@kernel("jff" + 5 * "i", TargetArgs)
def join_heads(inputs, x, gates, size, n_values, n, gate_stride, gate_size, to):
    """Rows of heads (n_heads * n, size), token by token, times sigmoid(gates) of `gate_size` values each (0: none)."""
    t, i, value = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, np.float32(0)
    if t >= inputs[N_TOKENS] or i >= to.width:
        return
    if i < n_values:
        value = x[(gpu.quotient(i, size) * n + t) * size + gpu.remainder(i, size)]
        if gate_size:
            value = gpu.mul(value, sigmoid(gates[t * gate_stride + gpu.quotient(i, gate_size)]))
    put(value, i % WARP, to, t * to.width + i, unit_of(inputs, t, i // WARP, to.width // WARP))
