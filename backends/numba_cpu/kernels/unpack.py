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
from augury.backends.numba_cpu.kernels.format import VECTOR, Format
from augury.backends.numba_cpu.kernels.scales import Scales
from augury.backends.numba_cpu.kernels.simd import at

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


def emit_floats(b: ir.IRBuilder, fmt: Format, address: ir.Value, g: int) -> ir.Value:
    """Load one column of a group of a float format as float32."""
    place = at(b, address, 16 * fmt.float_bytes * g)
    if fmt.kind == "f32":
        return simd.load(b, place, simd.F32X16)
    if fmt.kind == "f16":
        return b.fpext(simd.load(b, place, ir.VectorType(simd.F16, 16)), simd.F32X16)
    return simd.emit_load_bf16(b, place)
