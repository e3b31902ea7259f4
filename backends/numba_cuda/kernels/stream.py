"""Products of a matrix and any number of tokens, as halves on tensor cores: one order of additions for 1 token and for 512.

A slice of a row is one chain of `mma.m16n8k16` in the order of columns, whose sums are float32. Its sum is multiplied with the
power of two of the token's slice, and slices are added in turn, each addition rounded. A column of an instruction depends on no
other, so products depend neither on how many tokens there are nor on which.

A block takes 16 rows of W and 8, 16, 32 or 64 tokens, a warp of it a slice. See `halves` for the operands.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import SLICES, WARP, cuda, kernel, lane, mma_halves, record, together
from augury.backends.numba_cuda.kernels.formats import FORMATS, UNIT
from augury.backends.numba_cuda.kernels.halves import (
    GROUP,
    HEADER,
    MATRIX_ROWS,
    X_WORDS,
    RowsArgs,
    place_of,
    places_of,
    read_of,
    row_words,
    step_words,
    weights_of,
)
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.matmul import OF_TOKENS, put, tile_of_block

STREAM_TILES = (8, 16, 32, 64)  # tokens that share one reading of the weights
HALVED = {name: fmt for name, fmt in FORMATS.items() if name != "F32"}
"""The types of weights that are multiplied so: of float32 the nearest halves would lose too much."""

HalvesArgs = record("HalvesArgs", w="words", f="bias", i="n_rows n_steps n_of_slice has_bias", r="scale")
"""A matrix W, or several, one below the other, each in whole tiles of 16 rows; see `sums.MatrixArgs`.

A row has `n_steps` steps, a slice of it `n_of_slice`.
"""


@lane
def _after(at, n):
    """Places so many words further on."""
    return at[0] + n, at[1] + n, at[2] + n


def _add_step(fmt, n_groups):
    """The function that adds the products of a step's 64 columns of 16 rows, and of tokens, to a lane's sums."""
    weights = weights_of(fmt)

    @together
    def add(sums, at, a, b, c, d, p, q):
        sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_halves(
            a, b, c, d, p, q, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
        )

    @together
    def add_step(held, i, x, place, sums):
        w = weights(held, i)
        for j in range(n_groups):
            v = row_words(x, place + X_WORDS * j)
            add(sums, 4 * j, w[0], w[1], w[2], w[3], v[0], v[1])
            add(sums, 4 * j, w[4], w[5], w[6], w[7], v[2], v[3])
            add(sums, 4 * j, w[8], w[9], w[10], w[11], v[4], v[5])
            add(sums, 4 * j, w[12], w[13], w[14], w[15], v[6], v[7])

    return add_step


def _multiply(fmt, n_tokens):
    n_groups, n_sums, n_staged = n_tokens // GROUP, 4 * n_tokens // GROUP, MATRIX_ROWS * n_tokens
    read, add_step, n_words, n_shared = read_of(fmt), _add_step(fmt, n_groups), step_words(fmt), SLICES * n_staged

    @kernel("j", HalvesArgs, RowsArgs, "fiiii", name=f"multiply_{fmt.name}_halves_{n_tokens}")
    def multiply(inputs, w, x, y, stride, column, mode, which):
        """Y[t, column + row] = scale * (W x[t]) + bias, or that added; see `matmul`, also for arguments.

        Args:
            inputs, w, y, stride, column, mode, which: As there.
            x: See `halves.halve_rows`.
        """
        n_steps, thread = w.n_steps, np.uint32(cuda.threadIdx.x)
        n_tiles = (w.n_rows + MATRIX_ROWS - 1) // MATRIX_ROWS
        if which == OF_TOKENS and cuda.blockIdx.y == 0 and thread == 0:
            first = np.uint32(HEADER + cuda.blockIdx.x * n_steps * n_words)
            gpu.bring_near(w.words, gpu.index_of(first), np.uint32(4 * n_steps * n_words))
        gpu.wait_for_launch()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:
            return
        i, s = thread % np.uint32(WARP), thread // np.uint32(WARP)
        sums = cuda.local.array(n_sums, np.float32)
        for j in range(n_sums):
            sums[j] = np.float32(0)
        row = min(t + i // 4, n_wanted - 1) if n_groups == 1 else t + i // 4  # of more, a tile begins with a whole group
        step, end = np.int32(w.n_of_slice * s), np.int32(min(n_steps, w.n_of_slice * (s + 1)))
        at = places_of(np.uint32(HEADER + ((matrix * n_tiles + cuda.blockIdx.x) * n_steps + step) * n_words), i)
        x_step = gpu.index_of(np.uint32(X_WORDS * x.n_groups))
        place, held = place_of(row, i) + step * x_step, read(w.words, at)
        while step + 1 < end:
            ahead = read(w.words, _after(at, n_words))
            add_step(held, i, x.halves, place, sums)
            at = _after(at, 2 * n_words)
            if step + 2 < end:
                held = read(w.words, at)
            add_step(ahead, i, x.halves, place + x_step, sums)
            step, place = np.int32(step + 2), place + 2 * x_step
        if step < end:
            add_step(held, i, x.halves, place, sums)
        staged, n_slices = cuda.shared.array(n_shared, np.float32), cuda.blockDim.x // WARP
        for j in range(n_groups):
            for k in range(4):
                token = np.uint32(GROUP * j + i % 4 * 2 + k % 2)
                row = min(t + token, n_wanted - 1)
                staged[s * n_staged + token * MATRIX_ROWS + i // 4 + k // 2 * 8] = gpu.mul(
                    sums[4 * j + k], x.powers[row * n_slices + s]
                )
        cuda.syncthreads()
        power = gpu.float_of(w.words[0])
        for place in range(thread, n_staged, cuda.blockDim.x):
            row, token = cuda.blockIdx.x * MATRIX_ROWS + place % MATRIX_ROWS, t + place // MATRIX_ROWS
            if row < w.n_rows and token < n_wanted:
                total = staged[place]
                for other in range(1, n_slices):
                    total = gpu.add(total, staged[other * n_staged + place])
                put(y, token * stride + column + row, gpu.mul(total, power), w, matrix * w.n_rows + row, mode)

    return multiply


MULTIPLY_HALVES = {(name, n): _multiply(fmt, n) for name, fmt in HALVED.items() for n in STREAM_TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""


def _embed(fmt):
    read, weights, n_words = read_of(fmt), weights_of(fmt), step_words(fmt)

    @lane
    def put_unit(w, step, row, unit, n, scale, out, start):
        """Write a unit of a row of a step, as far as it is among n values."""
        power = gpu.float_of(w[0])
        for i in range(row % 8 * 4, row % 8 * 4 + 4):
            words = weights(read(w, places_of(step, np.uint32(i))), np.uint32(i))
            for j in range(4):
                word = words[8 * unit + 4 * (j // 2) + 2 * (j % 2) + row // 8]
                for k in range(2):
                    at = 16 * (j // 2) + 4 * (i % 4) + j % 2 + 2 * k
                    if at < n:
                        value = gpu.float_of_half(word >> np.uint32(16 * k) & np.uint32(0xFFFF))
                        out[start + at] = gpu.mul(gpu.mul(value, power), scale)

    @kernel("jwfjiiir", name=f"embed_{fmt.name}_halves")
    def embed(inputs, w, x, ids, size, n_steps, per_token, scale):
        """X[i] = scale * W[ids[i]], as `embed`, of a matrix as these kernels multiply it."""
        row = cuda.blockIdx.y
        unit = cuda.blockIdx.x * WARP + cuda.threadIdx.x
        if row >= inputs[N_TOKENS] * per_token or UNIT * unit >= size:
            return
        of = ids[row]
        step = np.uint32(HEADER + (of // MATRIX_ROWS * n_steps + unit // 2) * n_words)
        put_unit(w, step, of % MATRIX_ROWS, unit % 2, size - UNIT * unit, np.float32(scale), x, row * size + UNIT * unit)

    return embed


EMBED_HALVES = {name: _embed(fmt) for name, fmt in HALVED.items()}
"""Kernels that look up rows, by the weights' type."""
