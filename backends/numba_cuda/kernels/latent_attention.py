"""Latent attention: what is kept of a position is read once for many heads, which tensor cores multiply it with.

A block takes one split of positions (see `attention`) and 16 or 32 heads of one token: the rows of an instruction are heads,
never tokens, so what comes of a token depends on no other one. Queries and weights are two halves each, the nearest one and the
nearest one of what is left, and so are values of a cache that are codes times scales: together they have the precision of a
float32, less what is beyond the 25th binary place. Products of halves are exact, and the sums are float32.

How matrices lie in an instruction's fragments is told by the PTX ISA, `mma.m16n8k16`. Lane 4 g + i takes row g of heads, and
columns 2 i, 2 i + 1 of what is added up, and those 8 further on. Which dimensions these columns are is free: here those that
the lane reads with one load of 16 bytes. So rows go from memory to registers as they are.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.attention import SPLIT
from augury.backends.numba_cuda.kernels.cells import EIGHT
from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    add,
    cuda,
    exp,
    float_of_half,
    half_of_float,
    kernel,
    lane,
    larger,
    load16,
    mma_halves,
    mul,
    prmt,
    quad_max,
    quad_sum,
    quotient,
    together,
)
from augury.backends.numba_cuda.kernels.heads import turned_value
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of, first_seen

HEADS = 16  # rows of an instruction
LATENT_WARPS = 8
LATENT_THREADS = WARP * LATENT_WARPS
_OF_WARP = SPLIT // LATENT_WARPS  # positions
_TILES = _OF_WARP // 8  # of positions, of a warp
_STEP = 32  # dimensions that one load of a lane's is of, beside those of its three neighbours
_STAGED = 256  # dimensions of queries that are staged at once, or positions' weights
_VALUES = 64  # dimensions that a warp mixes
MAX_LATENT = _VALUES * LATENT_WARPS
_NONE = float("-inf")


@lane
def _two_halves(a, b):
    """The words of two floats: of their nearest halves, and of the nearest halves of what is left of them."""
    a, b = np.float32(a), np.float32(b)
    low, high = half_of_float(a), half_of_float(b)
    first = np.uint32(low | high << np.uint32(16))
    low, high = half_of_float(add(a, -float_of_half(low))), half_of_float(add(b, -float_of_half(high)))
    return first, np.uint32(low | high << np.uint32(16))


@lane
def _query(absorbed, heads, turns, at_absorbed, at_turned, at_turns, i, n_latent, dim, n_pairs, offset, is_interleaved, factor):
    """Value i of a head's query, times its factor: first what was absorbed, then what is turned."""
    if i < n_latent:
        return mul(absorbed[at_absorbed + i], factor)
    if i >= dim:
        return np.float32(0)
    return mul(turned_value(heads, at_turned, turns, i - n_latent, n_pairs, offset, is_interleaved, at_turns), factor)


def _stage(n_rows):
    n_words = n_rows * HEADS * _STAGED // 2

    @lane
    def stage_queries(
        absorbed,
        heads,
        turns,
        at_turns,
        t,
        n,
        first_head,
        n_heads,
        stride,
        head_dim,
        n_latent,
        dim,
        n_pairs,
        offset,
        is_interleaved,
        factor,
        chunk,
        thread,
        staged,
    ):
        """Stage fragments of queries, of dimensions from `chunk` on: of each word the nearest halves, then what is left."""
        n_turned = dim - n_latent
        n_there = n_rows * HEADS // 2 * min(_STAGED, (dim - chunk + _STEP - 1) // _STEP * _STEP)
        for word in range(thread, n_there, LATENT_THREADS):
            place, part = word % WARP, word // WARP % 4
            row, step = word // (4 * WARP) % n_rows, word // (4 * WARP * n_rows)
            head = first_head + HEADS * row + place // 4 + 8 * (part % 2)
            i = chunk + _STEP * (step // 2) + 8 * (place % 4) + 4 * (step % 2) + 2 * (part // 2)
            a, b = np.float32(0), np.float32(0)
            if head < n_heads:
                at, turned = (head * n + t) * n_latent, t * stride + (head + 1) * head_dim - n_turned
                a = _query(
                    absorbed, heads, turns, at, turned, at_turns, i, n_latent, dim, n_pairs, offset, is_interleaved, factor
                )
                b = _query(
                    absorbed, heads, turns, at, turned, at_turns, i + 1, n_latent, dim, n_pairs, offset, is_interleaved, factor
                )
            staged[word], staged[n_words + word] = _two_halves(a, b)

    return stage_queries


def _read(kind):
    """The lane function that reads eight values of a cell, from the i-th on: four words of halves, and what is left of them."""
    eight = EIGHT.get(kind)

    @lane
    def read(words, halves, cell, dim, i, held, at, rest):
        if cell < 0 or i >= dim:
            for j in range(4):
                held[at + j] = np.uint32(0)
                if rest:
                    held[rest + at + j] = np.uint32(0)
        elif eight is None:
            held[at], held[at + 1], held[at + 2], held[at + 3] = load16(words, (cell * dim + i) >> 1)
        else:
            a, b, c, d, e, f, g, h = eight(words, halves, cell, dim, i)
            held[at], held[rest + at] = _two_halves(a, b)
            held[at + 1], held[rest + at + 1] = _two_halves(c, d)
            held[at + 2], held[rest + at + 2] = _two_halves(e, f)
            held[at + 3], held[rest + at + 3] = _two_halves(g, h)

    return read


@together
def _add(sums, at, a, b, c, d, p, q):
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_halves(
        a, b, c, d, p, q, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )


@lane
def _most(sums, at, cells, column):
    """The largest of a row's scores that a lane has, once those of what is not seen are -inf."""
    most = np.float32(_NONE)
    for tile in range(_TILES):
        for i in range(2):
            score = np.float32(_NONE) if cells[column + 8 * tile + i] < 0 else sums[at + 4 * tile + i]
            sums[at + 4 * tile + i] = score
            most = larger(most, score)
    return most


@lane
def _weigh(tile, sums, at, most):
    """Make weights of the scores of a tile."""
    for j in range(at + 4 * tile, at + 4 * tile + 2):
        score = sums[j]
        weight = exp(add(score, -np.float32(most)))
        sums[j] = np.float32(0) if score == np.float32(_NONE) else weight


@lane
def _total(sums, at):
    """The sum of a row's weights that a lane has."""
    total = np.float32(0)
    for tile in range(_TILES):
        total = add(add(total, sums[at + 4 * tile]), sums[at + 4 * tile + 1])
    return total


def _for_each(n, function):
    """The function that calls another one with 0 to n - 1: written out, so that what these number stays in registers."""
    last = n - 1
    before = _for_each(last, function) if last else None

    @together
    def all_of(*args):
        if before is not None:
            before(*args)
        function(last, *args)

    return all_of


_weigh_tiles = _for_each(_TILES, _weigh)


def _attend(kind, n_rows):
    rest_of_held = 0 if kind == "f16" else 4 * max(_TILES, 4)
    n_words, n_held = n_rows * HEADS * _STAGED // 2, 2 * rest_of_held or 4 * max(_TILES, 4)
    n_sums, n_values, n_heads_of_block = 4 * _TILES * n_rows, 32 * n_rows, HEADS * n_rows
    n_staged, n_of_warps, stage_queries, read = 2 * n_words, LATENT_WARPS * n_heads_of_block, _stage(n_rows), _read(kind)

    @together
    def add_scores(staged, step, i, held, sums):
        """Add to scores what 32 dimensions give."""
        for half in range(2):
            for row in range(n_rows):
                at = ((2 * step + half) * n_rows + row) * 4 * WARP + i
                a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                at += n_words
                e, f, g, h = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                for tile in range(_TILES):
                    p, q = held[4 * tile + 2 * half], held[4 * tile + 2 * half + 1]
                    to = 4 * (row * _TILES + tile)
                    _add(sums, to, a, b, c, d, p, q)
                    _add(sums, to, e, f, g, h, p, q)
                    if rest_of_held:
                        at_rest = rest_of_held + 4 * tile + 2 * half
                        _add(sums, to, a, b, c, d, held[at_rest], held[at_rest + 1])

    @lane
    def neighbours(held, at, tile):
        """Dimension `tile` of two positions that are neighbours, and of the other two."""
        chosen = np.uint32(0x7632 if tile % 2 else 0x5410)
        at += tile // 2
        return prmt(held[at], held[at + 4], chosen), prmt(held[at + 8], held[at + 12], chosen)

    @together
    def add_values(staged, step, i, held, sums):
        """Add to the mix of 64 dimensions what 16 positions give, of which a lane holds four."""
        for row in range(n_rows):
            at = (step * n_rows + row) * 4 * WARP + i
            a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
            for tile in range(8):
                p, q = neighbours(held, 0, tile)
                _add(sums, 4 * (8 * row + tile), a, b, c, d, p, q)
                if rest_of_held:
                    p, q = neighbours(held, rest_of_held, tile)
                    _add(sums, 4 * (8 * row + tile), a, b, c, d, p, q)
            at += n_words
            a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
            for tile in range(8):
                p, q = neighbours(held, 0, tile)
                _add(sums, 4 * (8 * row + tile), a, b, c, d, p, q)

    @lane
    def read_keys(words, halves, cells, column, dim, i, held):
        """Read 8 dimensions of a position of each tile of the warp."""
        for tile in range(_TILES):
            read(words, halves, cells[column + 8 * tile], dim, i, held, 4 * tile, rest_of_held)

    @lane
    def read_values(words, halves, cells, column, dim, i, held):
        """Read 8 dimensions of four positions."""
        for j in range(4):
            read(words, halves, cells[column + j % 2 + 8 * (j // 2)], dim, i, held, 4 * j, rest_of_held)

    @together
    def most_of_row(row, warp, i, sums, cells, most_of_warps):
        """The largest of the scores that a warp has of every eighth head."""
        most = quad_max(_most(sums, 4 * (row // 2 * _TILES) + 2 * (row % 2), cells, _OF_WARP * warp + 2 * (i % 4)))
        if i % 4 == 0:
            most_of_warps[warp * n_heads_of_block + 8 * row + i // 4] = most

    @together
    def weigh_row(row, warp, i, sums, most_of_warps, totals_of_warps):
        """Make weights of such scores, and write their sum."""
        most = most_of_warps[8 * row + i // 4]
        for other in range(1, LATENT_WARPS):
            most = larger(most, most_of_warps[other * n_heads_of_block + 8 * row + i // 4])
        at = 4 * (row // 2 * _TILES) + 2 * (row % 2)
        _weigh_tiles(sums, at, most)
        total = quad_sum(_total(sums, at))
        if i % 4 == 0:
            totals_of_warps[warp * n_heads_of_block + 8 * row + i // 4] = total

    most_of_rows, weigh_rows = _for_each(2 * n_rows, most_of_row), _for_each(2 * n_rows, weigh_row)

    @lane
    def stage_weights(sums, warp, i, staged):
        """Stage fragments of weights: what a lane has of scores is what it has of them."""
        for tile in range(_TILES):
            for row in range(2 * n_rows):
                at = 4 * (row // 2 * _TILES + tile) + 2 * (row % 2)
                step, part = _TILES // 2 * warp + tile // 2, row % 2 + 2 * (tile % 2)
                word = ((step * n_rows + row // 2) * 4 + part) * WARP + i
                staged[word], staged[n_words + word] = _two_halves(sums[at], sums[at + 1])

    @lane
    def store(parts, to, head_stride, sums, first_head, n_heads, first, n_latent, i):
        """Store the mix of 64 dimensions of all heads."""
        for row in range(n_rows):
            for half in range(2):
                head = HEADS * row + 8 * half + i // 4
                if first_head + head < n_heads:
                    for other in range(2):
                        for tile in range(8):
                            dim = first + 8 * (2 * (i % 4) + other) + tile
                            if dim < n_latent:
                                parts[to + head * head_stride + dim] = sums[4 * (8 * row + tile) + 2 * half + other]

    @lane
    def clear(sums, n):
        for j in range(n):
            sums[j] = np.float32(0)

    @kernel("jffffwhjf" + 16 * "i" + "r", name=f"attend_latent_{kind}_{n_rows}", most_registers=128)
    def attend_latent(
        inputs,
        absorbed,
        heads,
        turns,
        factors,
        words,
        halves,
        chosen,
        parts,
        stride,
        n_heads,
        head_dim,
        n_latent,
        dim,
        n_pairs,
        offset,
        is_interleaved,
        has_factors,
        length,
        window,
        n_splits,
        block_size,
        chosen_stride,
        n,
        first_token,
        scale,
    ):
        """What one split gives some heads of one token: (n_latent,) mixed, the largest score, and the sum of the weights.

        Args:
            inputs: Of the pass.
            absorbed: (n_heads * n, n_latent), the first part of queries, head by head.
            heads: (tokens, stride), each beginning with heads of `head_dim` values, of which the last ones are turned.
            turns: (positions, n_pairs, 2), see `turned_value`.
            factors: (positions,) what queries are multiplied with.
            words, halves: Planes of a cache, see `cells`, (slots, length, …) of `dim` values each.
            chosen: (n, chosen_stride), not 0 for blocks of `block_size` positions that are seen; 0: all are.
            parts: (tokens from `first_token` on, n_heads, n_splits, n_latent + 2).
            window: How many positions a token sees; 0: all.
            n: Tokens that there is room for.
        """
        split, first_head, t = cuda.blockIdx.x, n_heads_of_block * cuda.blockIdx.y, first_token + cuda.blockIdx.z
        if t >= inputs[N_TOKENS]:
            return
        last = inputs[POSITIONS + t]
        first, start = first_seen(last, window), split * SPLIT
        if start > last or start + SPLIT <= first:
            return
        staged = cuda.shared.array(n_staged, np.uint32)
        cells = cuda.shared.array(SPLIT, np.int32)
        most_of_warps = cuda.shared.array(n_of_warps, np.float32)
        totals_of_warps = cuda.shared.array(n_of_warps, np.float32)
        sums = cuda.local.array(n_sums, np.float32)
        held = cuda.local.array(n_held, np.uint32)
        thread = cuda.threadIdx.x
        warp, i = thread // WARP, thread % WARP
        position, cell = start + thread, np.int32(-1)
        is_seen = first <= position <= last
        if is_seen and (block_size == 0 or chosen[t * chosen_stride + quotient(position, block_size)] != 0):
            cell = np.int32(inputs[SLOTS + t] * length + cell_of(inputs, t, position))
        cells[thread] = cell
        factor = mul(factors[last] if has_factors else np.float32(1), np.float32(scale))
        has_seen = start + _OF_WARP * warp <= last and start + _OF_WARP * (warp + 1) > first
        clear(sums, n_sums)
        for chunk in range(0, dim, _STAGED):
            cuda.syncthreads()
            stage_queries(
                absorbed,
                heads,
                turns,
                2 * n_pairs * last,
                t,
                n,
                first_head,
                n_heads,
                stride,
                head_dim,
                n_latent,
                dim,
                n_pairs,
                offset,
                is_interleaved,
                factor,
                chunk,
                thread,
                staged,
            )
            cuda.syncthreads()
            if has_seen:
                for step in range((min(_STAGED, dim - chunk) + _STEP - 1) // _STEP):
                    read_keys(words, halves, cells, _OF_WARP * warp + i // 4, dim, chunk + _STEP * step + 8 * (i % 4), held)
                    add_scores(staged, step, i, held, sums)
        most_of_rows(warp, i, sums, cells, most_of_warps)
        cuda.syncthreads()  # all have read what is staged, too
        weigh_rows(warp, i, sums, most_of_warps, totals_of_warps)
        stage_weights(sums, warp, i, staged)
        cuda.syncthreads()
        head_stride = n_splits * (n_latent + 2)
        to = (((t - first_token) * n_heads + first_head) * n_splits + split) * (n_latent + 2)
        if thread < n_heads_of_block and first_head + thread < n_heads:
            most, total = most_of_warps[thread], totals_of_warps[thread]
            for other in range(1, LATENT_WARPS):
                most = larger(most, most_of_warps[other * n_heads_of_block + thread])
                total = add(total, totals_of_warps[other * n_heads_of_block + thread])
            parts[to + thread * head_stride + n_latent] = most
            parts[to + thread * head_stride + n_latent + 1] = total
        values = cuda.local.array(n_values, np.float32)
        if _VALUES * warp < n_latent:
            clear(values, n_values)
            for step in range(max(0, first - start) // 16, min(SPLIT, last + 1 - start + 15) // 16):
                read_values(words, halves, cells, 16 * step + 2 * (i % 4), dim, _VALUES * warp + 8 * (i // 4), held)
                add_values(staged, step, i, held, values)
            store(parts, to, head_stride, values, first_head, n_heads, _VALUES * warp, n_latent, i)

    return attend_latent


ATTEND_LATENT = {
    (kind, n_rows): _attend(kind, n_rows) for kind in ("f16", *EIGHT) for n_rows in (1, 2) if kind == "f16" or n_rows == 1
}
"""Kernels by the type of the cache, and how many times 16 heads a block has."""
