"""Products of halves: the operands in tensor cores' fragments. `stream` multiplies them.

A step is 64 columns: of weights 16 rows of them, of tokens' rows eight. Four instructions `mma.m16n8k16` multiply the two. The
order of their summed indices is free, so instruction 2 u + h of a step takes half h of unit u, and lane 4 g + i of it columns
4 i and 4 i + 2, then 4 i + 1 and 4 i + 3, of rows g and g + 8, or of token g. A lane's words of a step are neighbours.

**Weights.** A weight is the half that is nearest to scale * (integer - offset) + least. Scale and least are the halves nearest
to those of the file, times a power of two that brings the matrix' largest weight near the end of what halves can be. The
inverse of that power is the first of a matrix' words, of which `HEADER` come before the weights. Tile follows tile of 16 rows,
step follows step, and a step has all planes of its units, as `formats` packs them: words of weights, high bits, scales with
least ones.

**Tokens' rows** are cut into at most eight slices (`slices_of`). A slice of a row has the power of two that brings its largest
value to 2^14; a maximum has no order. A value is the half nearest to it times that power.
"""

from functools import cache, partial

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import SLICES, THREADS, WARP, cuda, kernel, lane, record, warp_max
from augury.backends.numba_cuda.kernels.formats import FORMATS, UNIT, Format
from augury.backends.numba_cuda.kernels.inputs import N_ROWS, N_TOKENS, ROWS
from augury.backends.numba_cuda.kernels.matmul import OF_ROUTES, tile_of_block
from augury.backends.numba_cuda.kernels.norm import NOTHING, NormArgs, NormedArgs, add_norm_of_row, moments, normed
from augury.backends.numba_cuda.kernels.routes import token_at

STEP = 64  # columns
MATRIX_ROWS, GROUP = 16, 8  # rows of weights and tokens of an instruction
HEADER = 4  # words, so that the others lie at multiples of 16 bytes
_QUAD_WORDS, _LANE_WORDS = MATRIX_ROWS * STEP // UNIT, 4 * WARP  # of a plane: a word of each unit, or one of each lane and unit
X_WORDS = GROUP * STEP // 2  # of a step of tokens' rows

_WARPS = THREADS // WARP
RowsArgs = record("RowsArgs", w="halves", f="powers", i="n_groups")
"""Tokens' rows: of each step those of `n_groups` of eight, and what a slice's sums are multiplied with, (rows, slices)."""


def n_numbers(fmt: Format) -> int:
    """Halves of scales and least ones of a unit."""
    return (1 + fmt.has_two_scales) * (1 + fmt.has_least)


def step_words(fmt: Format) -> int:
    """Words of a step of 16 rows of weights."""
    if fmt.is_float:
        return 4 * _LANE_WORDS
    main = _LANE_WORDS * fmt.n_main // 4 if fmt.n_main >= 4 else _QUAD_WORDS * fmt.n_main
    return main + _QUAD_WORDS * fmt.n_high + _QUAD_WORDS * n_numbers(fmt) // 2


def slices_of(n_cols: int) -> tuple[int, int, int]:
    """The steps of a row, the steps of a slice, and the slices: multiples of 256 columns, or of 64 where those do not fit."""
    n_steps = -(-n_cols // STEP)
    least = 4 if n_cols % 256 == 0 else 1
    n_of_slice = least * -(-n_steps // (least * SLICES))
    return n_steps, n_of_slice, -(-n_steps // n_of_slice)


# Tokens' rows


@lane
def _largest(x, first, n, i):
    """The largest magnitude of a lane's part of n values; NaN if one is."""
    most, positive = np.float32(0), np.uint32(0x7FFFFFFF)
    for at in range(4 * i, n, 4 * WARP):
        a, b, c, d = gpu.load16(x, first + at)
        most = gpu.larger(most, gpu.larger(gpu.float_of(a & positive), gpu.float_of(b & positive)))
        most = gpu.larger(most, gpu.larger(gpu.float_of(c & positive), gpu.float_of(d & positive)))
    return most


@lane
def _powers(most):
    """What values are divided by so that the largest becomes 2^14 to 2^15, and its inverse; both are normal floats."""
    exponent = min(max(gpu.bits_of(np.float32(most)) >> np.uint32(23), np.uint32(15)), np.uint32(254))
    return gpu.float_of(np.uint32(exponent - 14) << np.uint32(23)), gpu.float_of(np.uint32(268 - exponent) << np.uint32(23))


@lane
def _two(a, b, power):
    low, high = gpu.half_of_float(gpu.mul(a, power)), gpu.half_of_float(gpu.mul(b, power))
    return np.uint32(low | high << np.uint32(16))


@lane
def _put_four(a, b, c, d, column, row, power, to):
    """Store four values of a row from a column on, times a power of two."""
    at = (column // STEP * to.n_groups + row // GROUP) * X_WORDS + row % GROUP * 16
    at += column % STEP // UNIT * (X_WORDS // 2) + column % 16 + column % UNIT // 16 * 2
    to.halves[at], to.halves[at + 1] = _two(a, c, power), _two(b, d, power)


@lane
def _store(x, first, n, begin, end, row, power, i, to):
    """Store a lane's part of columns `begin` to `end` of a row of n values; those beyond are 0."""
    for column in range(begin + 4 * i, end, 4 * WARP):
        a = b = c = d = np.uint32(0)
        if column < n:
            a, b, c, d = gpu.load16(x, first + column)
        _put_four(gpu.float_of(a), gpu.float_of(b), gpu.float_of(c), gpu.float_of(d), column, row, power, to)


@kernel("jw", RowsArgs, "iiiiiiii")
def halve_rows(inputs, x, to, width, size, n_steps, n_of_slice, which, n_tokens, n_most, per_token):
    """Make halves of rows x (rows, width) of floats, of which `size` count: a warp for each slice of a row.

    With routes these are rows of tokens, and go where their places are.

    Args:
        inputs: See `matmul`.
        x, width, size: The rows.
        to: Where they go.
        n_steps, n_of_slice: Of a row, see `slices_of`.
        which, n_tokens: Which rows; a block of the grid's second direction has so many.
        n_most, per_token: Of routes, see `token_at`.
    """
    _, first, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
    row = first + cuda.blockIdx.x
    if row >= n_wanted:
        return
    i, s, start = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP, row * width
    if which == OF_ROUTES:
        start = token_at(inputs, n_most, per_token, row) * width
    begin, end = STEP * n_of_slice * s, STEP * min(n_steps, n_of_slice * (s + 1))
    power, inverse = _powers(warp_max(_largest(x, start + begin, min(size, end) - begin, i)))
    if i == 0:
        to.powers[row * (cuda.blockDim.x // WARP) + s] = power
    _store(x, start, size, begin, end, row, inverse, i, to)


@lane
def _normed_four(x, start, norm, column, size, mean, inverse):
    """Four values of a norm from a column on; beyond `size` 0."""
    if column >= size:
        return np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    return (
        normed(x, start + column, norm, column, size, mean, inverse),
        normed(x, start + column + 1, norm, column + 1, size, mean, inverse),
        normed(x, start + column + 2, norm, column + 2, size, mean, inverse),
        normed(x, start + column + 3, norm, column + 3, size, mean, inverse),
    )


@lane
def _largest_normed(x, start, norm, begin, end, size, mean, inverse, i):
    most = np.float32(0)
    for column in range(begin + 4 * i, end, 4 * WARP):
        a, b, c, d = _normed_four(x, start, norm, column, size, mean, inverse)
        most = gpu.larger(gpu.larger(most, gpu.larger(abs(a), abs(b))), gpu.larger(abs(c), abs(d)))
    return most


@lane
def _store_normed(x, start, norm, begin, end, size, mean, inverse, i, row, power, to, floats, width):
    for column in range(begin + 4 * i, end, 4 * WARP):
        a, b, c, d = _normed_four(x, start, norm, column, size, mean, inverse)
        _put_four(a, b, c, d, column, row, power, to)
        if column < width:
            at = row * width + column
            floats[at], floats[at + 1], floats[at + 2], floats[at + 3] = a, b, c, d


@kernel("j", NormedArgs, NormArgs, NormArgs, RowsArgs, "fiiii")
def norm_halves(inputs, params, y_norm, norm, to, floats, width, n_steps, n_of_slice, n_slices):
    """Norm whole rows as `norm_rows` does, and make halves of them as `halve_rows`, in one launch.

    Args:
        inputs, params, y_norm, norm: See `norm_rows`; sizes are multiples of four.
        to, n_steps, n_of_slice: See `halve_rows`.
        floats, width: Where the values go as floats, (rows, width), too, unless the width is 0.
        n_slices: Of a row.
    """
    t, thread, parts = cuda.blockIdx.x, np.uint32(cuda.threadIdx.x), cuda.shared.array(_WARPS, np.float32)
    x, y, size = params.x, params.y, params.size
    if t >= (inputs[N_ROWS] if params.is_output else inputs[N_TOKENS]):
        return
    start = (inputs[ROWS + t] if params.is_output else t) * params.stride
    if y_norm.kind != NOTHING:
        add_norm_of_row(y, x, start, t * params.y_stride, size, thread, y_norm, params.is_traded, parts)
    mean, inverse = moments(x, start, size, THREADS, norm, parts)
    for s in range(thread // WARP, n_slices, _WARPS):
        begin, end = STEP * n_of_slice * s, STEP * min(n_steps, n_of_slice * (s + 1))
        largest = warp_max(_largest_normed(x, start, norm, begin, end, size, mean, inverse, thread % WARP))
        power, inverse_power = _powers(largest)
        if thread % WARP == 0:
            to.powers[t * n_slices + s] = power
        _store_normed(x, start, norm, begin, end, size, mean, inverse, thread % WARP, t, inverse_power, to, floats, width)


@lane
def place_of(row, i):
    """The first of a lane's words of a step of a token's row."""
    return gpu.index_of(np.uint32(row // GROUP * X_WORDS + row % GROUP * 16 + 4 * (i % 4)))


@lane
def row_words(x, at):
    """A lane's words of a step of a token's row."""
    return gpu.load16(x, at) + gpu.load16(x, at + X_WORDS // 2)


# Weights

_THOUSAND = 0x64006400  # 1024, a half whose last bit is worth 1: integers below that are added by putting their bits there
_NIBBLES = FORMATS["Q4_0"].unpack
_SIGNED = ("Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4")


def _plane(first: int, n_words: int) -> object:
    """The lane function (words, places) → a lane's words, two or four, of a plane of so many, from the first one on."""
    kind = 0 if n_words == _LANE_WORDS else 1 if n_words == _QUAD_WORDS else 2

    @lane
    def four(w, at):
        return gpu.weights16(w, at[kind] + first)

    @lane
    def two(w, at):
        return gpu.weights8(w, at[kind] + first)

    return two if kind == 2 else four


@lane
def places_of(at, i):
    """Where a lane's words begin of planes of its own, and of those that lanes 4 g to 4 g + 3 share: of four words, of two."""
    quad = i // np.uint32(4)
    return gpu.index_of(np.uint32(at + 4 * i)), gpu.index_of(np.uint32(at + 4 * quad)), gpu.index_of(np.uint32(at + 2 * quad))


@lane
def _none(_, __):
    return np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)


def _joined(planes: list[object]) -> object:
    """The lane function that reads the words of several planes, one after the other."""
    if not planes:
        return _none
    if len(planes) == 1:
        return planes[0]
    before, last = _joined(planes[:-1]), planes[-1]
    return lane(lambda w, at: before(w, at) + last(w, at))


@cache
def read_of(fmt: Format) -> object:
    """The lane function (words, `places_of` a step) → words of a lane's weights, of high bits, of numbers."""
    n_lane, n_quad = (4, 0) if fmt.is_float else (fmt.n_main // 4, fmt.n_main % 4)
    sizes = [_LANE_WORDS] * n_lane + [_QUAD_WORDS] * n_quad, [_QUAD_WORDS] * fmt.n_high, []
    if not fmt.is_float:
        sizes = *sizes[:2], [_QUAD_WORDS] * (n_numbers(fmt) // 2) or [_QUAD_WORDS // 2]
    parts, at = [], 0
    for some in sizes:
        planes = []
        for n_words in some:
            planes.append(_plane(at, n_words))
            at += n_words
        parts.append(_joined(planes))
    assert at == step_words(fmt), fmt.name
    main, high, numbers = parts
    return lane(lambda w, at: (main(w, at), high(w, at), numbers(w, at)))


@cache
def _integers(fmt: Format) -> object:
    """The lane function (two words of weights, two of high bits, i) → four words of two integers less the offset."""
    unpack, is_nibbles, is_signed = fmt.unpack, fmt.unpack is _NIBBLES, fmt.name in _SIGNED
    least = np.uint32(_THOUSAND + 0x10001 * (fmt.offset + (128 if is_signed else 0)))
    sixteenth, least_of_high = np.uint32(0x2C002C00), np.uint32(0xD400D400 + 0x10001 * 16 * fmt.offset)
    thousand, signs = np.uint32(_THOUSAND), np.uint32(0x80808080)

    @lane
    def pair(word):
        even, odd = gpu.prmt(word, thousand, np.uint32(0x5250)), gpu.prmt(word, thousand, np.uint32(0x5351))
        return gpu.half2_sub(even, least), gpu.half2_sub(odd, least)

    @lane
    def nibbles(word):
        even, odd = np.uint32(word), np.uint32(word >> np.uint32(8))
        low, high = np.uint32(0x000F000F), np.uint32(0x00F000F0)
        a, b = gpu.half2_sub(gpu.lop3(even, low), least), gpu.half2_sub(gpu.lop3(odd, low), least)
        c = gpu.half2_fma(gpu.lop3(even, high), sixteenth, least_of_high)
        d = gpu.half2_fma(gpu.lop3(odd, high), sixteenth, least_of_high)
        return a, b, c, d

    @lane
    def integers(first, second, low, high, i):
        if is_nibbles:
            return nibbles(first)
        first, second = unpack(first, second, low, high, i)
        if is_signed:
            first, second = first ^ signs, second ^ signs
        return pair(first) + pair(second)

    return integers


def _scales(fmt: Format, k: int) -> object:
    """The lane function (words of numbers) → the scales of both halves of unit k of four, and least ones, as pairs."""
    n, has_least, chosen = n_numbers(fmt), fmt.has_least, np.uint32(0x3232 if k % 2 else 0x1010)
    at, other = k // 2 if n == 1 else k, 4 + k

    @lane
    def twice(word, chosen):
        return gpu.prmt(word, word, np.uint32(chosen))

    @lane
    def scales(numbers):
        if n == 1:
            scale = twice(numbers[at], chosen)
            return scale, scale, np.uint32(0), np.uint32(0)
        first, second = twice(numbers[at], 0x1010), twice(numbers[at], 0x3232)
        if n == 4:
            return first, twice(numbers[other], 0x1010), second, twice(numbers[other], 0x3232)
        return (first, first, second, second) if has_least else (first, second, np.uint32(0), np.uint32(0))

    return scales


def _unit_of(fmt: Format, k: int) -> object:
    """The lane function (a lane's words, i) → its four words of unit k: first of row g, then of g + 8, two units each."""
    if fmt.is_float:

        @lane
        def halves(held, i):
            return held[0][k], held[0][4 + k], held[0][8 + k], held[0][12 + k]

        return halves
    integers, scales, has_least = _integers(fmt), _scales(fmt, k), fmt.has_least
    second = k if fmt.n_main == 4 else 4 + k
    high = 4 + k if fmt.n_high == 2 else k

    @lane
    def weigh(integer, scale, least):
        return gpu.half2_fma(integer, scale, least) if has_least else gpu.half2_mul(integer, scale)

    @lane
    def unit(held, i):
        main, highs, numbers = held
        a, b, c, d = integers(main[k], main[second], highs[k], highs[high], np.uint32(i % 4))
        scale, other, least, other_least = scales(numbers)
        return weigh(a, scale, least), weigh(b, scale, least), weigh(c, other, other_least), weigh(d, other, other_least)

    return unit


@cache
def weights_of(fmt: Format) -> object:
    """The lane function (words of a lane, lane) → its operands of a step's four instructions, four words each."""
    first, second, third, fourth = map(partial(_unit_of, fmt), range(4))

    @lane
    def weights(held, i):
        a, b, c, d = first(held, i)
        e, f, g, h = third(held, i)
        p, q, r, s = second(held, i)
        t, u, v, w = fourth(held, i)
        return a, e, b, f, c, g, d, h, p, t, q, u, r, v, s, w

    return weights
