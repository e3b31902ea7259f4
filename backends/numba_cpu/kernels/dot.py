"""The byte dot product on different CPUs: exact integers, so every instruction set gives the same bits.

A `Dot` multiplies logical vectors of weights (unsigned bytes) with columns of activations (signed bytes from -127 to 127) and
adds products in fours to 32-bit lanes. How it gets there depends on the instruction set: in one instruction, or through sums
of 16 bits that it empties before they can overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels.simd import I1, I8, I16, I16X32, I32, I32X16, U8X64, call, constant

_U8X32, _I16X16, _I32X8 = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)


def _cut(b: ir.IRBuilder, vector: ir.Value, n_parts: int) -> list[ir.Value]:
    """Cut a vector into parts of equal size, the lowest lanes first."""
    if n_parts == 1:
        return [vector]
    size = vector.type.count // n_parts
    mask = ir.VectorType(I32, size)
    starts = range(0, vector.type.count, size)
    return [b.shuffle_vector(vector, vector, ir.Constant(mask, list(range(start, start + size)))) for start in starts]


def _join(b: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Put the parts of a vector together."""
    if len(parts) == 1:
        return parts[0]
    low, high = _join(b, parts[: len(parts) // 2]), _join(b, parts[len(parts) // 2 :])
    count = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, count), list(range(count))))


def _signed(b: ir.IRBuilder, weights: ir.Value) -> ir.Value:
    """Take 128 from unsigned bytes."""
    return b.xor(weights, constant(U8X64, 0x80))


class Dot:
    """Sums of products of weights of up to `bits` bits; this one through plain 16-bit products, on any CPU."""

    def __init__(self, bits: int) -> None:
        """Choose the products for such weights."""
        self.bits = bits

    @property
    def takes_128(self) -> bool:
        """Whether 128 is taken from weights of 8 bits before they are multiplied."""
        return False

    def operand(self, _: ir.IRBuilder, weights: ir.Value) -> Any:
        """Prepare a vector of weights for products with several tokens."""
        return weights

    def start(self, total: ir.Value) -> Any:
        """Begin a sum with the stored one, i32x16."""
        return total

    def add(self, b: ir.IRBuilder, total: Any, operand: Any, columns: ir.Value) -> Any:
        """Return the sum with four more products in each lane."""
        u, s, eight, sixteen = b.bitcast(operand, I16X32), b.bitcast(columns, I16X32), constant(I16X32, 8), constant(I32X16, 16)
        even = b.and_(u, constant(I16X32, 255)), b.ashr(b.shl(s, eight), eight)
        for x, y in (even, (b.lshr(u, eight), b.ashr(s, eight))):
            products = b.bitcast(b.mul(x, y), I32X16)  # 255 * -127 still fits in 16 bits
            total = b.add(total, b.ashr(b.shl(products, sixteen), sixteen))
            total = b.add(total, b.ashr(products, sixteen))
        return total

    def end(self, _: ir.IRBuilder, total: Any) -> ir.Value:
        """Return the sum, i32x16."""
        return total


class InstructionDot(Dot):
    """Products by an instruction, which takes an `n_parts`-th of a vector."""

    def __init__(self, bits: int, name: str, n_parts: int) -> None:
        super().__init__(bits)
        self.name, self.n_parts = name, n_parts

    def add(self, b: ir.IRBuilder, total: Any, operand: Any, columns: ir.Value) -> Any:
        parts = zip(*(_cut(b, each, self.n_parts) for each in (total, operand, columns)), strict=True)
        return _join(b, [call(b, self.name, part[0].type, *part) for part in parts])


class Avx2Dot(Dot):
    """Pairs of products in 16 bits (vpmaddubsw), as many as fit, then pairs of those in 32 bits (vpmaddwd).

    The sum saturates, so weights of 8 bits are made signed, and their sign given to the activations: 2 * 128 * 127 fits.
    """

    @property
    def takes_128(self) -> bool:
        return self.bits == 8

    def operand(self, b: ir.IRBuilder, weights: ir.Value) -> Any:
        if not self.takes_128:
            return weights, None
        signed = _signed(b, weights)
        return call(b, "llvm.abs.v64i8", U8X64, signed, ir.Constant(I1, 0)), signed

    def start(self, total: ir.Value) -> Any:
        """Begin with nothing in 16 bits: the sum, the pending products, and their number."""
        return total, None, 0

    def add(self, b: ir.IRBuilder, total: Any, operand: Any, columns: ir.Value) -> Any:
        whole, pending, count = total
        unsigned, signs = operand
        parts = _cut(b, columns, 2)
        if signs is not None:
            parts = [call(b, "llvm.x86.avx2.psign.b", _U8X32, *pair) for pair in zip(parts, _cut(b, signs, 2), strict=True)]
        pairs = zip(_cut(b, unsigned, 2), parts, strict=True)
        products = _join(b, [call(b, "llvm.x86.avx2.pmadd.ub.sw", _I16X16, *pair) for pair in pairs])
        pending, count = products if pending is None else b.add(pending, products), count + 1
        largest = 128 if self.takes_128 else (1 << self.bits) - 1
        if (count + 1) * largest * 2 * 127 > 0x7FFF:
            return self.end(b, (whole, pending, count)), None, 0
        return whole, pending, count

    def end(self, b: ir.IRBuilder, total: Any) -> ir.Value:
        whole, pending, _ = total
        if pending is None:
            return whole
        halves = [call(b, "llvm.x86.avx2.pmadd.wd", _I32X8, half, constant(_I16X16, 1)) for half in _cut(b, pending, 2)]
        return b.add(whole, _join(b, halves))


class NeonDot(InstructionDot):
    """Products of signed bytes (sdot), in which weights of up to 7 bits have the same value as unsigned."""

    @property
    def takes_128(self) -> bool:
        return self.bits == 8

    def operand(self, b: ir.IRBuilder, weights: ir.Value) -> Any:
        return _signed(b, weights) if self.takes_128 else weights


def look_up(b: ir.IRBuilder, table: Sequence[int], indices: ir.Value) -> ir.Value:
    """Choose table[index] by the bits of the index, from any two candidates one; the table has 8 or 16 values."""
    candidates: list[ir.Value] = [constant(U8X64, value) for value in table]
    for bit in range(len(table).bit_length() - 1):
        is_set = b.icmp_unsigned("!=", b.and_(indices, constant(U8X64, 1 << bit)), constant(U8X64, 0))
        candidates = [b.select(is_set, high, low) for low, high in zip(candidates[::2], candidates[1::2], strict=True)]
    return candidates[0]


def look_up_by(name: str, llvm: ir.VectorType) -> Callable[..., ir.Value]:
    """Make the function that looks up with an instruction whose table is repeated in every 16 bytes."""

    def emit(b: ir.IRBuilder, table: Sequence[int], indices: ir.Value) -> ir.Value:
        repeated = ir.Constant(llvm, list(table) * (llvm.count // len(table)))
        parts = _cut(b, indices, 64 // llvm.count)
        return _join(b, [call(b, name, llvm, repeated, part) for part in parts])

    return emit
