"""What latent attention does beside attending: of heads what each is multiplied with, and the way into and out of its cache.

Heads have a matrix each, see `matmul`: their rows lie head by head, row h * n + t of token t of n. What attends reads them
token by token.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import sigmoid
from augury.backends.numba_cuda.kernels.attention import SPLIT
from augury.backends.numba_cuda.kernels.cells import store_cell
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, mul, quotient, remainder
from augury.backends.numba_cuda.kernels.heads import norm_head, turned_value
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, POSITIONS, SLOTS, first_seen
from augury.backends.numba_cuda.kernels.norm import NOTHING
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of
from augury.backends.numba_cuda.kernels.splits import merged

MAX_ROW = 640  # values that are kept of a position
_NONE = float("-inf")


@kernel("jffbfj" + 7 * "i")
def split_heads(inputs, x, out, quantised, factors, sums, stride, head_dim, size, width, n, as_floats, as_bytes):
    """The first `size` values of heads of rows (tokens, stride), head by head, as floats, units, or both; a warp takes 32."""
    row, thread = cuda.blockIdx.y, cuda.threadIdx.x
    head, t = quotient(row, n), remainder(row, n)
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if t >= inputs[N_TOKENS] or WARP * unit >= width:
        return
    i = WARP * unit + thread % WARP
    value = x[t * stride + head * head_dim + i] if i < size else np.float32(0)
    if as_floats:
        out[row * width + i] = value
    if as_bytes:
        quantise(value, thread % WARP, quantised, factors, sums, row * (width // WARP) + unit)


@kernel("j" + 8 * "f" + "bh" + 15 * "i" + "rr")
def prepare_latents(
    inputs,
    kept,
    heads,
    absorbed,
    queries,
    latent_norm,
    turned_norm,
    turns,
    factors,
    codes,
    halves,
    kept_stride,
    heads_stride,
    n_heads,
    head_dim,
    n_latent,
    n_turned,
    n_pairs,
    offset,
    is_interleaved,
    latent_kind,
    turned_kind,
    has_factors,
    kept_as,
    length,
    n,
    latent_eps,
    turned_eps,
):
    """Store latents, normed, and turned values; put queries together. A warp takes one head of one token, or what is kept.

    Args:
        inputs: Of the pass.
        kept: (tokens, kept_stride), each latents, then values to turn.
        heads: (tokens, heads_stride), of each head at the end values to turn.
        absorbed: (n_heads * n, n_latent), the first part of queries, head by head.
        queries: (tokens, n_heads, n_latent + n_turned).
        latent_norm, turned_norm: Weights, see `norm_rows`.
        turns: (positions, n_pairs, 2).
        factors: (positions,) what queries are multiplied with.
        codes, halves: Planes of a cache, see `cells`, (slots, length, …) each.
        n: Tokens that there is room for.
    """
    t, head, i = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    row, staged = cuda.shared.array(MAX_ROW, np.float32), cuda.shared.array(MAX_ROW, np.float32)
    parts = cuda.shared.array(1, np.float32)
    is_query = head < n_heads
    position, dim = inputs[POSITIONS + t], n_latent + n_turned
    turns_at = position * 2 * n_pairs
    source, start = kept, t * kept_stride + n_latent
    if is_query:
        source, start = heads, t * heads_stride + (head + 1) * head_dim - n_turned
    for j in range(i, n_turned, WARP):
        staged[j] = source[start + j]
    if not is_query and turned_kind != NOTHING:
        norm_head(staged, turned_norm, 0, n_turned, turned_kind, turned_eps, parts)
    cuda.syncthreads()
    for j in range(i, n_turned, WARP):
        row[n_latent + j] = turned_value(staged, turns, j, n_pairs, offset, is_interleaved, turns_at)
    if is_query:
        factor = factors[position] if has_factors else np.float32(1)
        to = (t * n_heads + head) * dim
        for j in range(i, n_latent, WARP):
            queries[to + j] = mul(absorbed[(head * n + t) * n_latent + j], factor)
        for j in range(n_latent + i, dim, WARP):
            queries[to + j] = mul(row[j], factor)
        return
    cuda.syncthreads()
    for j in range(i, n_latent, WARP):
        staged[j] = kept[t * kept_stride + j]
    norm_head(staged, latent_norm, 0, n_latent, latent_kind, latent_eps, parts)
    for j in range(i, n_latent, WARP):
        row[j] = staged[j]
    cuda.syncthreads()
    store_cell(row, staged, dim, kept_as, codes, halves, inputs[SLOTS + t] * length + inputs[CELLS + t])


@kernel("jfffbfj" + 12 * "i")
def merge_latents(
    inputs,
    parts,
    sinks,
    out,
    quantised,
    factors,
    sums,
    n_heads,
    dim,
    n_splits,
    window,
    size,
    width,
    n,
    has_sinks,
    first_token,
    n_merged,
    as_floats,
    as_bytes,
):
    """Merge the first `size` of `dim` values that splits gave `n_merged` tokens, head by head; see `merge_heads`."""
    thread = cuda.threadIdx.x
    head, t = quotient(cuda.blockIdx.y, n_merged), remainder(cuda.blockIdx.y, n_merged)
    at, t = (t * n_heads + head) * n_splits * (dim + 2), first_token + t
    row = head * n + t
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if t >= inputs[N_TOKENS] or WARP * unit >= width:
        return
    i = WARP * unit + thread % WARP
    last = inputs[POSITIONS + t]
    value = np.float32(0)
    if i < size:
        first = first_seen(last, window) // SPLIT
        sink = sinks[head] if has_sinks else np.float32(_NONE)
        value = merged(parts, at + first * (dim + 2), last // SPLIT + 1 - first, 0, 0, dim, i, sink)
    if as_floats:
        out[row * width + i] = value
    if as_bytes:
        quantise(value, thread % WARP, quantised, factors, sums, row * (width // WARP) + unit)


@kernel("jfffbfj" + 8 * "i")
def join_heads(
    inputs, x, gates, out, quantised, factors, sums, size, n_values, width, n, gate_stride, gate_size, as_floats, as_bytes
):
    """Rows of heads (n_heads * n, size), token by token, times sigmoid(gates) of `gate_size` values each (0: none)."""
    t, thread = cuda.blockIdx.y, cuda.threadIdx.x
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if t >= inputs[N_TOKENS] or WARP * unit >= width:
        return
    i = WARP * unit + thread % WARP
    value = np.float32(0)
    if i < n_values:
        value = x[(quotient(i, size) * n + t) * size + remainder(i, size)]
        if gate_size:
            value = mul(value, sigmoid(gates[t * gate_stride + quotient(i, gate_size)]))
    if as_floats:
        out[t * width + i] = value
    if as_bytes:
        quantise(value, thread % WARP, quantised, factors, sums, unit_of(inputs, t, unit, width // WARP))
