"""How what latent attention multiplies lies in tensor cores' fragments: queries and weights of heads, rows of a cache.

The PTX ISA tells it, of `mma.m16n8k16`. Lane 4 g + i takes rows g and g + 8 of heads, column g of what they are multiplied
with, and of what is added up 2 i, 2 i + 1, and those 8 further on. Which dimensions, or positions, these are is free: here
dimensions that a lane reads with one load of 16 bytes. So rows go from memory to registers as they are.

Queries and weights are two halves each, the nearest one and the nearest one of what is left, and so are values of a cache that
are codes times scales: together they have the precision of a float32, less what is beyond the 25th binary place. Products of
halves are exact, and the sums are float32.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.attention import SPLIT
from augury.backends.numba_cuda.kernels.cells import EIGHT
from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    add,
    float_of_half,
    half_of_float,
    lane,
    mma_halves,
    mul,
    prmt,
    record,
    together,
)
from augury.backends.numba_cuda.kernels.heads import turned_value

HEADS = 16  # rows of an instruction
LATENT_WARPS = 8
LATENT_THREADS = WARP * LATENT_WARPS
OF_WARP = SPLIT // LATENT_WARPS  # positions
TILES = OF_WARP // 8  # of positions, of a warp
STEP = 32  # dimensions that one load of a lane's is of, beside those of its three neighbours
STAGED = 256  # dimensions of queries that are staged at once, or positions' weights
VALUES = 64  # dimensions that a warp mixes
N_HELD = 4 * max(TILES, 4)  # words of nearest halves that a lane holds of rows: of a position of each tile, or of four
MAX_LATENT = VALUES * LATENT_WARPS
LatentArgs = record(
    "LatentArgs",
    f="absorbed heads factors parts sinks",
    w="counters",
    i="stride n_heads head_dim n_latent dim has_factors length window n_splits n first_token has_sinks",
    r="scale",
)
"""What attends to latents.

`absorbed` (n_heads * n, n_latent) is the first part of queries, head by head, of n tokens that there is room for. `heads`
(tokens, stride) each begin with heads of `head_dim` values, of which the last ones are turned. `factors` (positions,) are what
queries are multiplied with. `parts` (tokens from `first_token` on, n_heads, n_splits, n_latent + 2) are what splits give,
`counters` one for each token and the heads of a block. `sinks` (n_heads,) are scores with nothing to mix, if `has_sinks`. A
token sees `window` positions; 0: all. A position has `dim` values in the cache.
"""


@lane
def two_halves(a, b):
    """The words of two floats: of their nearest halves, and of the nearest halves of what is left of them."""
    a, b = np.float32(a), np.float32(b)
    low, high = half_of_float(a), half_of_float(b)
    first = np.uint32(low | high << np.uint32(16))
    low, high = half_of_float(add(a, -float_of_half(low))), half_of_float(add(b, -float_of_half(high)))
    return first, np.uint32(low | high << np.uint32(16))


@lane
def _query(how, turn, at_absorbed, at_turned, at_turns, i, factor):
    """Value i of a head's query, times its factor: first what was absorbed, then what is turned."""
    if i < how.n_latent:
        return mul(how.absorbed[at_absorbed + i], factor)
    if i >= how.dim:
        return np.float32(0)
    return mul(turned_value(how.heads, at_turned, turn, i - how.n_latent, at_turns), factor)


def stage_of(n_rows):
    """The lane function that stages queries of n_rows times 16 heads."""
    n_words = words_of(n_rows)

    @lane
    def stage_queries(how, turn, at_turns, t, first_head, factor, chunk, thread, staged):
        """Stage fragments of queries, of dimensions from `chunk` on: of each word the nearest halves, then what is left."""
        n_turned = how.dim - how.n_latent
        n_there = n_rows * HEADS // 2 * min(STAGED, (how.dim - chunk + STEP - 1) // STEP * STEP)
        for word in range(thread, n_there, LATENT_THREADS):
            place, part = word % WARP, word // WARP % 4
            row, step = word // (4 * WARP) % n_rows, word // (4 * WARP * n_rows)
            head = first_head + HEADS * row + place // 4 + 8 * (part % 2)
            i = chunk + STEP * (step // 2) + 8 * (place % 4) + 4 * (step % 2) + 2 * (part // 2)
            a, b = np.float32(0), np.float32(0)
            if head < how.n_heads:
                at, turned = (head * how.n + t) * how.n_latent, t * how.stride + (head + 1) * how.head_dim - n_turned
                a = _query(how, turn, at, turned, at_turns, i, factor)
                b = _query(how, turn, at, turned, at_turns, i + 1, factor)
            staged[word], staged[n_words + word] = two_halves(a, b)

    return stage_queries


def _read(kind):
    """The lane function that reads eight values of a cell, from the i-th on: four words of halves, and what is left of them."""
    (read_eight, eight), is_halves = EIGHT[kind], kind == "f16"

    @lane
    def read(cache, cell, dim, i, held, at, rest):
        if cell < 0 or i >= dim:
            for j in range(4):
                held[at + j] = np.uint32(0)
                if rest:
                    held[rest + at + j] = np.uint32(0)
        elif is_halves:
            held[at], held[at + 1], held[at + 2], held[at + 3] = read_eight(cache, cell, dim, i)
        else:
            a, b, c, d, e, f, g, h = eight(read_eight(cache, cell, dim, i), i)
            held[at], held[rest + at] = two_halves(a, b)
            held[at + 1], held[rest + at + 1] = two_halves(c, d)
            held[at + 2], held[rest + at + 2] = two_halves(e, f)
            held[at + 3], held[rest + at + 3] = two_halves(g, h)

    return read


@together
def _add(sums, at, a, b, c, d, p, q):
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_halves(
        a, b, c, d, p, q, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )


def fragments_of(kind, n_rows):
    """Functions that read keys, add scores, read values, and add to their mix, of n_rows times 16 heads."""
    rest_of_held, n_words, read = rest_of(kind), words_of(n_rows), _read(kind)

    @together
    def add_scores(staged, step, i, held, sums):
        """Add to scores what 32 dimensions give."""
        for half in range(2):
            for row in range(n_rows):
                at = ((2 * step + half) * n_rows + row) * 4 * WARP + i
                a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                at += n_words
                e, f, g, h = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                for tile in range(TILES):
                    p, q = held[4 * tile + 2 * half], held[4 * tile + 2 * half + 1]
                    to = 4 * (row * TILES + tile)
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
    def read_keys(cache, cells, column, dim, i, held):
        """Read 8 dimensions of a position of each tile of the warp."""
        for tile in range(TILES):
            read(cache, cells[column + 8 * tile], dim, i, held, 4 * tile, rest_of_held)

    @lane
    def read_values(cache, cells, column, dim, i, held):
        """Read 8 dimensions of four positions."""
        for j in range(4):
            read(cache, cells[column + j % 2 + 8 * (j // 2)], dim, i, held, 4 * j, rest_of_held)

    return read_keys, add_scores, read_values, add_values


def rest_of(kind):
    """Where among the words that a lane holds of rows those of what is left begin; 0: nothing is left of halves."""
    return 0 if kind == "f16" else N_HELD


def words_of(n_rows):
    """How many words are staged of nearest halves; as many of what is left come after them."""
    return n_rows * HEADS * STAGED // 2
