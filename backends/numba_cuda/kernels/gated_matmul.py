"""Products of gate and up with a few tokens, activated in the same launch: see `sums` for the order of additions."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, slice_sums
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT
from augury.backends.numba_cuda.kernels.gate import put_gated
from augury.backends.numba_cuda.kernels.matmul import MOST_ROUTED, OF_ROUTES, product_of, tile_of_block
from augury.backends.numba_cuda.kernels.routes import token_at
from augury.backends.numba_cuda.kernels.sums import TILES, sums_of_cut_of

GATED_WARPS = UNIT // TILE_ROWS  # of a block, which multiplies 32 rows of gate, then those of up


@lane
def _tile_of(warp, half, unit, size):
    """The tile of rows that a warp multiplies for a unit of `size` gates, or of the ups after them; -1 beyond them."""
    n_tiles, tile = size // TILE_ROWS, GATED_WARPS * unit + warp
    return np.int32(n_tiles * half + tile) if tile < n_tiles else np.int32(-1)


def _multiply(fmt, n_tokens):
    sums_of_cut, n_staged = sums_of_cut_of(fmt, n_tokens, 1), 2 * UNIT * n_tokens
    kind_of_rows = np.int32 if n_tokens <= MOST_ROUTED else np.int64  # of 64 bits the compiler sees that they are neighbours

    @kernel("jwwwwff" + 10 * "i" + "rbfj" + 5 * "i" + 5 * "r", name=f"multiply_{fmt.name}_gated_{n_tokens}")
    def multiply(
        inputs,
        w,
        x,
        factors,
        halves,
        bias,
        y,
        n_rows,
        n_units,
        n_steps,
        n,
        stride,
        column,
        has_bias,
        which,
        n_most,
        per_token,
        scale,
        quantised,
        y_factors,
        y_sums,
        activation,
        has_up,
        limits_activated,
        as_floats,
        as_bytes,
        limit,
        a,
        b,
        c,
        d,
    ):
        """Y[t] = activation(gate) * up, as floats, as units, or both; the upper half of the rows of W are gates.

        Without `has_up` all are gates. A warp takes four rows of each half and `n_tokens` tokens, a block a whole unit; rows
        are not cut. What several matrices give a token may lie side by side: `column` is how many there are.

        Args:
            inputs, w, x, factors, halves, bias: See `matmul`.
            quantised, y_factors, y_sums: Units of what is gated.
            activation: And what follows it: see `gate`.
        """
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:
            return
        i, warp, unit, size = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP, cuda.blockIdx.x, n_rows // (1 + has_up)
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, kind_of_rows)
        for token in range(n_tokens):
            rows[token] = t + token
            if which == OF_ROUTES and n_tokens <= MOST_ROUTED:
                rows[token] = token_at(inputs, n_most, per_token, min(t + token, n_wanted - 1))
        staged = cuda.shared.array(n_staged, np.float32)
        for half in range(1 + has_up):
            tile = _tile_of(warp, half, unit, size)
            sums_of_cut(w, n, tile, 0, n_rows, n_steps, 1, matrix, n_units, x, factors, halves, rows, i, sums)
            slice_sums(sums, n_tokens)
            if tile >= 0:
                row, at = matrix * n_rows + TILE_ROWS * tile + i % TILE_ROWS, UNIT * half + TILE_ROWS * warp + i % TILE_ROWS
                for token in range(n_tokens):
                    if i // TILE_ROWS == token % TILE_UNITS:
                        staged[2 * UNIT * token + at] = product_of(sums[token], bias, row, has_bias, scale)
        cuda.syncthreads()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)  # anew: to keep them takes registers
        put_gated(
            staged,
            min(n_tokens, n_wanted - t),
            matrix if column else t,
            max(1, column),
            unit,
            size,
            y,
            quantised,
            y_factors,
            y_sums,
            stride,
            activation,
            has_up,
            limits_activated,
            as_floats,
            as_bytes,
            limit,
            a,
            b,
            c,
            d,
        )

    return multiply


MULTIPLY_GATED = {(name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""
