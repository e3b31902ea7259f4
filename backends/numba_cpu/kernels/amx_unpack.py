"""Packed weights → tiles of bfloat16, see `amx.py`.

A weight is computed in float16 and rounded from there, which takes the fewest instructions. Float16 has few exponents, so each
row's weights are multiplied with a power of two that brings the largest near 2**13, and its sums with the inverse: the loss is
2**-27 of the largest. Activations are multiplied with 2**40, lest products be denormal numbers: those from 2**88 on count as
infinite, those below 2**-67 as zero.

Two bytes of a row, as the planes have them, are columns c and c + 2 of a pair, so that pair 2 * v + d of a block stands for
columns 4 * v + d and 4 * v + d + 2: activations are laid out likewise.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import ROW_BYTES, TILE_BYTES, TILE_ROWS, TILES, Tiles, float16_bits
from augury.backends.numba_cpu.kernels.format import BLOCK, FORMATS, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.unpack import GROUPS, LOGICAL, at

_HALVES, _BYTES = ir.VectorType(simd.F16, 16), ir.VectorType(simd.I8, 32)
_NUMBERS = 2 * PANEL_ROWS  # bytes of a float16 of each row
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


class _Scales:
    """The scales and minima of a block's 32 rows, float16, times the powers of two of the rows; see `format.py`."""

    def __init__(self, fmt: Format, tiles: Tiles, unit: ir.Value, index: ir.Value, exponents: ir.Value) -> None:
        """Say of which block in which unit."""
        self.fmt, self.tiles, self.unit, self.index, self.exponents = fmt, tiles, unit, index, exponents
        self._word: ir.Value | None = None

    def of(self, b: ir.IRBuilder, half: int) -> list[ir.Value]:
        """Return the scales of a half, or of the block where it has one scale, and the minima where there are any."""
        coding = self.fmt.coding
        if coding == "exponent":
            exponents = b.fadd(self.exponents, b.uitofp(self._bytes(b, 0), simd.F16X32))
            return [self.tiles.scale(b, simd.constant(simd.F16X32, 1.0), b.fsub(exponents, simd.constant(simd.F16X32, 128.0)))]
        if coding == "float8":
            bits = b.shl(self._own_bytes(b, 0, half), simd.constant(simd.I16X32, 7))  # a float16, except for its bias
            return [self.tiles.scale(b, b.bitcast(bits, simd.F16X32), b.fadd(self.exponents, simd.constant(simd.F16X32, 7.0)))]
        found = [self._scaled(b, _NUMBERS * place) for place in range(1 + self.fmt.has_minimum)]
        if coding == "f16":
            return found
        numbers = self._numbers(b, half, _NUMBERS * len(found))
        signs = (1, -1)  # minima are taken away
        return [b.fmul(d if sign > 0 else b.fneg(d), number) for d, number, sign in zip(found, numbers, signs, strict=False)]

    def _numbers(self, b: ir.IRBuilder, half: int, start: int) -> list[ir.Value]:
        """Return the factor of d, and of its minimum, from the bytes from `start` on; float16."""
        coding = self.fmt.coding
        if coding == "byte":
            return [b.sitofp(self._own_bytes(b, start, half, is_signed=True), simd.F16X32)]
        if coding in {"odd", "odd_single"}:
            s = self.nibbles(b, start) if coding == "odd_single" else self._half(b, self._bytes(b, start, PANEL_ROWS), half)
            factor = self.fmt.factor
            return [
                self.tiles.fma(
                    b, b.uitofp(s, simd.F16X32), simd.constant(simd.F16X32, 2.0 * factor), simd.constant(simd.F16X32, factor)
                )
            ]
        if coding == "nibble":
            both = self._own_bytes(b, start, half)
            return [b.uitofp(self._half(b, both, part), simd.F16X32) for part in range(2)]
        word, parts = self._sixes(b, start), (0, 6) if coding == "six" else (6 * half,)
        fields = [b.and_(b.lshr(word, simd.constant(simd.I16X32, part)), simd.constant(simd.I16X32, 63)) for part in parts]
        floats = [b.uitofp(field, simd.F16X32) for field in fields]
        return floats if coding == "six" else [b.fsub(floats[0], simd.constant(simd.F16X32, 32.0))]

    def nibbles(self, b: ir.IRBuilder, start: int) -> ir.Value:
        """Take the four bits of each row of which those of two blocks are a byte, i16x32."""
        two = ir.Constant(simd.I64, 2)
        place = b.add(at(b, self.unit, start), b.mul(b.udiv(self.index, two), ir.Constant(simd.I64, PANEL_ROWS)))
        shift = b.mul(b.trunc(b.urem(self.index, two), simd.I16), ir.Constant(simd.I16, 4))
        return b.and_(
            b.lshr(b.zext(simd.load(b, place, _BYTES), simd.I16X32), simd.splat(b, shift, simd.I16X32)),
            simd.constant(simd.I16X32, 15),
        )

    def _scaled(self, b: ir.IRBuilder, offset: int) -> ir.Value:
        """Load a float16 of each row."""
        return self.tiles.scale(b, simd.load(b, at(b, self.unit, offset), simd.F16X32), self.exponents)

    def _bytes(self, b: ir.IRBuilder, start: int, step: int = 0, *, is_signed: bool = False) -> ir.Value:
        """Load a byte of each row, those of a block `step` after those of the one before, i16x32."""
        place = b.add(at(b, self.unit, start), b.mul(self.index, ir.Constant(simd.I64, step)))
        return (b.sext if is_signed else b.zext)(simd.load(b, place, _BYTES), simd.I16X32)

    def _own_bytes(self, b: ir.IRBuilder, start: int, half: int, *, is_signed: bool = False) -> ir.Value:
        """Load a byte of each row for a half of this block."""
        return self._bytes(b, start + half * PANEL_ROWS, 2 * PANEL_ROWS, is_signed=is_signed)

    @staticmethod
    def _half(b: ir.IRBuilder, both: ir.Value, half: int) -> ir.Value:
        return b.lshr(both, simd.constant(simd.I16X32, 4)) if half else b.and_(both, simd.constant(simd.I16X32, 15))

    def _sixes(self, b: ir.IRBuilder, start: int) -> ir.Value:
        """Load the fields of six bits of this block: two in bits 0..11, or one in bits 0..5."""
        if self._word is None:
            n_blocks = ir.Constant(simd.I64, 4 if self.fmt.coding == "six_single" else 2)  # that share three bytes
            group, inside = b.udiv(self.index, n_blocks), b.urem(self.index, n_blocks)
            bit = b.mul(inside, b.udiv(ir.Constant(simd.I64, 24), n_blocks))
            place = b.add(at(b, self.unit, start), b.mul(group, ir.Constant(simd.I64, 3 * PANEL_ROWS)))
            place = b.add(place, b.mul(b.udiv(bit, ir.Constant(simd.I64, 8)), ir.Constant(simd.I64, PANEL_ROWS)))
            low, high = (b.zext(simd.load(b, at(b, place, step), _BYTES), simd.I16X32) for step in (0, PANEL_ROWS))
            word = b.or_(low, b.shl(high, simd.constant(simd.I16X32, 8)))
            self._word = b.lshr(word, simd.splat(b, b.trunc(b.urem(bit, ir.Constant(simd.I64, 8)), simd.I16), simd.I16X32))
        return self._word


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
            nibbles = scales.nibbles(b, self.fmt.scale_bytes - PANEL_ROWS * self.fmt.shared_bytes)
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
        self.fmt, self.tiles, self.planes, self.g = factors.fmt, tiles, planes, g
        self._loaded: dict[int, ir.Value] = {}
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
        fmt = self.fmt
        bits = self._plane(b, 0, fmt.low, v, d, to)
        if fmt.high:
            bits = b.or_(bits, self._plane(b, fmt.low, fmt.high, v, d, to + fmt.low))
        if self._shared is not None:
            is_set = b.icmp_unsigned(
                "!=", b.and_(self._shared, simd.constant(simd.I16X32, 1 << v // 2)), simd.constant(simd.I16X32, 0)
            )
            bits = b.or_(
                bits, b.select(is_set, simd.constant(simd.I16X32, 1 << fmt.low + fmt.high), simd.constant(simd.I16X32, 0))
            )
        return bits

    def _plane(self, b: ir.IRBuilder, plane: int, width: int, v: int, d: int, to: int) -> ir.Value:
        """Take `width` bits from the plane that begins at stored vector `plane`, moved to bit `to`."""
        per_stored = 8 // width
        stored = plane + v // per_stored
        if stored not in self._loaded:
            self._loaded[stored] = simd.load(b, at(b, self.planes, (2 * stored + self.g) * VECTOR), simd.I16X32)
        bits, down = self._loaded[stored], 8 * d + v % per_stored * width - to
        if down > 0:
            bits = b.lshr(bits, simd.constant(simd.I16X32, down))
        elif down < 0:
            bits = b.shl(bits, simd.constant(simd.I16X32, -down))
        if self.fmt.values and not self.fmt.high and width == 4:
            return bits  # tables are looked up by four bits
        return b.and_(bits, simd.constant(simd.I16X32, ((1 << width) - 1) << to))


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
