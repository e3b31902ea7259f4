"""The scales and minima of a packed block's rows, decoded in registers; emitted as LLVM IR. See `format.py` for codings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce

from llvmlite import ir

from augury.backends.numba_cpu.kernels.format import PANEL_ROWS, Format
from augury.backends.numba_cpu.kernels.simd import I8, I64, at, constant, load, splat


class Scales(ABC):
    """Of block `index` of the unit at `unit`, for as many rows from row `first` on as a vector has lanes.

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
