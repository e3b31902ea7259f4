"""Which rows of a pass go to which experts, and how what comes of them is added up.

A pass of n tokens with k experts each has n * k rows, row t * k + j of token t. They are sorted by expert, then by row, so that
those of one expert stand beside each other, in *places*; a few of them at a time are a tile, see `matmul`. What a row's
products are does not depend on the others, and a token's sum is taken in the order of its experts' ranks.

Routes are one array of int32, in sections of as many numbers as a pass has rows at most: four with the tiles, how many and
what `matmul` says of each; the experts of rows, the places of rows, the rows of places, and how many rows a tile has that
begins at a place.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.dialect import WARP, add, cuda, fma, kernel, lane, mul, quotient, remainder
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_among

EXPERTS, PLACES, SOURCES, STARTS, SECTIONS = 4, 5, 6, 7, 8


@lane
def token_at(routes, n_most, per_token, place):
    """The token whose row has a place."""
    return quotient(routes[SOURCES * n_most + place], per_token)


@kernel("jfffbfjjiiiiiii")
def gather_rows(
    inputs, x, weights, out, quantised, factors, sums, routes, n_most, k, width, n_apart, has_weights, as_floats, as_bytes
):
    """The token of every place, as floats (rows, width), as units, or both; times its weight, if `has_weights`.

    A warp takes 32 values. Units lie as `unit_among` says.
    """
    thread, place = cuda.threadIdx.x, cuda.blockIdx.y
    if place >= inputs[N_TOKENS] * k:
        return
    i = thread % WARP
    unit = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
    if WARP * unit >= width:
        return
    row = routes[SOURCES * n_most + place]
    t = quotient(row, k)
    value = x[t * width + WARP * unit + i]
    if has_weights:
        value = mul(value, weights[t + row])
    if as_floats:
        out[place * width + WARP * unit + i] = value
    if as_bytes:
        quantise(value, i, quantised, factors, sums, unit_among(n_apart, place, unit, width // WARP))


@lane
def _combined(rows, weights, routes, first, at, k, stride, i, is_weighed):
    """Value i of the sum of a token's rows."""
    total = np.float32(0)
    for j in range(k):
        weight = np.float32(1) if is_weighed else weights[at + j]
        total = fma(rows[routes[first + j] * stride + i], weight, total)
    return total


@lane
def _put_combined(routes, rows, weights, shared, y, n_most, k, n_weights, stride, t, i, is_weighed, has_shared, adds):
    """Store value i of what token t is given, or add it; see `combine`."""
    at = t * n_weights
    total = _combined(rows, weights, routes, PLACES * n_most + t * k, at, k, stride, i, is_weighed)
    if has_shared:
        total = fma(shared[t * stride + i], weights[at + n_weights - 1], total)
    y[t * stride + i] = add(y[t * stride + i], total) if adds else total


@lane
def combine(
    routes, rows, weights, shared, y, n_most, k, n_weights, stride, first, n, thread, n_threads, is_weighed, has_shared, adds
):
    """Values of y[t], n from the first on: the weighted sums of tokens' rows (places, stride), and of shared ones, or added.

    Args:
        routes: With all rows of a pass.
        weights: (tokens, n_weights), at the end the shared row's, which may be one of the k.
        shared, y: (tokens, stride).
    """
    n_tokens = quotient(routes[3 * routes[0]], k)  # the last tile ends with the last row
    value, end = np.int32(thread), np.int32(n * n_tokens)
    while value < end:  # a range would take more registers
        t, i = quotient(value, n), first + remainder(value, n)
        _put_combined(routes, rows, weights, shared, y, n_most, k, n_weights, stride, t, i, is_weighed, has_shared, adds)
        value = np.int32(value + n_threads)


@kernel("jjffff" + 7 * "i")
def combine_rows(inputs, routes, rows, weights, shared, y, n_most, k, n_weights, stride, is_weighed, has_shared, adds):
    """All values of y; see `combine`."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if t < inputs[N_TOKENS] and i < stride:
        _put_combined(routes, rows, weights, shared, y, n_most, k, n_weights, stride, t, i, is_weighed, has_shared, adds)
