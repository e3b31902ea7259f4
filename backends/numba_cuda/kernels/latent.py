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


@kernel("jffffbhffbfj" + 16 * "i" + "rr")
def prepare_latents(
    inputs,
    rows,
    latent_norm,
    turned_norm,
    turns,
    codes,
    halves,
    heads,
    out,
    quantised,
    factors,
    sums,
    stride,
    n_latent,
    n_turned,
    n_pairs,
    offset,
    is_interleaved,
    latent_kind,
    turned_kind,
    kept_as,
    length,
    head_dim,
    size,
    width,
    n,
    as_floats,
    as_bytes,
    latent_eps,
    turned_eps,
):
    """Store latents, normed, and turned values; write the first `size` values of heads by themselves. A warp takes either.

    Args:
        inputs: Of the pass.
        rows: (tokens, stride), each beginning with latents, then values to turn.
        latent_norm, turned_norm: Weights, see `norm_rows`.
        turns: (positions, n_pairs, 2).
        codes, halves: Planes of a cache, see `cells`, (slots, length, …) each.
        heads: (tokens, stride), each beginning with heads of `head_dim` values.
        out: (n_heads * n, width), head by head.
        quantised, factors, sums: Units, as many as `out` has.
        n: Tokens that there is room for.
    """
    head, t, i = cuda.blockIdx.x - 1, cuda.blockIdx.y, cuda.threadIdx.x
    if t >= inputs[N_TOKENS]:
        return
    row, staged = cuda.shared.array(MAX_ROW, np.float32), cuda.shared.array(MAX_ROW, np.float32)
    parts = cuda.shared.array(1, np.float32)
    if head >= 0:
        for j in range(i, width, WARP):
            value = heads[t * stride + head * head_dim + j] if j < size else np.float32(0)
            if as_floats:
                out[(head * n + t) * width + j] = value
            if as_bytes:
                quantise(value, i, quantised, factors, sums, (head * n + t) * (width // WARP) + j // WARP)
        return
    start, dim = t * stride, n_latent + n_turned
    for j in range(i, n_turned, WARP):
        staged[j] = rows[start + n_latent + j]
    if turned_kind != NOTHING:
        norm_head(staged, turned_norm, 0, n_turned, turned_kind, turned_eps, parts)
    cuda.syncthreads()
    for j in range(i, n_turned, WARP):
        row[n_latent + j] = turned_value(
            staged, 0, turns, j, n_pairs, offset, is_interleaved, inputs[POSITIONS + t] * 2 * n_pairs
        )
    cuda.syncthreads()
    for j in range(i, n_latent, WARP):
        staged[j] = rows[start + j]
    norm_head(staged, latent_norm, 0, n_latent, latent_kind, latent_eps, parts)
    for j in range(i, n_latent, WARP):
        row[j] = staged[j]
    store_cell(row, staged, dim, kept_as, codes, halves, inputs[SLOTS + t] * length + inputs[CELLS + t])


@kernel("jfffbfj" + 11 * "i")
def merge_latents(
    inputs,
    parts,
    sinks,
    out,
    quantised,
    factors,
    sums,
    n_heads,
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
    """Merge the `size` values of each head that splits gave `n_merged` tokens, head by head; see `merge_heads`."""
    thread = cuda.threadIdx.x
    head, t = quotient(cuda.blockIdx.y, n_merged), remainder(cuda.blockIdx.y, n_merged)
    at, t = (t * n_heads + head) * n_splits * (size + 2), first_token + t
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
        value = merged(parts, at + first * (size + 2), last // SPLIT + 1 - first, 0, 0, size, i, sink)
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
