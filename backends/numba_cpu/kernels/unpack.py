"""Packed weights → operands of the dot products, as LLVM IR.

A *source* is where a tile takes its weights from: packed bytes, unpacked in registers, or the scratch memory that a packed
unit was unpacked to before. Both give the same vectors, so a tile's result does not depend on which it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from attrs import frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.format import PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.simd import I8, I64, at, constant, load, splat

if TYPE_CHECKING:
    LookUp = Callable[..., ir.Value]  # see `isa.InstructionSet`

GROUPS = (0, 1)
LOGICAL = 8  # logical vectors of a block

# One block in scratch: 8 logical vectors, then scales, then minima; of each half of the block, of each group.
SCRATCH_SCALES = LOGICAL * 2 * VECTOR
SCRATCH_MINIMA = SCRATCH_SCALES + 4 * VECTOR
SCRATCH_BLOCK = SCRATCH_MINIMA + 4 * VECTOR


@frozen
class ScratchBlock:
    """A block that was unpacked to scratch memory at `address`."""

    fmt: Format
    address: ir.Value

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Load logical vector v of group g, u8x64."""
        return simd.load(b, at(b, self.address, (2 * v + g) * VECTOR), simd.U8X64)

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> list[ir.Value]:
        """Load scale and minimum, f32x16, of a half (or of the block, if it has one scale) of group g."""
        starts = (SCRATCH_SCALES, SCRATCH_MINIMA)[: 1 + self.fmt.has_minimum]
        return [simd.load(b, at(b, self.address, start + (2 * half + g) * VECTOR), simd.F32X16) for start in starts]

    def fill(self, b: ir.IRBuilder, block: PackedBlock) -> None:
        """Store the vectors of a packed block."""
        for v in range(LOGICAL):
            for g in GROUPS:
                simd.store(b, at(b, self.address, (2 * v + g) * VECTOR), block.weights(b, v, g))
        for half in range(self.fmt.halves):
            for g in GROUPS:
                for start, number in zip((SCRATCH_SCALES, SCRATCH_MINIMA), block.scales(b, half, g), strict=False):
                    simd.store(b, at(b, self.address, start + (2 * half + g) * VECTOR), number)


class Scales(ABC):
    """The scales and minima of a packed block's rows, decoded in registers; see `format.py` for codings.

    They are of block `index` of the unit at `unit`, for as many rows from row `first` on as a vector has lanes.

    Subclasses load a float16 of each row (`_d`), make 2**(e - 128) of bytes e, and half of floats of 8 bits.

    Attributes:
        whole: The type of vectors of whole numbers.
        floats: That of vectors of results, of as many lanes.
    """

    whole: ir.VectorType
    floats: ir.VectorType

    def __init__(self, fmt: Format, unit: ir.Value, index: ir.Value, first: int = 0) -> None:
        self.fmt, self.unit, self.index, self.first = fmt, unit, index, first
        self._sixes: ir.Value | None = None

    def of(self, b: ir.IRBuilder, half: int) -> list[ir.Value]:
        """Return the scales of a half, or of the block where it has one scale, and the minima where there are any."""
        if self.fmt.coding == "exponent":
            return [self._power_of_two(b, self.bytes(b, 0))]
        if self.fmt.coding == "float8":
            return [self._float8(b, self._own_bytes(b, 0, half))]
        found = [self._d(b, 2 * PANEL_ROWS * place) for place in range(1 + self.fmt.has_minimum)]
        if self.fmt.coding == "f16":
            return found
        factors = [b.sitofp(number, self.floats) for number in self._numbers(b, half, 2 * PANEL_ROWS * len(found))]
        if self.fmt.coding in {"odd", "odd_single"}:
            twice, once = (constant(self.floats, times * self.fmt.factor) for times in (2.0, 1.0))
            factors = [self._fma(b, factor, twice, once) for factor in factors]
        d, *minimum = found  # which is taken away
        return [b.fmul(each, factor) for each, factor in zip((d, *map(b.fneg, minimum)), factors, strict=True)]

    def shared_bits(self, b: ir.IRBuilder) -> ir.Value:
        """Take the highest bits of numbers that columns share, a bit for each eight columns."""
        return self._nibbles(b, self.fmt.scale_bytes - PANEL_ROWS * self.fmt.shared_bytes)

    def bytes(self, b: ir.IRBuilder, start: int, step: int = 0, *, is_signed: bool = False) -> ir.Value:
        """Load a byte of each row, those of a block `step` after those of the one before."""
        place = b.add(at(b, self.unit, start + self.first), b.mul(self.index, ir.Constant(I64, step)))
        return self._extended(b, place, is_signed=is_signed)

    @abstractmethod
    def _d(self, b: ir.IRBuilder, start: int) -> ir.Value: ...

    @abstractmethod
    def _fma(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value: ...

    @abstractmethod
    def _power_of_two(self, b: ir.IRBuilder, e: ir.Value) -> ir.Value: ...

    @abstractmethod
    def _float8(self, b: ir.IRBuilder, bits: ir.Value) -> ir.Value: ...

    def _numbers(self, b: ir.IRBuilder, half: int, start: int) -> Sequence[ir.Value]:
        """Return the whole numbers that d is multiplied with, and its minimum, from the bytes from `start` on."""
        coding = self.fmt.coding
        if coding == "byte":
            return [self._own_bytes(b, start, half, is_signed=True)]
        if coding == "odd_single":
            return [self._nibbles(b, start)]
        if coding == "odd":
            return [self._nibble(b, self.bytes(b, start, PANEL_ROWS), half)]
        if coding == "nibble":
            both = self._own_bytes(b, start, half)
            return [self._nibble(b, both, part) for part in range(2)]
        word = self._word_of_sixes(b, start)
        fields = [self._field(b, word, bit) for bit in ((0, 6) if coding == "six" else (6 * half,))]
        return fields if coding == "six" else [b.sub(fields[0], constant(self.whole, 32))]

    def _own_bytes(self, b: ir.IRBuilder, start: int, half: int, *, is_signed: bool = False) -> ir.Value:
        """Load a byte of each row for a half of this block."""
        return self.bytes(b, start + half * PANEL_ROWS, 2 * PANEL_ROWS, is_signed=is_signed)

    def _nibbles(self, b: ir.IRBuilder, start: int) -> ir.Value:
        """Take the four bits of each row of which those of two blocks are a byte."""
        two = ir.Constant(I64, 2)
        place = b.add(at(b, self.unit, start + self.first), b.mul(b.udiv(self.index, two), ir.Constant(I64, PANEL_ROWS)))
        bit = b.mul(b.urem(self.index, two), ir.Constant(I64, 4))
        return b.and_(self._shifted(b, self._extended(b, place), bit), constant(self.whole, 15))

    def _nibble(self, b: ir.IRBuilder, both: ir.Value, half: int) -> ir.Value:
        return b.lshr(both, constant(self.whole, 4)) if half else b.and_(both, constant(self.whole, 15))

    def _word_of_sixes(self, b: ir.IRBuilder, start: int) -> ir.Value:
        """Load the fields of six bits of this block: two in bits 0..11, or one in bits 0..5."""
        if self._sixes is None:
            n_blocks = 4 if self.fmt.coding == "six_single" else 2  # that share three bytes
            group, inside = (of(self.index, ir.Constant(I64, n_blocks)) for of in (b.udiv, b.urem))
            place = b.add(at(b, self.unit, start + self.first), b.mul(group, ir.Constant(I64, 3 * PANEL_ROWS)))
            bit, n_bytes = b.mul(inside, ir.Constant(I64, 24 // n_blocks)), min(3, self.whole.element.width // 8)
            if n_bytes < 3:  # of a word: those from the fields on
                eight = ir.Constant(I64, 8)
                place = b.add(place, b.mul(b.udiv(bit, eight), ir.Constant(I64, PANEL_ROWS)))
                bit = b.urem(bit, eight)
            planes = [self._extended(b, at(b, place, i * PANEL_ROWS)) for i in range(n_bytes)]
            word = reduce(b.or_, [b.shl(plane, constant(self.whole, 8 * i)) for i, plane in enumerate(planes)])
            self._sixes = self._shifted(b, word, bit)
        return self._sixes

    def _field(self, b: ir.IRBuilder, word: ir.Value, bit: int) -> ir.Value:
        return b.and_(b.lshr(word, constant(self.whole, bit)), constant(self.whole, 63))

    def _extended(self, b: ir.IRBuilder, place: ir.Value, *, is_signed: bool = False) -> ir.Value:
        return (b.sext if is_signed else b.zext)(load(b, place, ir.VectorType(I8, self.whole.count)), self.whole)

    def _shifted(self, b: ir.IRBuilder, word: ir.Value, bit: ir.Value) -> ir.Value:
        return b.lshr(word, splat(b, b.trunc(bit, self.whole.element), self.whole))


class _FloatScales(Scales):
    """Scales of a group of 16 rows as float32."""

    whole, floats = simd.I32X16, simd.F32X16

    def _d(self, b: ir.IRBuilder, start: int) -> ir.Value:
        place = at(b, self.unit, start + 2 * self.first)
        return b.fpext(simd.load(b, place, ir.VectorType(simd.F16, 16)), simd.F32X16)

    def _fma(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return simd.emit_fma(b, x, y, z)

    def _power_of_two(self, b: ir.IRBuilder, e: ir.Value) -> ir.Value:
        """See `Scales._power_of_two`: the two smallest bytes give denormal numbers."""
        normal = b.shl(b.sub(e, simd.constant(simd.I32X16, 1)), simd.constant(simd.I32X16, 23))
        small = b.shl(b.add(e, simd.constant(simd.I32X16, 1)), simd.constant(simd.I32X16, 21))
        is_small = b.icmp_unsigned("<", e, simd.constant(simd.I32X16, 2))
        return b.bitcast(b.select(is_small, small, normal), simd.F32X16)

    def _float8(self, b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
        """See `Scales._float8`: as a float32 it is 2**120 times smaller, denormal numbers included."""
        moved = b.bitcast(b.shl(bits, simd.constant(simd.I32X16, 20)), simd.F32X16)
        return b.fmul(moved, simd.constant(simd.F32X16, 2.0**119))


class Planes:
    """The numbers of a group of rows of a block, from its planes."""

    def __init__(self, fmt: Format, address: ir.Value, g: int) -> None:
        self.fmt, self.address, self.g = fmt, address, g
        self._loaded: dict[int, ir.Value] = {}

    def bits(
        self, b: ir.IRBuilder, v: int, *, first: int = 0, to: int = 0, ones: int = 257, is_masked: bool = True
    ) -> ir.Value:
        """Take the bits of logical vector v, i16x32, from bit `first` of stored vectors on, to bit `to`.

        `ones` has a bit for each wanted number of a lane: both of two bytes, or the lowest. If not `is_masked`, others stay.
        """
        bits = self._plane(b, 0, self.fmt.low, v, first - to)
        bits = b.and_(bits, simd.constant(simd.I16X32, ((1 << self.fmt.low) - 1 << to) * ones)) if is_masked else bits
        if self.fmt.high:
            above, to = self._plane(b, self.fmt.low, self.fmt.high, v, first - to - self.fmt.low), to + self.fmt.low
            bits = b.or_(bits, b.and_(above, simd.constant(simd.I16X32, ((1 << self.fmt.high) - 1 << to) * ones)))
        return bits

    def _plane(self, b: ir.IRBuilder, plane: int, width: int, v: int, down: int) -> ir.Value:
        """Load the stored vector that has vector v's bits of the plane from stored vector `plane` on, moved down."""
        per_stored = 8 // width
        stored, down = plane + v // per_stored, down + v % per_stored * width
        if stored not in self._loaded:
            self._loaded[stored] = simd.load(b, at(b, self.address, (2 * stored + self.g) * VECTOR), simd.I16X32)
        bits = self._loaded[stored]
        return b.lshr(bits, simd.constant(simd.I16X32, down)) if down > 0 else b.shl(bits, simd.constant(simd.I16X32, -down))


class PackedBlock:
    """Block `index` of the unit at `unit`, which is a block of its own where units have one block."""

    def __init__(self, b: ir.IRBuilder, fmt: Format, look_up: LookUp, unit: ir.Value, index: ir.Value) -> None:
        """Compute where the block's bytes lie."""
        self.fmt, self.look_up = fmt, look_up
        planes = at(b, unit, fmt.scale_bytes)
        planes = b.add(planes, b.mul(index, ir.Constant(simd.I64, fmt.block_bytes))) if fmt.unit_blocks > 1 else planes
        self._planes = [Planes(fmt, planes, g) for g in GROUPS]
        self._scales = [_FloatScales(fmt, unit, index, 16 * g) for g in GROUPS]
        self._shared: dict[int, ir.Value] = {}

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Take the bits of logical vector v out of the planes, and look up their values."""
        fmt = self.fmt
        bits = b.bitcast(self._planes[g].bits(b, v), simd.U8X64)
        if fmt.is_shared:
            if g not in self._shared:
                self._shared[g] = self._scales[g].shared_bits(b)
            bits = b.or_(bits, b.bitcast(shared_bit(b, fmt, self._shared[g], v, 0x01010101), simd.U8X64))
        return self.look_up(b, [value + fmt.offset for value in fmt.values], bits) if fmt.values else bits

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> list[ir.Value]:
        """Decode scale and minimum, likewise."""
        return self._scales[g].of(b, half)


def shared_bit(b: ir.IRBuilder, fmt: Format, shared: ir.Value, v: int, ones: int) -> ir.Value:
    """Make the highest bit of the numbers of logical vector v, which the next or the one before has, too."""
    kind = shared.type
    is_set = b.icmp_unsigned("!=", b.and_(shared, simd.constant(kind, 1 << v // 2)), simd.constant(kind, 0))
    return b.select(is_set, simd.constant(kind, ones << fmt.low + fmt.high), simd.constant(kind, 0))
