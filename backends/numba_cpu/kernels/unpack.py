"""Packed weights → operands of the dot products, as LLVM IR.

A *source* is where a tile takes its weights from: packed bytes, unpacked in registers, or the scratch memory that a packed
unit was unpacked to before. Both give the same vectors, so a tile's result does not depend on which it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.format import PANEL_ROWS, VECTOR, Format

if TYPE_CHECKING:
    LookUp = Callable[..., ir.Value]  # see `isa.InstructionSet`

GROUPS = (0, 1)
LOGICAL = 8  # logical vectors of a block

# One block in scratch: 8 logical vectors, then scales, then minima; of each half of the block, of each group.
SCRATCH_SCALES = LOGICAL * 2 * VECTOR
SCRATCH_MINIMA = SCRATCH_SCALES + 4 * VECTOR
SCRATCH_BLOCK = SCRATCH_MINIMA + 4 * VECTOR
_NUMBERS = 2 * PANEL_ROWS  # where the numbers of `odd` codings begin in a unit


def at(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """Add a constant to an address."""
    return b.add(address, ir.Constant(simd.I64, offset))


@frozen
class ScratchBlock:
    """A block that was unpacked to scratch memory at `address`."""

    fmt: Format
    address: ir.Value

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Load logical vector v of group g, u8x64."""
        return simd.load(b, at(b, self.address, (2 * v + g) * VECTOR), simd.U8X64)

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> tuple[ir.Value, ir.Value | None]:
        """Load scale and minimum, f32x16, of a half (or of the block, if it has one scale) of group g."""

        def take(start: int) -> ir.Value:
            return simd.load(b, at(b, self.address, start + (2 * half + g) * VECTOR), simd.F32X16)

        return take(SCRATCH_SCALES), take(SCRATCH_MINIMA) if self.fmt.has_minimum else None

    def fill(self, b: ir.IRBuilder, block: PackedBlock) -> None:
        """Store the vectors of a packed block."""
        for v in range(LOGICAL):
            for g in GROUPS:
                simd.store(b, at(b, self.address, (2 * v + g) * VECTOR), block.weights(b, v, g))
        for half in range(self.fmt.halves):
            for g in GROUPS:
                scale, minimum = block.scales(b, half, g)
                simd.store(b, at(b, self.address, SCRATCH_SCALES + (2 * half + g) * VECTOR), scale)
                if minimum is not None:
                    simd.store(b, at(b, self.address, SCRATCH_MINIMA + (2 * half + g) * VECTOR), minimum)


class PackedBlock:
    """Block `index` of the unit at `unit`, which is a block of its own where units have one block."""

    def __init__(self, b: ir.IRBuilder, fmt: Format, look_up: LookUp, unit: ir.Value, index: ir.Value) -> None:
        """Compute where the block's bytes lie."""
        self.fmt = fmt
        self.look_up = look_up
        self.unit = unit
        self.index = index
        planes = at(b, unit, fmt.scale_bytes)
        self.planes = b.add(planes, b.mul(index, ir.Constant(simd.I64, fmt.block_bytes))) if fmt.unit_blocks > 1 else planes
        self._loaded: dict[tuple[int, int], ir.Value] = {}
        self._six: dict[int, ir.Value] = {}
        self._shared: dict[int, ir.Value] = {}

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Take the bits of logical vector v out of the planes, and look up their values."""
        fmt = self.fmt
        bits = self._bits(b, 0, fmt.low, v, g, 0)
        if fmt.high:
            bits = b.or_(bits, self._bits(b, fmt.low, fmt.high, v, g, fmt.low))
        if fmt.is_shared:
            bits = b.or_(bits, self._shared_bit(b, v, g))
        return self.look_up(b, [value + fmt.offset for value in fmt.values], bits) if fmt.values else bits

    def _bits(self, b: ir.IRBuilder, plane: int, width: int, v: int, g: int, to: int) -> ir.Value:
        """Take `width` bits for vector v from the plane that begins at stored vector `plane`, moved up to bit `to`."""
        per_stored = 8 // width
        stored = plane + v // per_stored
        if (stored, g) not in self._loaded:
            self._loaded[stored, g] = simd.load(b, at(b, self.planes, (2 * stored + g) * VECTOR), simd.I16X32)
        bits = self._loaded[stored, g]
        if width == 8:
            return b.bitcast(bits, simd.U8X64)
        down = v % per_stored * width - to
        mask = ((1 << width) - 1) << to
        if down > 0:
            bits = b.lshr(bits, simd.constant(simd.I16X32, down))
        elif down < 0:
            bits = b.shl(bits, simd.constant(simd.I16X32, -down))
        return b.bitcast(b.and_(bits, simd.constant(simd.I16X32, mask * 257)), simd.U8X64)

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> tuple[ir.Value, ir.Value | None]:
        """Decode scale and minimum, likewise."""
        if not self.fmt.has_minimum:
            return self._scale(b, half, g), None
        coding, d, minimum = self.fmt.coding, self._f16(b, 32 * g), self._f16(b, 64 + 32 * g)
        if coding == "f16":
            return d, minimum
        if coding == "six":
            pair = self._six_bits(b, g)
            return b.fmul(d, self._field(b, pair, 0)), b.fmul(b.fneg(minimum), self._field(b, pair, 6))
        wide = b.zext(self._own_byte(b, half, g), simd.I32X16)
        scale = b.sitofp(b.and_(wide, simd.constant(simd.I32X16, 15)), simd.F32X16)
        return b.fmul(d, scale), b.fmul(b.fneg(minimum), b.sitofp(b.lshr(wide, simd.constant(simd.I32X16, 4)), simd.F32X16))

    def _scale(self, b: ir.IRBuilder, half: int, g: int) -> ir.Value:
        """Decode the scale of a format without minima."""
        coding = self.fmt.coding
        if coding == "exponent":
            return self._power_of_two(b, g)
        if coding == "float8":
            return self._float8(b, half, g)
        d = self._f16(b, 32 * g)
        if coding == "f16":
            return d
        if coding == "byte":
            factor = b.sitofp(b.sext(self._own_byte(b, half, g), simd.I32X16), simd.F32X16)
        elif coding in {"odd", "odd_single"}:
            factor = self._odd(b, self._number(b, _NUMBERS, g) if coding == "odd_single" else self._own_number(b, half, g))
        else:  # `six_signed`, or `six_single`, which has one scale, and half is 0
            factor = self._field(b, self._six_bits(b, g), 6 * half, offset=32)
        return b.fmul(d, factor)

    def _f16(self, b: ir.IRBuilder, offset: int) -> ir.Value:
        return b.fpext(simd.load(b, at(b, self.unit, offset), ir.VectorType(simd.F16, 16)), simd.F32X16)

    def _bytes(self, b: ir.IRBuilder, start: int, index: ir.Value, stride: int, g: int) -> ir.Value:
        """Load a byte of each row, 16 bytes."""
        first = at(b, self.unit, start + 16 * g)
        return simd.load(b, b.add(first, b.mul(index, ir.Constant(simd.I64, stride))), ir.VectorType(simd.I8, 16))

    def _own_byte(self, b: ir.IRBuilder, half: int, g: int) -> ir.Value:
        """Load the byte of each row for a half of this block."""
        start = 0 if self.fmt.coding == "float8" else (4 if self.fmt.has_minimum else 2) * PANEL_ROWS
        return self._bytes(b, start + half * PANEL_ROWS, self.index, 2 * PANEL_ROWS, g)

    def _own_number(self, b: ir.IRBuilder, half: int, g: int) -> ir.Value:
        """Take the four bits of each row for a half of this block."""
        both = b.zext(self._bytes(b, _NUMBERS, self.index, PANEL_ROWS, g), simd.I32X16)
        return b.lshr(both, simd.constant(simd.I32X16, 4)) if half else b.and_(both, simd.constant(simd.I32X16, 15))

    def _number(self, b: ir.IRBuilder, start: int, g: int) -> ir.Value:
        """Take the four bits of each row for this block."""
        two = ir.Constant(simd.I64, 2)
        both = b.zext(self._bytes(b, start, b.udiv(self.index, two), PANEL_ROWS, g), simd.I32X16)
        shift = b.mul(b.trunc(b.urem(self.index, two), simd.I32X16.element), ir.Constant(simd.I32X16.element, 4))
        return b.and_(b.lshr(both, simd.splat(b, shift, simd.I32X16)), simd.constant(simd.I32X16, 15))

    def _odd(self, b: ir.IRBuilder, number: ir.Value) -> ir.Value:
        """Make factor * (2s + 1) of each row's number s."""
        factor = self.fmt.factor
        return simd.emit_fma(
            b, b.sitofp(number, simd.F32X16), simd.constant(simd.F32X16, 2 * factor), simd.constant(simd.F32X16, factor)
        )

    def _shared_bit(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Make the highest bits of the indices of logical vector v, which the next or the one before has, too."""
        if g not in self._shared:
            self._shared[g] = self._number(b, self.fmt.scale_bytes - PANEL_ROWS * self.fmt.shared_bytes, g)
        is_set = b.icmp_unsigned(
            "!=", b.and_(self._shared[g], simd.constant(simd.I32X16, 1 << v // 2)), simd.constant(simd.I32X16, 0)
        )
        bit = 0x01010101 << self.fmt.low + self.fmt.high
        return b.bitcast(b.select(is_set, simd.constant(simd.I32X16, bit), simd.constant(simd.I32X16, 0)), simd.U8X64)

    def _float8(self, b: ir.IRBuilder, half: int, g: int) -> ir.Value:
        """Make half of each row's float of 8 bits: as a float32 it is 2**120 times smaller, denormal numbers included."""
        bits = b.shl(b.zext(self._own_byte(b, half, g), simd.I32X16), simd.constant(simd.I32X16, 20))
        return b.fmul(b.bitcast(bits, simd.F32X16), simd.constant(simd.F32X16, 2.0**119))

    def _power_of_two(self, b: ir.IRBuilder, g: int) -> ir.Value:
        """Make 2**(e - 128) of each row's byte e, of which the two smallest give denormal numbers."""
        e = b.zext(simd.load(b, at(b, self.unit, 16 * g), ir.VectorType(simd.I8, 16)), simd.I32X16)
        normal = b.shl(b.sub(e, simd.constant(simd.I32X16, 1)), simd.constant(simd.I32X16, 23))
        small = b.shl(b.add(e, simd.constant(simd.I32X16, 1)), simd.constant(simd.I32X16, 21))
        is_small = b.icmp_unsigned("<", e, simd.constant(simd.I32X16, 2))
        return b.bitcast(b.select(is_small, small, normal), simd.F32X16)

    def _six_bits(self, b: ir.IRBuilder, g: int) -> ir.Value:
        """Load the 6-bit fields of this block: two in bits 0..11, or one in bits 0..5."""
        if g not in self._six:
            n_blocks = 4 if self.fmt.coding == "six_single" else 2  # that share three bytes
            start = at(b, self.unit, 128 if self.fmt.has_minimum else 64)
            start = b.add(
                start, b.mul(b.udiv(self.index, ir.Constant(simd.I64, n_blocks)), ir.Constant(simd.I64, 3 * PANEL_ROWS))
            )
            shift = b.mul(b.urem(self.index, ir.Constant(simd.I64, n_blocks)), ir.Constant(simd.I64, 24 // n_blocks))
            word = None
            for plane in range(3):
                part = b.zext(simd.load(b, at(b, start, plane * PANEL_ROWS + 16 * g), ir.VectorType(simd.I8, 16)), simd.I32X16)
                word = part if word is None else b.or_(word, b.shl(part, simd.constant(simd.I32X16, 8 * plane)))
            self._six[g] = b.lshr(word, simd.splat(b, b.trunc(shift, simd.I32X16.element), simd.I32X16))
        return self._six[g]

    def _field(self, b: ir.IRBuilder, word: ir.Value, shift: int, offset: int = 0) -> ir.Value:
        """Take six bits of each lane as a float."""
        moved = b.lshr(word, simd.constant(simd.I32X16, shift)) if shift else word
        bits = b.and_(moved, simd.constant(simd.I32X16, 63))
        return b.sitofp(b.sub(bits, simd.constant(simd.I32X16, offset)) if offset else bits, simd.F32X16)


def emit_floats(b: ir.IRBuilder, fmt: Format, address: ir.Value, g: int) -> ir.Value:
    """Load one column of a group of a float format as float32."""
    place = at(b, address, 16 * fmt.float_bytes * g)
    if fmt.kind == "f32":
        return simd.load(b, place, simd.F32X16)
    if fmt.kind == "f16":
        return b.fpext(simd.load(b, place, ir.VectorType(simd.F16, 16)), simd.F32X16)
    return simd.emit_load_bf16(b, place)
