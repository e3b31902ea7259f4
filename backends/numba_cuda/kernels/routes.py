"""Which rows of a pass go to which experts, and how the experts' rows are added up.

A pass of n tokens with k experts each has n * k rows, row t * k + j of token t. They are sorted by expert, then by row, so that
rows of one expert stand beside each other, in *places*; a few of them at a time are a tile, see `matmul`. A row's products do
not depend on the others, and a token's sum is taken in the order of its experts' ranks.

Routes are one array of int32, in sections of as many numbers as a pass has rows at most: four with the tiles, how many and the
words of each for `matmul`; the experts of rows, the places of rows, the rows of places, and which tile begins at a place: 32
times its expert, and how many rows it has.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, record
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_among

EXPERTS, PLACES, SOURCES, STARTS, SECTIONS = 4, 5, 6, 7, 8
CombineArgs = record("CombineArgs", f="weights shared y", i="n_most k n_weights is_weighed has_shared adds")
"""How rows are added up.

`weights` (tokens, n_weights) are of the k rows of a token, and at the end of the shared row, which may be one of the k.
`shared` and `y` are (tokens, stride); y is added to, if `adds`. `n_most` is how many rows a pass has at most.
"""


@lane
def token_at(routes, n_most, per_token, place):
    """The token whose row has a place."""
    return gpu.quotient(routes[SOURCES * n_most + place], per_token)


@kernel("jffjiiii", TargetArgs)
def gather_rows(inputs, x, weights, routes, n_most, k, n_apart, has_weights, to):
    """The token of every place, times its weight, if `has_weights`; a warp takes 32 values. Units lie as `unit_among` says."""
    place, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if place >= inputs[N_TOKENS] * k or i >= to.width:
        return
    row = routes[SOURCES * n_most + place]
    t = gpu.quotient(row, k)
    value = x[t * to.width + i]
    if has_weights:
        value = gpu.mul(value, weights[t + row])
    put(value, i % WARP, to, place * to.width + i, unit_among(n_apart, place, i // WARP, to.width // WARP))


@lane
def _put_combined(routes, rows, stride, params, t, i):
    """Store value i of token t's sum, or add it; see `CombineArgs`."""
    total, at = np.float32(0), t * params.n_weights
    for j in range(params.k):
        weight = np.float32(1) if params.is_weighed else params.weights[at + j]
        total = gpu.fma(rows[routes[PLACES * params.n_most + t * params.k + j] * stride + i], weight, total)
    if params.has_shared:
        total = gpu.fma(params.shared[t * stride + i], params.weights[at + params.n_weights - 1], total)
    params.y[t * stride + i] = gpu.add(params.y[t * stride + i], total) if params.adds else total


@lane
def combine(routes, rows, stride, params, first, n, thread, n_threads):
    """Values of y[t], n from the first on: the weighted sums of tokens' rows (places, stride), and of shared ones."""
    n_tokens = gpu.quotient(routes[3 * routes[0]], params.k)  # the last tile ends with the last row
    value, end = np.int32(thread), np.int32(n * n_tokens)
    while value < end:  # a range would take more registers
        t, i = gpu.quotient(value, n), first + gpu.remainder(value, n)
        _put_combined(routes, rows, stride, params, t, i)
        value = np.int32(value + n_threads)


@kernel("jjfi", CombineArgs)
def combine_rows(inputs, routes, rows, stride, params):
    """All values of y; see `combine`."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if t < inputs[N_TOKENS] and i < stride:
        _put_combined(routes, rows, stride, params, t, i)
