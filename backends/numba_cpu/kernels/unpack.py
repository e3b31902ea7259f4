"""Packed weights → operands of the dot products, as LLVM IR.

A *source* is where a tile takes its weights from: packed bytes, unpacked in registers, or the scratch memory that a packed
unit was unpacked to before. Both give the same vectors, so what a tile computes does not depend on which it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels.format import PANEL_ROWS, VECTOR
from augury.backends.numba_cpu.kernels.simd import (
    F16,
    F32X16,
    I8,
    I16X32,
    I32X16,
    I64,
    U8X64,
    constant,
    emit_load_bf16,
    load,
    splat,
    store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cpu.kernels.format import Format

    LookUp = Callable[..., ir.Value]  # see `isa.InstructionSet`

GROUPS = (0, 1)
LOGICAL = 8  # logical vectors of a block

# One block in scratch: 8 logical vectors, then scales, then minima; of each half of the block, of each group.
SCRATCH_SCALES = LOGICAL * 2 * VECTOR
SCRATCH_MINIMA = SCRATCH_SCALES + 4 * VECTOR
SCRATCH_BLOCK = SCRATCH_MINIMA + 4 * VECTOR


def at(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """Add a constant to an address."""
    return b.add(address, ir.Constant(I64, offset))


class Block(Protocol):
    """One block of 32 columns x 32 rows of a source."""

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Return logical vector v of group g, u8x64."""

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> tuple[ir.Value, ir.Value | None]:
        """Return scale and minimum, f32x16, of a half (or of the block, if it has one scale) of group g."""


@frozen
class ScratchBlock:
    """A block that was unpacked to scratch memory at `address`."""

    fmt: Format
    address: ir.Value

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Load logical vector v."""
        return load(b, at(b, self.address, (2 * v + g) * VECTOR), U8X64)

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> tuple[ir.Value, ir.Value | None]:
        """Load scale and minimum."""

        def take(start: int) -> ir.Value:
            return load(b, at(b, self.address, start + (2 * half + g) * VECTOR), F32X16)

        return take(SCRATCH_SCALES), take(SCRATCH_MINIMA) if self.fmt.has_minimum else None

    def fill(self, b: ir.IRBuilder, block: Block) -> None:
        """Store what another source's block gives."""
        for v in range(LOGICAL):
            for g in GROUPS:
                store(b, at(b, self.address, (2 * v + g) * VECTOR), block.weights(b, v, g))
        for half in range(self.fmt.halves):
            for g in GROUPS:
                scale, minimum = block.scales(b, half, g)
                store(b, at(b, self.address, SCRATCH_SCALES + (2 * half + g) * VECTOR), scale)
                if minimum is not None:
                    store(b, at(b, self.address, SCRATCH_MINIMA + (2 * half + g) * VECTOR), minimum)


class PackedBlock:
    """Block `index` of the unit at `unit`, which is a block of its own where units have one block."""

    def __init__(self, b: ir.IRBuilder, fmt: Format, look_up: LookUp, unit: ir.Value, index: ir.Value) -> None:
        """Compute where the block's bytes lie."""
        self.fmt = fmt
        self.look_up = look_up
        self.unit = unit
        self.index = index
        planes = at(b, unit, fmt.scale_bytes)
        self.planes = b.add(planes, b.mul(index, ir.Constant(I64, fmt.block_bytes))) if fmt.unit_blocks > 1 else planes
        self._loaded: dict[tuple[int, int], ir.Value] = {}
        self._six: dict[int, ir.Value] = {}

    def weights(self, b: ir.IRBuilder, v: int, g: int) -> ir.Value:
        """Take the bits of logical vector v out of the planes, and look up what they stand for."""
        low = self._bits(b, 0, self.fmt.low, v, g, 0)
        if self.fmt.values:
            return self.look_up(b, [value + self.fmt.offset for value in self.fmt.values], low)
        if not self.fmt.high:
            return low
        return b.or_(low, self._bits(b, self.fmt.low, self.fmt.high, v, g, self.fmt.low))

    def _bits(self, b: ir.IRBuilder, plane: int, width: int, v: int, g: int, to: int) -> ir.Value:
        """Take `width` bits for vector v from the plane that begins at stored vector `plane`, moved up to bit `to`."""
        per_stored = 8 // width
        stored = plane + v // per_stored
        if (stored, g) not in self._loaded:
            self._loaded[stored, g] = load(b, at(b, self.planes, (2 * stored + g) * VECTOR), I16X32)
        bits = self._loaded[stored, g]
        if width == 8:
            return b.bitcast(bits, U8X64)
        down = v % per_stored * width - to
        mask = ((1 << width) - 1) << to
        if down > 0:
            bits = b.lshr(bits, constant(I16X32, down))
        elif down < 0:
            bits = b.shl(bits, constant(I16X32, -down))
        return b.bitcast(b.and_(bits, constant(I16X32, mask * 257)), U8X64)

    def scales(self, b: ir.IRBuilder, half: int, g: int) -> tuple[ir.Value, ir.Value | None]:
        """Decode scale and minimum."""
        if self.fmt.coding == "exponent":
            return self._power_of_two(b, g), None
        d = self._f16(b, 32 * g)
        minimum = self._f16(b, 64 + 32 * g) if self.fmt.has_minimum else None
        coding = self.fmt.coding
        if coding == "f16":
            return d, minimum
        if coding == "six":
            assert minimum is not None
            pair = self._six_bits(b, g)
            return b.fmul(d, self._field(b, pair, 0)), b.fmul(b.fneg(minimum), self._field(b, pair, 6))
        if coding in {"six_signed", "six_single"}:  # the latter has one scale, and half is 0
            return b.fmul(d, self._field(b, self._six_bits(b, g), 6 * half, offset=32)), None
        own = self._own_byte(b, half, g)
        if coding == "byte":
            return b.fmul(d, b.sitofp(b.sext(own, I32X16), F32X16)), None
        assert minimum is not None
        wide = b.zext(own, I32X16)
        scale = b.sitofp(b.and_(wide, constant(I32X16, 15)), F32X16)
        return b.fmul(d, scale), b.fmul(b.fneg(minimum), b.sitofp(b.lshr(wide, constant(I32X16, 4)), F32X16))

    def _f16(self, b: ir.IRBuilder, offset: int) -> ir.Value:
        return b.fpext(load(b, at(b, self.unit, offset), ir.VectorType(F16, 16)), F32X16)

    def _own_byte(self, b: ir.IRBuilder, half: int, g: int) -> ir.Value:
        """Load the byte of each row for a half of this block."""
        first = at(b, self.unit, (128 if self.fmt.has_minimum else 64) + half * PANEL_ROWS + 16 * g)
        return load(b, b.add(first, b.mul(self.index, ir.Constant(I64, 2 * PANEL_ROWS))), ir.VectorType(I8, 16))

    def _power_of_two(self, b: ir.IRBuilder, g: int) -> ir.Value:
        """Make 2**(e - 128) of each row's byte e, of which the two smallest give denormal numbers."""
        e = b.zext(load(b, at(b, self.unit, 16 * g), ir.VectorType(I8, 16)), I32X16)
        normal = b.shl(b.sub(e, constant(I32X16, 1)), constant(I32X16, 23))
        small = b.shl(b.add(e, constant(I32X16, 1)), constant(I32X16, 21))
        is_small = b.icmp_unsigned("<", e, constant(I32X16, 2))
        return b.bitcast(b.select(is_small, small, normal), F32X16)

    def _six_bits(self, b: ir.IRBuilder, g: int) -> ir.Value:
        """Load the 6-bit fields of this block: two in bits 0..11, or one in bits 0..5."""
        if g not in self._six:
            n_blocks = 4 if self.fmt.coding == "six_single" else 2  # that share three bytes
            start = at(b, self.unit, 128 if self.fmt.has_minimum else 64)
            start = b.add(start, b.mul(b.udiv(self.index, ir.Constant(I64, n_blocks)), ir.Constant(I64, 3 * PANEL_ROWS)))
            shift = b.mul(b.urem(self.index, ir.Constant(I64, n_blocks)), ir.Constant(I64, 24 // n_blocks))
            word = None
            for plane in range(3):
                part = b.zext(load(b, at(b, start, plane * PANEL_ROWS + 16 * g), ir.VectorType(I8, 16)), I32X16)
                word = part if word is None else b.or_(word, b.shl(part, constant(I32X16, 8 * plane)))
            self._six[g] = b.lshr(word, splat(b, b.trunc(shift, I32X16.element), I32X16))
        return self._six[g]

    def _field(self, b: ir.IRBuilder, word: ir.Value, shift: int, offset: int = 0) -> ir.Value:
        """Take six bits of each lane as a float."""
        moved = b.lshr(word, constant(I32X16, shift)) if shift else word
        bits = b.and_(moved, constant(I32X16, 63))
        return b.sitofp(b.sub(bits, constant(I32X16, offset)) if offset else bits, F32X16)


def emit_floats(b: ir.IRBuilder, fmt: Format, address: ir.Value, g: int) -> ir.Value:
    """Load one column of a group of a float format as float32."""
    place = at(b, address, 16 * fmt.float_bytes * g)
    if fmt.kind == "f32":
        return load(b, place, F32X16)
    if fmt.kind == "f16":
        return b.fpext(load(b, place, ir.VectorType(F16, 16)), F32X16)
    return emit_load_bf16(b, place)
