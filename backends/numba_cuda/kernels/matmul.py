"""Products of a matrix and a few tokens, and what else their launch does: see `sums` for the order of additions."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    add,
    cuda,
    is_last_block,
    kernel,
    lane,
    mul,
    quotient,
    remainder,
    slice_sums,
)
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS
from augury.backends.numba_cuda.kernels.inputs import N_ROWS, N_TOKENS
from augury.backends.numba_cuda.kernels.routes import combine, token_at
from augury.backends.numba_cuda.kernels.sums import TILES, add_cuts, sums_of_cut_of

MOST_ROUTED = 4  # tokens of a tile whose rows are wherever routes say: of more, places would take too many registers
MOST_CUTS = 8
STORE, ADD, COMBINED = range(3)  # what is done with a product
OF_TOKENS, OF_OUTPUT, OF_TILES, OF_ROUTES = range(4)  # which rows of x are multiplied
HAS_BIAS, HAS_SCALES = 1, 2
PARAMETERS = "jwwwwff" + 10 * "i" + "r"  # of a kernel, see `multiply`
OF_COMBINED = "fffw" + 6 * "i"  # of those that also add up what several matrices give a token


@lane
def product_of(total, bias, row, has_bias, scale):
    """A product, whose sum this is."""
    value = mul(total, np.float32(scale))
    if has_bias == HAS_BIAS:
        return add(value, bias[row])
    return add(mul(value, bias[2 * row + 1]), bias[2 * row]) if has_bias else value


@lane
def put(y, place, total, bias, row, has_bias, mode, scale):
    """Store a product, or add it to what is there."""
    value = product_of(total, bias, row, has_bias, scale)
    y[place] = add(y[place], value) if mode == ADD else value


@lane
def put_rows(sums, n_tokens, tile, i, n_rows, t, n, y, stride, column, bias, first, has_bias, mode, scale):
    """Store a tile's products with at most n_tokens of n tokens, or add them; eight lanes share a row's."""
    row = TILE_ROWS * tile + i % TILE_ROWS
    if row < n_rows:
        for token in range(n_tokens):
            if i // TILE_ROWS == token % TILE_UNITS and t + token < n:
                put(y, (t + token) * stride + column + row, sums[token], bias, first + row, has_bias, mode, scale)


@lane
def tokens_of_block(inputs, which, block, n_tokens):
    """The only matrix, the first token that a block multiplies, and the one after the last of a pass."""
    return 0, block * n_tokens, inputs[N_ROWS] if which == OF_OUTPUT else inputs[N_TOKENS]


@lane
def tile_of_block(inputs, which, block, n_tokens):
    """Which of several matrices a block multiplies by, the first row of x that it takes, and the one after the last, if any."""
    if which < OF_TILES:
        return tokens_of_block(inputs, which, block, n_tokens)
    if block >= inputs[0]:
        return 0, 0, 0
    return inputs[1 + 3 * block], inputs[2 + 3 * block], inputs[3 + 3 * block]


@lane
def _rows_of_block(block, n_warps, n_cuts, n_rows):
    """The first row that a block's warps multiply by, and how many there are."""
    n = TILE_ROWS * quotient(n_warps, n_cuts)
    return block * n, min(n, n_rows - block * n)


def _multiply(fmt, n_tokens):
    sums_of_cut, n_staged = sums_of_cut_of(fmt, n_tokens), MOST_CUTS * WARP * n_tokens
    kind_of_rows = np.int32 if n_tokens <= MOST_ROUTED else np.int64  # of 64 bits the compiler sees that they are neighbours

    @kernel(PARAMETERS + OF_COMBINED, name=f"multiply_{fmt.name}_{n_tokens}")
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
        n_cuts,
        stride,
        column,
        has_bias,
        mode,
        which,
        scale,
        weights,
        shared,
        combined,
        counters,
        n_most,
        per_token,
        n_weights,
        is_weighed,
        has_shared,
        adds,
    ):
        """Y[t, column + row] = scale * (W x[t]) + bias, or that added; a warp takes a cut of four rows and `n_tokens` tokens.

        Or the last block that multiplies by some rows of all W adds up what comes of them, token by token.

        Args:
            inputs: Of the pass. Of tiles: how many, then of each which of several matrices W, its first row of x, the one after
                its last; of routes the same, but rows of x are tokens, see `routes`.
            w: The planes of W, or of several, one below the other, each in whole tiles.
            x: Units of all tokens, see `quantise`: bytes, `factors`, and sums of `halves`; for weights that are floats, floats.
            n_rows, n_units, n_steps: Rows of W, units of a row, tiles along it.
            n: Units of W in whole tiles.
            n_cuts: Of a row, at most as many as a block has warps.
            bias: By row; of several matrices a bias and a scale of each row, if they have scales.
            y, stride, column: Where to.
            weights, shared, combined: And what follows: see `combine`.
            counters: One for each block along the rows.
        """
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:  # most of a prompt has no logits
            return
        thread = cuda.threadIdx.x
        i = thread % WARP
        warp = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        tile, cut = quotient(warp, n_cuts), remainder(warp, n_cuts)
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, kind_of_rows)
        for token in range(n_tokens):
            rows[token] = t + token
            if which == OF_ROUTES and n_tokens <= MOST_ROUTED:
                rows[token] = token_at(inputs, n_most, per_token, min(t + token, n_wanted - 1))
        sums_of_cut(w, n, tile, cut, n_rows, n_steps, n_cuts, matrix, n_units, x, factors, halves, rows, i, sums)
        is_there = tile >= 0 and TILE_ROWS * tile < n_rows
        staged = cuda.shared.array(n_staged, np.float32)
        if n_cuts > 1:
            add_cuts(sums, staged, cut, n_cuts, n_tokens)
        if cut == 0:
            slice_sums(sums, n_tokens)
        if cut == 0 and is_there:
            first = matrix * n_rows
            put_rows(sums, n_tokens, tile, i, n_rows, t, n_wanted, y, stride, column, bias, first, has_bias, mode, scale)
        if mode == COMBINED and is_last_block(counters, cuda.blockIdx.x, inputs[0]):
            first, n = _rows_of_block(cuda.blockIdx.x, cuda.blockDim.x // WARP, n_cuts, n_rows)
            step = cuda.blockDim.x
            combine(
                inputs,
                y,
                weights,
                shared,
                combined,
                n_most,
                per_token,
                n_weights,
                stride,
                first,
                n,
                thread,
                step,
                is_weighed,
                has_shared,
                adds,
            )

    return multiply


MULTIPLY = {(name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""
