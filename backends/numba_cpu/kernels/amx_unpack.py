"""Packed weights → tiles of bfloat16, see `amx.py`.

A weight is computed in float16 and rounded from there, which takes the fewest instructions. Float16 has few exponents, so each
row's weights are multiplied with a power of two that brings the largest near 2**13, and its sums with the inverse: the loss is
2**-27 of the largest. Activations are multiplied with 2**40, lest products be denormal numbers: those from 2**88 on count as
infinite, those below 2**-67 as zero.

Two bytes of a row, as the planes have them, are columns c and c + 2 of a pair, so that pair 2 * v + d of a block stands for
columns 4 * v + d and 4 * v + d + 2: activations are laid out likewise.

Of weights of 16 bits, a float16 is the sum of two bfloat16, a bfloat16 is one. Their activations are taken for the sum of two:
each itself, rounded, and the remainder, rounded, which is off by 2**-18 of it at most. If both are cut, the product of both
remainders is not computed: it is 2**-16 of a product at most, of either sign.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import ROW_BYTES, TILE_BYTES, TILE_ROWS, TILES, Tiles, float16_bits
from augury.backends.numba_cpu.kernels.format import BLOCK, FORMATS, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import at, load_part
from augury.backends.numba_cpu.kernels.unpack import GROUPS, LOGICAL, Planes, Scales, shared_bit

_HALVES = ir.VectorType(simd.F16, 16)
_FRACTIONS = {4, 5}  # bits of numbers that are fastest put below the one of a float16
_TABLE_BITS = 3  # numbers of up to so many bits are looked up
_MANTISSA = 10  # bits of a float16
_LARGE = 1024  # from here on to twice as much a float16 has the bits of a whole number
_UNSHRINK = 112
_N_FACTORS = 2  # of a half of a group: the factors of numbers, and the additions or the bits that columns share
FACTOR_BYTES = 2 * len(GROUPS) * _N_FACTORS * VECTOR
SHIFT = 40  # of activations' exponents
# Columns of four, as pairs have them.
PAIRED = (0, 2, 1, 3)


class _Scales(Scales):
    """The scales and minima of a block's 32 rows, float16, times the powers of two of the rows."""

    whole, floats = simd.I16X32, simd.F16X32

    def __init__(self, fmt: Format, tiles: Tiles, unit: ir.Value, index: ir.Value, exponents: ir.Value) -> None:
        """Say of which block in which unit."""
        super().__init__(fmt, unit, index)
        self.tiles, self.exponents = tiles, exponents

    def _d(self, b: ir.IRBuilder, start: int) -> ir.Value:
        return self.tiles.scale(b, simd.load(b, at(b, self.unit, start), simd.F16X32), self.exponents)

    def _fma(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return self.tiles.fma(b, x, y, z)

    def _power_of_two(self, b: ir.IRBuilder, e: ir.Value) -> ir.Value:
        exponents = b.fadd(self.exponents, b.uitofp(e, simd.F16X32))
        return self.tiles.scale(b, simd.constant(simd.F16X32, 1.0), b.fsub(exponents, simd.constant(simd.F16X32, 128.0)))

    def _float8(self, b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
        """See `Scales._float8`: as a float16 it lacks its bias."""
        moved = b.bitcast(b.shl(bits, simd.constant(simd.I16X32, 7)), simd.F16X32)
        return self.tiles.scale(b, moved, b.fadd(self.exponents, simd.constant(simd.F16X32, 7.0)))


def _fraction_size(fmt: Format) -> int:
    """Return the size if numbers q come as 1 + q / size, or else 0."""
    return 1 << fmt.bits if not fmt.values and fmt.bits in _FRACTIONS else 0


class _Factors:
    """The factors of a block's numbers and, if there are any, the additions, in memory at an address."""

    def __init__(self, fmt: Format, address: ir.Value) -> None:
        self.fmt, self.address = fmt, address
        self.n = 1 + (fmt.has_minimum or _fraction_size(fmt) > 0)

    def fill(self, b: ir.IRBuilder, scales: _Scales) -> None:
        """Store the computed scales."""
        for half in range(self.fmt.halves):
            for i, of_rows in enumerate(self._of(b, scales, half)):
                for g in GROUPS:
                    simd.store(b, self._place(b, g, half, i), _for_pairs(b, of_rows, g))
        if self.fmt.is_shared:
            nibbles = scales.shared_bits(b)
            for g in GROUPS:
                simd.store(b, self._place(b, g, 0, self.n), _for_pairs(b, nibbles, g))

    def _of(self, b: ir.IRBuilder, scales: _Scales, half: int) -> list[ir.Value]:
        scale, *minimum = scales.of(b, half)
        if not (size := _fraction_size(self.fmt)):
            return [scale, *minimum]
        taken = simd.constant(simd.F16X32, -float(size + self.fmt.offset))
        added = scales.tiles.fma(b, scale, taken, *minimum) if minimum else b.fmul(scale, taken)
        return [b.fmul(scale, simd.constant(simd.F16X32, float(size))), added]

    def load(self, b: ir.IRBuilder, g: int, half: int) -> list[ir.Value]:
        """Load the factors of a half's numbers of a group of rows, and the additions."""
        return [simd.load(b, self._place(b, g, half, i), simd.F16X32) for i in range(self.n)]

    def shared(self, b: ir.IRBuilder, g: int) -> ir.Value:
        """Load the bits that columns share."""
        return simd.load(b, self._place(b, g, 0, self.n), simd.I16X32)

    def _place(self, b: ir.IRBuilder, g: int, half: int, i: int) -> ir.Value:
        return at(b, self.address, ((2 * g + half) * _N_FACTORS + i) * VECTOR)


class _Weights:
    """The weights of a group of rows of a block, as pairs of columns of 16 rows."""

    def __init__(self, b: ir.IRBuilder, factors: _Factors, tiles: Tiles, planes: ir.Value, g: int) -> None:
        """Take the group's part of the factors."""
        self.fmt, self.tiles, self._planes = factors.fmt, tiles, Planes(factors.fmt, planes, g)
        self._size = _fraction_size(self.fmt)
        self._factors = [factors.load(b, g, half) for half in range(self.fmt.halves)]
        self._shared = factors.shared(b, g) if self.fmt.is_shared else None

    def pair(self, b: ir.IRBuilder, v: int, d: int) -> ir.Value:
        """Return columns 4 * v + d and 4 * v + d + 2, i16x32."""
        scale, *added = self._factors[v * self.fmt.halves // LOGICAL]
        number = self._number(b, v, d)
        return self.tiles.shrink(b, self.tiles.fma(b, number, scale, *added) if added else b.fmul(number, scale))

    def _number(self, b: ir.IRBuilder, v: int, d: int) -> ir.Value:
        """Return the numbers that are to be scaled, float16."""
        fmt = self.fmt
        if self._size:
            bits = b.or_(self._take(b, v, d, _MANTISSA - fmt.bits), simd.constant(simd.I16X32, float16_bits(1)))
            return b.bitcast(bits, simd.F16X32)
        bits = self._take(b, v, d, 0)
        if fmt.values:
            return self.tiles.choose(b, fmt.values, bits)
        if fmt.bits <= _TABLE_BITS:
            return self.tiles.choose(b, tuple(q - fmt.offset for q in range(1 << fmt.bits)), bits)
        bits = b.or_(bits, simd.constant(simd.I16X32, float16_bits(_LARGE)))
        return b.fsub(b.bitcast(bits, simd.F16X32), simd.constant(simd.F16X32, float(_LARGE + fmt.offset)))

    def _take(self, b: ir.IRBuilder, v: int, d: int, to: int) -> ir.Value:
        """Return the bits of the numbers of vector v, moved to bit `to`."""
        fmt, is_masked = self.fmt, not self.fmt.values or self.fmt.high > 0 or self.fmt.low != 4  # four bits are looked up
        bits = self._planes.bits(b, v, first=8 * d, to=to, ones=1, is_masked=is_masked)
        return bits if self._shared is None else b.or_(bits, shared_bit(b, fmt, self._shared, v, 1))


def _for_pairs(b: ir.IRBuilder, of_rows: ir.Value, g: int) -> ir.Value:
    """Repeat the value of each of a group's 16 rows for both numbers of its pairs."""
    lanes = ir.Constant(ir.VectorType(simd.I32, 32), [16 * g + lane // 2 for lane in range(32)])
    return b.shuffle_vector(of_rows, of_rows, lanes)


def _block_of(b: ir.IRBuilder, fmt: Format, w: ir.Value, index: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the unit that has a block, and which of its blocks that is."""
    n_blocks = ir.Constant(simd.I64, fmt.unit_blocks)
    return b.add(w, b.mul(b.udiv(index, n_blocks), ir.Constant(simd.I64, fmt.unit_bytes))), b.urem(index, n_blocks)


@simd.emitted(*[simd.i64] * 4, n_literals=2)
def unpack_factors(b, kind, isa, w, index, exponents, out):
    """The form of a block's scales for `unpack_tiles`, FACTOR_BYTES."""
    fmt, tiles = FORMATS[kind], TILES[isa]
    scales = _Scales(fmt, tiles, *_block_of(b, fmt, w, index), simd.load(b, exponents, simd.F16X32))
    _Factors(fmt, out).fill(b, scales)


@simd.emitted(*[simd.i64] * 5, n_literals=2)
def unpack_tiles(b, kind, isa, w, index, factors, out, ahead):
    """Block `index` of those from w on, to two tiles, one for each group of rows.

    As many bytes as a block has are fetched from `ahead` on.
    """
    fmt, tiles = FORMATS[kind], TILES[isa]
    n_lines = -(-fmt.unit_bytes // (fmt.unit_blocks * VECTOR))
    n_pairs = len(GROUPS) * LOGICAL * 2
    unit, index = _block_of(b, fmt, w, index)
    planes = b.add(at(b, unit, fmt.scale_bytes), b.mul(index, ir.Constant(simd.I64, fmt.block_bytes)))
    lines = iter(range(n_lines))
    for g in GROUPS:
        weights = _Weights(b, _Factors(fmt, factors), tiles, planes, g)
        for v in range(LOGICAL):
            for d in range(2):
                pair = 2 * v + d
                simd.store(b, at(b, out, g * TILE_BYTES + pair * ROW_BYTES), weights.pair(b, v, d))
                # one after the other: many at once would wait for each other
                if (g * TILE_ROWS + pair) * n_lines % n_pairs < n_lines:
                    simd.emit_prefetch(b, at(b, ahead, VECTOR * next(lines)), 2)


def _inverse(b: ir.IRBuilder, exponents: ir.Value) -> ir.Value:
    """Return the factors of sums of 16 rows, float32, given the address of the rows' exponents."""
    values = b.fpext(simd.load(b, exponents, _HALVES), simd.F32X16)
    bits = b.sub(simd.constant(simd.I32X16, 127 + _UNSHRINK - SHIFT), b.fptosi(values, simd.I32X16))
    powers = b.bitcast(b.shl(bits, simd.constant(simd.I32X16, 23)), simd.F32X16)
    return b.select(b.fcmp_ordered("ord", values, values), powers, simd.constant(simd.F32X16, float("nan")))


inverse = simd.operation("inverse", simd.f32x16, (simd.i64,), _inverse)


@simd.emitted(simd.i64, simd.i64, n_literals=1)
def _round(b, isa, x, out):
    """Round 32 float32 to 64 bytes."""
    tiles = TILES[isa]
    order = [4 * (lane // 4) + PAIRED[lane % 4] for lane in range(16)]
    halves = [
        b.fmul(simd.load(b, at(b, x, 64 * half), simd.F32X16), simd.constant(simd.F32X16, 2.0**SHIFT)) for half in range(2)
    ]
    lanes = ir.Constant(ir.VectorType(simd.I32, 16), order)
    simd.store(b, out, tiles.round(b, *(b.shuffle_vector(half, half, lanes) for half in halves)))


def bfloat16_quantize(isa: str) -> Any:
    """Make the kernel that rounds activations for tiles; its arguments are those of `quantize_q8_16`."""

    def quantize(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
        block = i0 // n
        token = i0 - block * n
        for i in range(i0, i1):
            _round(isa, x + (token * k + block * BLOCK) * 4, out + i * ROW_BYTES)
            token += 1
            if token == n:
                block, token = block + 1, 0

    return kernel(quantize, f"quantize_bf16_{isa.replace('-', '_')}")


_COLUMN = 2 * PANEL_ROWS  # bytes of a column of a panel


def _cut(b: ir.IRBuilder, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cut float32 into the upper half of its bits and the remainder, float32 each."""
    upper = b.bitcast(b.and_(b.bitcast(value, simd.I32X16), simd.constant(simd.I32X16, 0xFFFF0000)), simd.F32X16)
    return upper, b.fsub(value, upper)


def _words(b: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    return b.shuffle_vector(
        b.bitcast(first, simd.I16X32), b.bitcast(second, simd.I16X32), ir.Constant(ir.VectorType(simd.I32, 32), lanes)
    )


def _unpack_bf16(b: ir.IRBuilder, columns: ir.Value, g: int) -> list[ir.Value]:
    even, odd = (simd.load(b, at(b, columns, _COLUMN * i), simd.I16X32) for i in range(2))
    return [_words(b, even, odd, [16 * g + lane // 2 + 32 * (lane % 2) for lane in range(32)])]


def _unpack_f16(b: ir.IRBuilder, columns: ir.Value, g: int) -> list[ir.Value]:
    halves = (simd.load(b, at(b, columns, _COLUMN * i + 2 * TILE_ROWS * g), ir.VectorType(simd.F16, 16)) for i in range(2))
    parts = zip(*(_cut(b, b.fpext(half, simd.F32X16)) for half in halves), strict=True)
    return [_words(b, even, odd, [lane // 2 * 2 + 1 + 32 * (lane % 2) for lane in range(32)]) for even, odd in parts]


_UNPACK = {"bf16": _unpack_bf16, "f16": _unpack_f16}
WEIGHT_PARTS = {"bf16": 1, "f16": 2}
"""How many bfloat16 a weight is the sum of, of those types that are cut."""
TOKEN_PARTS = 2


@simd.emitted(simd.i64, simd.i64, simd.i64, n_literals=1)
def unpack_floats(b, kind, columns, out, ahead):
    """32 columns of 32 rows → a tile for each group of rows, and if weights are cut, two more of the remainders.

    As many bytes are fetched from `ahead` on.
    """
    emit = _UNPACK[kind]
    for pair in range(TILE_ROWS):
        for g in GROUPS:
            for part, row in enumerate(emit(b, at(b, columns, 2 * _COLUMN * pair), g)):
                simd.store(b, at(b, out, (part * len(GROUPS) + g) * TILE_BYTES + ROW_BYTES * pair), row)
            simd.emit_prefetch(b, at(b, ahead, VECTOR * (len(GROUPS) * pair + g)), 2)


@simd.emitted(simd.f32x16, simd.f32x16, simd.i64, n_literals=1)
def _cut_32(b, isa, low, high, out):
    """Cut 16 float32, and 16 more, to 128 bytes."""
    tiles = TILES[isa]
    words = tiles.round(b, low, high)
    simd.store(b, out, words)
    rests = []
    for half, value in enumerate((low, high)):
        lanes = [16 * half + lane // 2 + 32 * (1 - lane % 2) for lane in range(32)]  # a zero below each
        rounded = b.bitcast(_words(b, words, ir.Constant(simd.I16X32, None), lanes), simd.F32X16)
        is_whole = b.fcmp_ordered("==", rounded, value)  # and nothing is left of infinity
        rests.append(b.select(is_whole, ir.Constant(simd.F32X16, None), b.fsub(value, rounded)))
    simd.store(b, at(b, out, ROW_BYTES), tiles.round(b, *rests))


def bfloat16_cut(isa: str) -> Any:
    """Make the kernel that cuts activations for tiles; its arguments are those of `quantize_f32`."""

    def quantize(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
        for i in range(i0, i1):
            block = i // n
            source, left = x + ((i - block * n) * k + block * BLOCK) * 4, k - block * BLOCK
            high = simd.zero_f32()
            if left > 16:
                high = load_part(source + 64, left - 16)
            _cut_32(isa, load_part(source, left), high, out + i * TOKEN_PARTS * ROW_BYTES)

    return kernel(quantize, f"quantize_bf16x2_{isa.replace('-', '_')}")
