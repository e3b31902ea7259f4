"""Blocks whose weights are written out when they are packed: those of IQ1, IQ2, IQ3 and TQ1_0; emitted as LLVM IR.

IQ1 to IQ3 are indices into a codebook of four or eight weights, their signs, their scales. A codebook is a table of bytes: of
each weight of an entry the place of its magnitude among those of the type. TQ1_0 has five weights to a byte.

Source: block structs and dequantisation of ggml-quants.c, as in gguf's quants.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from augury.backends.numba_cpu.kernels.simd import I8, I16, I32, I64, call, int32, load

CODEBOOK_TYPES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")


class _Reader:
    """Reads integers of a row of 256 columns that begins at `source`."""

    def __init__(self, b: ir.IRBuilder, source: ir.Value, j: ir.Value | int) -> None:
        self.b, self.source = b, source
        self.j = ir.Constant(I64, j) if isinstance(j, int) else b.zext(j, I64)

    def read(self, first: int, stride: int = 0, llvm: ir.IntType = I8) -> ir.Value:
        """Read the integer `first + stride * j` bytes from the start, as i32."""
        b = self.b
        offset = b.add(b.mul(self.j, ir.Constant(I64, stride)), ir.Constant(I64, first))
        value = load(b, b.add(self.source, offset), llvm)
        return value if llvm is I32 else b.zext(value, I32)

    def bits(self, value: ir.Value, start: int, width: int, to: int = 0) -> ir.Value:
        """Take some bits of an i32, and move them up to bit `to`."""
        b = self.b
        found = b.and_(b.lshr(value, int32(start)), int32((1 << width) - 1))
        return b.shl(found, int32(to)) if to else found


def emit_word(b: ir.IRBuilder, kind: str, source: ir.Value, j: ir.Value, u: int, table: ir.Value) -> ir.Value:
    """Make of the columns 4u..4u+3 of block j (i32) the indices among the format's values, without bits that are shared."""
    r = _Reader(b, source, j)
    eight = u // 2  # which of the block's eight columns
    seven: ir.Value | None = None  # signs, of which an eighth makes their number even
    signs: ir.Value | None = None
    if kind == "iq1_s":
        index = b.or_(r.read(2 + eight, 4), r.bits(r.read(34, 2, I16), 3 * eight, 3, to=8))
    elif kind == "iq1_m":
        index = b.or_(r.read(eight, 4), r.bits(r.read(32 + eight // 2, 2), 4 * (eight % 2), 3, to=8))
    elif kind == "iq2_xxs":
        index, seven = r.read(2 + eight, 8), r.bits(r.read(6, 8, I32), 7 * eight, 7)
    elif kind == "iq2_xs":
        both = r.read(2 + 2 * eight, 8, I16)
        index, seven = r.bits(both, 0, 9), r.bits(both, 9, 7)
    elif kind == "iq2_s":
        index = b.or_(r.read(2 + eight, 4), r.bits(r.read(66, 1), 2 * eight, 2, to=8))
        signs = r.read(34 + eight, 4)
    elif kind == "iq3_xxs":
        index, seven = r.read(2 + u, 8), r.bits(r.read(66, 4, I32), 7 * eight, 7)
    else:
        index = b.or_(r.read(2 + u, 8), r.bits(r.read(66, 1), u, 1, to=8))
        signs = r.read(74 + eight, 4)
    if seven is not None:
        signs = b.or_(seven, r.bits(call(b, "llvm.ctpop.i32", I32, seven), 0, 1, to=7))
    entry, place = (4, 0) if kind.startswith("iq3") else (8, 4 * (u % 2))
    codes = load(b, b.add(table, b.zext(b.add(b.mul(index, int32(entry)), int32(place)), I64)), I32)
    if signs is None:
        return codes
    spread = b.and_(b.mul(r.bits(signs, 4 * (u % 2), 4), int32(0x00204081)), int32(0x01010101))  # bit c to byte c
    return b.or_(codes, b.shl(spread, int32(3 if kind.startswith("iq3") else 2)))


def emit_numbers(b: ir.IRBuilder, kind: str, source: ir.Value) -> Sequence[ir.Value]:
    """Make the numbers of a row of 256 columns as they are packed: those of scales, then bits that are shared."""
    numbers, shared = [], []
    for j in range(8):
        r = _Reader(b, source, j)
        if kind == "iq1_s":
            both = r.read(34, 2, I16)
            numbers += [r.bits(both, 12, 3)] * 2
            shared.append(b.mul(r.bits(both, 15, 1), int32(15)))
        elif kind == "iq1_m":
            scales = r.read(48 + j // 2 * 2, llvm=I16)
            numbers += [r.bits(scales, 6 * (j % 2) + 3 * half, 3) for half in range(2)]
            high = r.read(32, 2, I16)
            of_eights = [r.bits(high, 4 * eight + 3, 1, to=eight) for eight in range(4)]
            shared.append(b.or_(b.or_(*of_eights[:2]), b.or_(*of_eights[2:])))
        elif kind in {"iq2_xs", "iq2_s"}:
            scales = r.read(66 if kind == "iq2_xs" else 74, 1)
            numbers += [r.bits(scales, 4 * half, 4) for half in range(2)]
        elif kind == "iq3_s":
            numbers.append(r.bits(r.read(106 + j // 2), 4 * (j % 2), 4))
        elif kind == "iq2_xxs":
            numbers += [r.bits(r.read(6, 8, I32), 28, 4)] * 2
        else:
            numbers.append(r.bits(r.read(66, 4, I32), 28, 4))
    return [*numbers, *shared]


def emit_scattered_scale(b: ir.IRBuilder, source: ir.Value) -> ir.Value:
    """Put d of IQ1_M together, i16: four bits each of the four words of scales."""
    r = _Reader(b, source, 0)
    parts = [r.bits(r.read(48 + 2 * i, llvm=I16), 12, 4, to=4 * i) for i in range(4)]
    return b.trunc(b.or_(b.or_(*parts[:2]), b.or_(*parts[2:])), I16)


def emit_ternary_word(b: ir.IRBuilder, source: ir.Value, j: ir.Value, u: int) -> ir.Value:
    """Read word u of block j of TQ1_0: digits 0 to 2 of bytes that are fractions in base 3, in 256ths.

    32 bytes have a digit of each of the blocks 0..4, 16 bytes one of each 16 columns after that, 4 bytes of each four at last.
    """
    is_first = b.icmp_unsigned("<", j, int32(5))
    sixteen = b.add(b.mul(b.sub(j, int32(5)), int32(2)), int32(u // 4))
    place, digit = int32(32 + 4 * (u % 4)), sixteen
    if u >= 4:
        is_last = b.icmp_unsigned("==", j, int32(7))
        place, digit = b.select(is_last, int32(48), place), b.select(is_last, int32(u - 4), digit)
    place, digit = b.select(is_first, int32(4 * u), place), b.select(is_first, j, digit)
    powers = ir.Constant(I64, sum(3**n << 8 * n for n in range(5)))
    power = b.and_(b.trunc(b.lshr(powers, b.zext(b.mul(digit, int32(8)), I64)), I32), int32(255))
    word, mask = load(b, b.add(source, b.zext(place, I64)), I32), int32(0x00FF00FF)
    digits = []
    for byte in (0, 1):  # even and odd bytes
        fraction = b.and_(b.mul(b.and_(b.lshr(word, int32(8 * byte)), mask), power), mask)
        digits.append(b.shl(b.and_(b.lshr(b.mul(fraction, int32(3)), int32(8)), mask), int32(8 * byte)))
    return b.or_(*digits)
