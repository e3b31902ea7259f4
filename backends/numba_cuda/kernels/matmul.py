"""Products of a matrix and a few tokens, in one order of additions, whichever kernel computes them.

A row has 8 slices: slice s takes the units s, s + 8, s + 16 … of 32 weights in turn. A unit of a quantised type adds a whole
number, exact in whatever order its bytes are multiplied, times factors; one of floats adds its products one after another. Then
neighbouring slices are added, then pairs of them, then fours. None of this depends on how many tokens there are.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import (
    SLICES,
    WARP,
    add,
    cuda,
    dp4a,
    float_of,
    fma,
    kernel,
    lane,
    load16,
    mul,
    slice_sums,
)
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE, TILE_ROWS, floats_of
from augury.backends.numba_cuda.kernels.inputs import N_ROWS, N_TOKENS

TILES = (1, 2, 4, 8)  # tokens that share one reading of the weights
STORE, ADD = 0, 1  # what is done with a product
OF_TOKENS, OF_OUTPUT, OF_TILES = range(3)  # which rows of x are multiplied
HAS_BIAS, HAS_SCALES = 1, 2


def _quantised_sums(fmt, n_tokens):
    weights, numbers, offset, has_least = fmt.weights, fmt.numbers, fmt.offset, fmt.has_least

    @lane
    def sums_of(w, n, first, n_units, n_steps, s, quantised, factors, halves, t, sums):
        for step in range(n_steps):
            unit = SLICES * step + s
            if unit < n_units:
                u = first + TILE * step
                a, b, c, d, e, f, g, h = weights(w, n, u)
                factor, scale, other_scale, least, least_scale, other_least_scale = numbers(w, n, u)
                for i in range(n_tokens):
                    place = (t + i) * n_units + unit
                    p, q, r, v = load16(quantised, 8 * place)
                    low = dp4a(d, v, dp4a(c, r, dp4a(b, q, dp4a(a, p, np.int32(0)))))
                    p, q, r, v = load16(quantised, 8 * place + 4)
                    high = dp4a(h, v, dp4a(g, r, dp4a(f, q, dp4a(e, p, np.int32(0)))))
                    x_low, x_high, x_factor = halves[2 * place], halves[2 * place + 1], factors[place]
                    whole = scale * (low - offset * x_low) + other_scale * (high - offset * x_high)
                    sums[i] = fma(np.float32(np.int32(whole)), mul(factor, x_factor), sums[i])
                    if has_least:
                        whole = least_scale * x_low + other_least_scale * x_high
                        sums[i] = fma(np.float32(np.int32(whole)), mul(least, x_factor), sums[i])

    return sums_of


def _float_sums(fmt, n_tokens):
    four = floats_of(fmt.name)

    @lane
    def sums_of(w, n, first, n_units, n_steps, s, x, factors, halves, t, sums):
        for step in range(n_steps):
            unit = SLICES * step + s
            if unit < n_units:
                u = first + TILE * step
                for i in range(8):
                    a, b, c, d = four(w, n, u, i)
                    for token in range(n_tokens):
                        p, q, r, v = load16(x, ((t + token) * n_units + unit) * 32 + 4 * i)
                        total = fma(b, float_of(q), fma(a, float_of(p), sums[token]))
                        sums[token] = fma(d, float_of(v), fma(c, float_of(r), total))

    return sums_of


def _multiply(fmt, n_tokens):
    sums_of = (_float_sums if fmt.is_float else _quantised_sums)(fmt, n_tokens)

    @kernel("jwwfjffiiiiiiiiir", name=f"multiply_{fmt.name}_{n_tokens}")
    def multiply(
        inputs, w, x, factors, halves, bias, y, n_rows, n_units, n_steps, n, stride, column, has_bias, mode, which, scale
    ):
        """Y[t, column + row] = scale * (W x[t]) + bias, or that added; a warp takes four rows and `n_tokens` tokens.

        Args:
            inputs: Of the pass. Of tiles: how many, then of each which of several matrices W, its first row of x, the one after
                its last.
            w: The planes of W, or of several, one below the other, each in whole tiles.
            x: Units of all tokens: bytes, `factors`, and sums of `halves`; for weights that are floats, floats.
            n_rows, n_units, n_steps: Rows of W, units of a row, tiles along it.
            n: Units of W in whole tiles.
            bias: By row; of several matrices a bias and a scale of each row, if they have scales.
            y, stride, column: Where to.
        """
        thread = cuda.threadIdx.x
        warp = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        i = thread % WARP
        matrix, t = 0, cuda.blockIdx.y * n_tokens
        n_wanted = inputs[N_ROWS] if which == OF_OUTPUT else inputs[N_TOKENS]
        if which == OF_TILES:
            tile = cuda.blockIdx.y
            if tile >= inputs[0]:
                return
            matrix, t, n_wanted = inputs[1 + 3 * tile], inputs[2 + 3 * tile], inputs[3 + 3 * tile]
        if TILE_ROWS * warp >= n_rows or t >= n_wanted:  # most of a prompt has no logits
            return
        first = matrix * ((n_rows + TILE_ROWS - 1) // TILE_ROWS) + warp
        sums = cuda.local.array(n_tokens, np.float32)
        for token in range(n_tokens):
            sums[token] = np.float32(0)
        s = i % SLICES
        sums_of(w, n, first * n_steps * TILE + i, n_units, n_steps, s, x, factors, halves, t, sums)
        slice_sums(sums, n_tokens)
        row = TILE_ROWS * warp + i // SLICES
        if row < n_rows:
            for token in range(n_tokens):
                if s == token % SLICES and t + token < n_wanted:
                    place = (t + token) * stride + column + row
                    value = mul(sums[token], np.float32(scale))
                    if has_bias == HAS_BIAS:
                        value = add(value, bias[matrix * n_rows + row])
                    elif has_bias:
                        place_of_row = 2 * (matrix * n_rows + row)
                        value = add(mul(value, bias[place_of_row + 1]), bias[place_of_row])
                    y[place] = add(y[place], value) if mode == ADD else value

    return multiply


MULTIPLY = {(name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""


def _look_up(fmt):
    if fmt.is_float:
        four = floats_of(fmt.name)

        @lane
        def unit_of(w, n, u, out, start, size, scale):
            for i in range(8):
                values = four(w, n, u, i)
                for j in range(4):
                    if 4 * i + j < size:
                        out[start + 4 * i + j] = mul(values[j], scale)
    else:
        weights, numbers, offset = fmt.weights, fmt.numbers, fmt.offset

        @lane
        def unit_of(w, n, u, out, start, size, scale):
            words = weights(w, n, u)
            factor, first, second, least, third, fourth = numbers(w, n, u)
            for i in range(8):
                by, from_least = (first, third) if i < 4 else (second, fourth)
                for j in range(4):
                    byte = (np.int32(words[i] >> np.uint32(8 * j) & np.uint32(0xFF)) ^ 128) - 128
                    value = mul(mul(factor, np.float32(by)), np.float32(np.int32(byte - offset)))
                    value = add(value, mul(least, np.float32(from_least)))
                    out[start + 4 * i + j] = mul(value, scale)

    return unit_of


LOOK_UP = {name: _look_up(fmt) for name, fmt in FORMATS.items()}
"""Lane functions (array, units, unit, out, start, size, scale) that write up to 32 weights, by type."""
