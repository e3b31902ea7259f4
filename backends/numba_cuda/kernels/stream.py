"""Products of a matrix and any number of tokens, as halves on tensor cores: one order of additions for 1 token and for 512.

A slice of a row is one chain of `mma.m16n8k16` in the order of columns, whose sums are float32. Its sum is multiplied with the
power of two of the token's slice, and slices are added in turn, each addition rounded. A column of an instruction depends on no
other, so products depend neither on how many tokens there are nor on which.

A block takes tiles of 16 rows of W and 8, 16, 32 or 64 tokens, a warp of it a slice. See `halves` for the operands.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import SLICES, WARP, add_halves, cuda, kernel, lane, record, together
from augury.backends.numba_cuda.kernels.formats import FORMATS, UNIT
from augury.backends.numba_cuda.kernels.fragments import for_each
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
TILES_AT_ONCE = {8: 1, 16: 1, 32: 1, 64: 2}  # of 16 rows, which share a reading of so many tokens
HALVED = {name: fmt for name, fmt in FORMATS.items() if name != "F32"}
"""The types of weights that are multiplied so: of float32 the nearest halves would lose too much."""

HalvesArgs = record("HalvesArgs", w="words", f="bias", i="n_rows n_steps n_of_slice has_bias", r="scale")
"""A matrix W, or several, one below the other, each in whole tiles of 16 rows; see `sums.MatrixArgs`.

A row has `n_steps` steps, a slice of it `n_of_slice`.
"""


def _one_tile(fmt, n_groups):
    """Functions of a step of a tile of rows: the places of its words, those of a step further on, reading, adding products."""
    weights, read, n_words = weights_of(fmt), read_of(fmt), step_words(fmt)

    @lane
    def begin(first, n_steps, step, n_left, i):
        return places_of(np.uint32(HEADER + (first * n_steps + step) * n_words), i)

    @lane
    def after(at):
        return at[0] + n_words, at[1] + n_words, at[2] + n_words

    @together
    def add_step(held, i, x, place, sums):
        w = weights(held, i)
        for j in range(n_groups):
            add_halves(sums, 4 * j, w, row_words(x, place + X_WORDS * j))

    return begin, after, read, add_step


def _two_tiles(fmt, n_groups):
    """The same of two tiles below each other, which share a reading of tokens' rows; the second may be the first once more."""
    begin_one, after_one, read_one, _ = _one_tile(fmt, n_groups)
    weights = weights_of(fmt)

    @lane
    def begin(first, n_steps, step, n_left, i):
        second = first + 1 if n_left > 1 else first
        return begin_one(first, n_steps, step, 1, i), begin_one(second, n_steps, step, 1, i)

    @lane
    def after(at):
        return after_one(at[0]), after_one(at[1])

    @lane
    def read(words, at):
        return read_one(words, at[0]), read_one(words, at[1])

    @together
    def add_group(j, w, other, x, place, sums):
        v = row_words(x, place + X_WORDS * j)
        add_halves(sums, 4 * j, w, v)
        add_halves(sums, 4 * (n_groups + j), other, v)

    add_groups = for_each(n_groups, add_group)  # a loop that the compiler for 10.0 would not unroll

    @together
    def add_step(held, i, x, place, sums):
        add_groups(weights(held[0], i), weights(held[1], i), x, place, sums)

    return begin, after, read, add_step


def _add_slice(after, read, add_step):
    """The function that adds the products of n steps of a slice to a lane's sums; words are read a step ahead."""

    @together
    def add_slice(words, at, n, i, x, place, x_step, sums):
        held = read(words, at)
        while n > 1:
            at = after(at)
            ahead = read(words, at)
            add_step(held, i, x, place, sums)
            at, n = after(at), np.int32(n - 2)
            if n > 0:
                held = read(words, at)
            add_step(ahead, i, x, place + x_step, sums)
            place += 2 * x_step
        if n > 0:
            add_step(held, i, x, place, sums)

    return add_slice


def _multiply(fmt, n_tokens):
    n_groups, n_at_once, n_staged = n_tokens // GROUP, TILES_AT_ONCE[n_tokens], MATRIX_ROWS * n_tokens
    n_sums, n_words, n_shared = 4 * n_groups * n_at_once, step_words(fmt), SLICES * n_staged
    begin, after, read, add_step = (_one_tile if n_at_once == 1 else _two_tiles)(fmt, n_groups)
    add_slice, n_of_tile = _add_slice(after, read, add_step), 4 * n_groups

    @lane
    def stage_group(j, sums, first, x, t, n_wanted, s, n_slices, i, staged):
        for k in range(4):
            token = np.uint32(GROUP * j + i % 4 * 2 + k % 2)
            power = x.powers[min(t + token, n_wanted - 1) * n_slices + s]
            staged[s * n_staged + token * MATRIX_ROWS + i // 4 + k // 2 * 8] = gpu.mul(sums[first + 4 * j + k], power)

    stage = for_each(n_groups, stage_group)

    @lane
    def store(staged, n_slices, w, tile, matrix, t, n_wanted, y, stride, column, mode, thread, n_threads):
        power = gpu.float_of(w.words[0])
        for place in range(thread, n_staged, n_threads):
            row, token = tile * MATRIX_ROWS + place % MATRIX_ROWS, t + place // MATRIX_ROWS
            if row < w.n_rows and token < n_wanted:
                total = staged[place]
                for other in range(1, n_slices):
                    total = gpu.add(total, staged[other * n_staged + place])
                put(y, token * stride + column + row, gpu.mul(total, power), w, matrix * w.n_rows + row, mode)

    @together
    def end_tile(j, sums, x, t, n_wanted, s, n_slices, i, staged, w, tile, matrix, y, stride, column, mode, thread):
        stage(sums, n_of_tile * j, x, t, n_wanted, s, n_slices, i, staged)
        cuda.syncthreads()
        store(staged, n_slices, w, tile + j, matrix, t, n_wanted, y, stride, column, mode, thread, WARP * n_slices)
        cuda.syncthreads()  # before the next tile's sums are staged

    end_tiles = for_each(n_at_once, end_tile)

    @kernel("j", HalvesArgs, RowsArgs, "fiiiii", name=f"multiply_{fmt.name}_halves_{n_tokens}")
    def multiply(inputs, w, x, y, stride, column, mode, which, n_of_block):
        """Y[t, column + row] = scale * (W x[t]) + bias, or that added; see `matmul`, also for arguments.

        Args:
            inputs, w, y, stride, column, mode, which: As there.
            x: See `halves.halve_rows`.
            n_of_block: Tiles of 16 rows that a block takes in turn, so that it has tokens' rows in its nearest cache. Of more
                tokens it takes `TILES_AT_ONCE`, and none after them.
        """
        n_steps, thread, staged = w.n_steps, np.uint32(cuda.threadIdx.x), cuda.shared.array(n_shared, np.float32)
        n_tiles = (w.n_rows + MATRIX_ROWS - 1) // MATRIX_ROWS
        first_tile, n_in_turn = cuda.blockIdx.x * n_at_once, np.int32(1)
        if n_at_once == 1:
            first_tile, n_in_turn = cuda.blockIdx.x * n_of_block, min(n_of_block, n_tiles - cuda.blockIdx.x * n_of_block)
        if which == OF_TOKENS and cuda.blockIdx.y == 0 and thread == 0:
            first = np.uint32(HEADER + first_tile * n_steps * n_words)
            n_near = min(n_in_turn * n_at_once, n_tiles - first_tile)
            gpu.bring_near(w.words, gpu.index_of(first), np.uint32(4 * n_near * n_steps * n_words))
        gpu.wait_for_launch()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:
            return
        i, s, sums = thread % np.uint32(WARP), thread // np.uint32(WARP), cuda.local.array(n_sums, np.float32)
        row = min(t + i // 4, n_wanted - 1) if n_groups == 1 else t + i // 4  # of more, a tile begins with a whole group
        step, n_slices = np.int32(w.n_of_slice * s), cuda.blockDim.x // WARP
        n, x_step = np.int32(min(n_steps - step, w.n_of_slice)), gpu.index_of(np.uint32(X_WORDS * x.n_groups))
        for tile in range(first_tile, first_tile + n_in_turn):
            for j in range(n_sums):
                sums[j] = np.float32(0)
            at = begin(matrix * n_tiles + tile, n_steps, step, n_tiles - tile, i)
            add_slice(w.words, at, n, i, x.halves, place_of(row, i) + step * x_step, x_step, sums)
            end_tiles(sums, x, t, n_wanted, s, n_slices, i, staged, w, tile, matrix, y, stride, column, mode, thread)

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
