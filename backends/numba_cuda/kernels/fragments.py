"""The operands of latent attention in tensor cores' fragments: queries and weights of heads, rows of a cache.

The PTX ISA defines them, for `mma.m16n8k16`. Lane 4 g + i takes rows g and g + 8 of heads, column g of the other operand, and
the summed indices 2 i, 2 i + 1, and the ones 8 further on. Their dimensions, or positions, are free: here dimensions that a
lane reads with one load of 16 bytes. So rows go from memory to registers as they are.

Queries and weights are two halves each, the nearest one and the nearest one of the remainder, like values of a cache that are
codes times scales: together they have the precision of a float32, up to the 25th binary place. Products of halves are exact,
and the sums are float32.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.cells import EIGHT
from augury.backends.numba_cuda.kernels.dialect import WARP, lane, mma_halves, quad_sum, together
from augury.backends.numba_cuda.kernels.splits import SPLIT

HEADS = 16  # rows of an instruction
ATTEND_WARPS = 8
ATTEND_THREADS = WARP * ATTEND_WARPS
OF_WARP = SPLIT // ATTEND_WARPS  # positions
TILES = OF_WARP // 8  # of positions, of a warp
STEP = 32  # dimensions that one load of a lane's is of, beside those of its three neighbours
STAGED = 256  # dimensions of queries that are staged at once, or positions' weights
VALUES = 64  # dimensions that a warp mixes
_NONE = float("-inf")
N_HELD = 4 * max(TILES, 4)  # words of nearest halves that a lane holds of rows: of a position of each tile, or of four


@lane
def two_halves(a, b):
    """The words of two floats: of their nearest halves, and of the nearest halves of the remainders."""
    a, b = np.float32(a), np.float32(b)
    low, high = gpu.half_of_float(a), gpu.half_of_float(b)
    first = np.uint32(low | high << np.uint32(16))
    low, high = gpu.half_of_float(gpu.add(a, -gpu.float_of_half(low))), gpu.half_of_float(gpu.add(b, -gpu.float_of_half(high)))
    return first, np.uint32(low | high << np.uint32(16))


@lane
def query_of(word, n_rows):
    """The row of a staged word of queries, and the first of its two dimensions."""
    place, part = word % WARP, word // WARP % 4
    row, step = word // (4 * WARP) % n_rows, word // (4 * WARP * n_rows)
    i = STEP * (step // 2) + 8 * (place % 4) + 4 * (step % 2) + 2 * (part // 2)
    return HEADS * row + place // 4 + 8 * (part % 2), i


def _read(kind):
    """The lane function that reads eight values of a cell, from the i-th on: four words of halves, and of their remainders."""
    (read_eight, eight), is_halves = EIGHT[kind], kind == "f16"

    @lane
    def read(cache, cell, dim, i, held, at, rest):
        if is_halves:
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


@together
def _add_to_rows(sums, at, a, b, c, d, p, q, rows):
    """Add to the sums of a lane's first row, of its second, or of both: the others stay, to the bit, as they are."""
    e, f, g, h = mma_halves(a, b, c, d, p, q, sums[at], sums[at + 1], sums[at + 2], sums[at + 3])
    is_first, is_second = rows
    if is_first:
        sums[at], sums[at + 1] = e, f
    if is_second:
        sums[at + 2], sums[at + 3] = g, h


def fragments_of(kind, n_rows):
    """Functions that read keys, add scores, read values, and add to their mix, of n_rows times 16 heads."""
    rest_of_held, n_words, read = rest_of(kind), words_of(n_rows), _read(kind)

    @together
    def add_scores(staged, step, i, held, first, sums):
        """Add 32 dimensions to scores; their words are held from the `first` on."""
        for half in range(2):
            for row in range(n_rows):
                at = np.uint32(((2 * step + half) * n_rows + row) * 4 * WARP + i)
                a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                at += n_words
                e, f, g, h = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
                for tile in range(TILES):
                    p, q = held[first + 4 * tile + 2 * half], held[first + 4 * tile + 2 * half + 1]
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
        return gpu.prmt(held[at], held[at + 4], chosen), gpu.prmt(held[at + 8], held[at + 12], chosen)

    @together
    def add_values(staged, step, i, held, first, sums, rows):
        """Add 16 positions, of which a lane holds four, to the mix of 64 dimensions of `rows`."""
        for row in range(n_rows):
            at = np.uint32((step * n_rows + row) * 4 * WARP + i)
            a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
            for tile in range(8):
                p, q = neighbours(held, first, tile)
                _add_to_rows(sums, 4 * (8 * row + tile), a, b, c, d, p, q, rows)
                if rest_of_held:
                    p, q = neighbours(held, rest_of_held, tile)
                    _add_to_rows(sums, 4 * (8 * row + tile), a, b, c, d, p, q, rows)
            at += n_words
            a, b, c, d = staged[at], staged[at + WARP], staged[at + 2 * WARP], staged[at + 3 * WARP]
            for tile in range(8):
                p, q = neighbours(held, first, tile)
                _add_to_rows(sums, 4 * (8 * row + tile), a, b, c, d, p, q, rows)

    @lane
    def read_keys(cache, cells, column, dim, i, held, first):
        """Read 8 dimensions of a position of each tile of the warp: some others in place of masked or missing ones."""
        i = i if i < dim else 0
        for tile in range(TILES):
            read(cache, max(cells[np.uint32(column) + 8 * tile], 0), dim, i, held, first + 4 * tile, rest_of_held)

    @lane
    def read_values(cache, cells, column, seen, dim, i, held, first):
        """Read 8 dimensions of four positions, of which those of columns that are not seen are 0."""
        begin, n = np.uint32(seen[0]), np.uint32(seen[1] - seen[0] if i < dim else 0)
        for j in range(4):
            at, cell = np.uint32(column + j % 2 + 8 * (j // 2)), np.int32(-1)
            if np.uint32(at - begin) < n:
                cell = cells[at]
            if cell >= 0:
                read(cache, cell, dim, i, held, first + 4 * j, rest_of_held)
            else:
                for k in range(first + 4 * j, first + 4 * j + 4):
                    held[k] = np.uint32(0)
                    if rest_of_held:
                        held[rest_of_held + k] = np.uint32(0)

    return read_keys, add_scores, read_values, add_values


def rest_of(kind):
    """Where the remainders begin among a lane's words of rows; 0: halves have none."""
    return 0 if kind == "f16" else N_HELD


def words_of(n_rows):
    """How many words are staged of nearest halves; as many of remainders come after them."""
    return n_rows * HEADS * STAGED // 2


@lane
def _weigh(tile, sums, at, most):
    """Make weights of the scores of a tile."""
    for j in range(at + 4 * tile, at + 4 * tile + 2):
        score = sums[j]
        weight = gpu.exp(gpu.add(score, -np.float32(most)))
        sums[j] = np.float32(0) if score == np.float32(_NONE) else weight


@lane
def _total(sums, at):
    """The sum of a row's weights that a lane has."""
    total = np.float32(0)
    for tile in range(TILES):
        total = gpu.add(gpu.add(total, sums[at + 4 * tile]), sums[at + 4 * tile + 1])
    return total


def for_each(n, function):
    """The function that calls another one with 0 to n - 1: written out, so that the numbered values stay in registers."""
    last = n - 1
    before = for_each(last, function) if last else None

    @together
    def all_of(*args):
        if before is not None:
            before(*args)
        function(last, *args)

    return all_of


_weigh_tiles = for_each(TILES, _weigh)


def weights_of(n_rows):
    """Functions that make weights of a warp's scores of n_rows times 16 heads, and that stage their fragments."""
    n_words, n_heads_of_block = words_of(n_rows), HEADS * n_rows

    @together
    def weigh_row(row, warp, i, sums, most_of_warps, totals_of_warps):
        """Make weights of such scores, and write their sum."""
        most = most_of_warps[8 * row + i // 4]
        for other in range(1, ATTEND_WARPS):
            most = gpu.larger(most, most_of_warps[other * n_heads_of_block + 8 * row + i // 4])
        at = 4 * (row // 2 * TILES) + 2 * (row % 2)
        _weigh_tiles(sums, at, most)
        total = quad_sum(_total(sums, at))
        if i % 4 == 0:
            totals_of_warps[warp * n_heads_of_block + 8 * row + i // 4] = total

    @lane
    def stage_weights(sums, warp, i, staged):
        """Stage fragments of weights: a lane has the same ones as of scores."""
        for tile in range(TILES):
            for row in range(2 * n_rows):
                at = 4 * (row // 2 * TILES + tile) + 2 * (row % 2)
                step, part = TILES // 2 * warp + tile // 2, row % 2 + 2 * (tile % 2)
                word = ((step * n_rows + row // 2) * 4 + part) * WARP + i
                staged[word], staged[n_words + word] = two_halves(sums[at], sums[at + 1])

    return for_each(2 * n_rows, weigh_row), stage_weights


@lane
def clear(sums, n):
    """Let n sums be 0."""
    for j in range(n):
        sums[j] = np.float32(0)
