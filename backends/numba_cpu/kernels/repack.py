"""Rows of a model file → packed panels; emitted as LLVM IR from the description in `format.py`.

A block of 32 columns of one row is read as eight words of four unsigned bytes each (logical vectors, one row of them), which
are then distributed over the planes. Blocks of IQ1, IQ2, IQ3 and TQ1_0 are written out: the former are indices into a codebook
of four or eight weights, their signs, their scales. A codebook is a table of bytes: of each weight of an entry the place of its
magnitude among those of the type. TQ1_0 has five weights to a byte. Source: block structs and dequantisation of ggml-quants.c,
as in gguf's quants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.format import BLOCK, FORMATS, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import I8, I16, I32, I64, at, call, emitted, i64, int32, load, store
from augury.backends.numba_cpu.kernels.unpack import LOGICAL

# Weight type → bytes of a row of a unit in the file, and where it holds d (and m or dmin after it), the low bits, the high
# bits, the scales.
_PLACES = {
    "q8_0": (34, 0, 2, 0, 0),
    "q4_0": (18, 0, 2, 0, 0),
    "q4_1": (20, 0, 4, 0, 0),
    "q5_0": (22, 0, 6, 2, 0),
    "q5_1": (24, 0, 8, 4, 0),
    "q2_k": (84, 80, 16, 0, 0),
    "q3_k": (110, 108, 32, 0, 96),
    "q4_k": (144, 0, 16, 0, 4),
    "q5_k": (176, 0, 48, 16, 4),
    "q6_k": (210, 208, 0, 128, 192),
    "tq1_0": (54, 52, 0, 0, 0),
    "tq2_0": (66, 64, 0, 0, 0),
    "iq1_s": (50, 0, 2, 34, 34),
    "iq1_m": (56, 48, 0, 32, 48),
    "iq2_xxs": (66, 0, 2, 0, 2),
    "iq2_xs": (74, 0, 2, 0, 66),
    "iq2_s": (82, 0, 2, 66, 74),
    "iq3_xxs": (98, 0, 2, 0, 66),
    "iq3_s": (110, 0, 2, 66, 106),
    "iq4_nl": (18, 0, 2, 0, 0),
    "iq4_xs": (136, 0, 8, 0, 2),
    "mxfp4": (17, 0, 1, 0, 0),
    "nvfp4": (36, 0, 4, 0, 0),
}
# See `_plane_word`.
_RUNS = {"q2_k": (32, 2), "q3_k": (32, 2), "q4_k": (32, 4), "q5_k": (32, 4), "q6_k": (64, 4), "tq2_0": (32, 2)}


def _in_each_byte(value: int) -> ir.Constant:
    return int32(value * 0x01010101)


def _plane_word(b: ir.IRBuilder, source: ir.Value, j: ir.Value, u: int, place: int, split: tuple[int, int]) -> ir.Value:
    """Read word u of block j (0..7) of a K type from a plane.

    The plane is split in runs of `split[0]` bytes that hold, of `split[1]` bits per weight, as many blocks as fit: each byte
    holds one weight of every block of its run (and, where a run is 64 bytes, of two blocks beside each other).
    """
    run, width = split
    beside = run // BLOCK
    blocks = 8 // width * beside
    inside = b.urem(j, int32(blocks))
    offset = b.add(b.mul(b.udiv(j, int32(blocks)), int32(run)), b.mul(b.urem(inside, int32(beside)), int32(BLOCK)))
    word = load(b, at(b, b.add(source, b.zext(offset, I64)), place + 4 * u), I32)
    shift = b.mul(b.udiv(inside, int32(beside)), int32(width))
    return b.and_(b.lshr(word, shift), _in_each_byte((1 << width) - 1))


def _source_word(b: ir.IRBuilder, kind: str, source: ir.Value, j: ir.Value, u: int, table: ir.Value) -> ir.Value:
    """Read four weights of a row, columns 4u..4u+3 of block j, as unsigned bytes."""
    fmt, (_, _, low, high, _) = FORMATS[kind], _PLACES[kind]
    if kind in CODEBOOK_TYPES:
        return emit_word(b, kind, source, j, u, table)
    if kind == "tq1_0":
        return emit_ternary_word(b, source, j, u)
    if kind in _RUNS:
        word = _plane_word(b, source, j, u, low, _RUNS[kind])
        if fmt.high:
            above = _plane_word(b, source, j, u, high, (32, fmt.high))
            word = b.or_(word, b.shl(above, int32(fmt.low)))
        return word
    if kind == "q8_0":
        return b.xor(load(b, at(b, source, low + 4 * u), I32), _in_each_byte(0x80))
    if fmt.unit_blocks > 1:
        source = b.add(source, b.mul(b.zext(j, I64), ir.Constant(I64, BLOCK // 2)))
    columns = BLOCK // fmt.halves if kind == "nvfp4" else BLOCK  # that lie together: the first half in the lower four bits
    place, upper = divmod(4 * u, columns)
    upper, place = upper >= columns // 2, place * columns // 2 + upper % (columns // 2)
    word = load(b, at(b, source, low + place), I32)
    word = b.and_(b.lshr(word, int32(4)) if upper else word, _in_each_byte(15))
    if fmt.high:
        bits = b.and_(b.lshr(load(b, at(b, source, high), I32), int32(4 * u)), int32(15))
        spread = b.and_(b.mul(bits, int32(0x00204081)), _in_each_byte(1))  # bit c to byte c
        word = b.or_(word, b.shl(spread, int32(4)))
    return word


def _emit_planes(b: ir.IRBuilder, kind: str, source: ir.Value, j: ir.Value, to: ir.Value, table: ir.Value) -> None:
    """Distribute one block of one row over the planes; `to` is where the row's word of the first stored vector belongs."""
    fmt, stored = FORMATS[kind], 0
    words = [_source_word(b, kind, source, j, u, table) for u in range(LOGICAL)]
    for width, down in ((fmt.low, 0), (fmt.high, fmt.low)):
        for first in range(0, LOGICAL if width else 0, 8 // (width or 8)):
            packed = int32(0)
            for i, word in enumerate(words[first : first + 8 // width]):
                bits = b.and_(b.lshr(word, int32(down)), _in_each_byte((1 << width) - 1))
                packed = b.or_(packed, b.shl(bits, int32(width * i)))
            store(b, at(b, to, stored * 2 * VECTOR), packed)
            stored += 1


def _emit_scales(b: ir.IRBuilder, kind: str, source: ir.Value, row: ir.Value, to: ir.Value) -> None:
    """Copy or recode the scales of one row of a unit; `to` is the unit."""
    fmt, (_, d, _, _, scales) = FORMATS[kind], _PLACES[kind]

    def byte(i: int) -> ir.Value:
        return b.zext(load(b, at(b, source, scales + i), I8), I32)

    def put(start: int, values: Sequence[ir.Value]) -> None:
        for i, value in enumerate(values):
            store(b, at(b, b.add(to, row), start + PANEL_ROWS * i), b.trunc(value, I8))

    if fmt.coding == "exponent":
        put(0, [byte(0)])
        return
    if fmt.coding == "float8":
        put(0, [_float8(b, byte(i)) for i in range(4)])
        return
    halfword = b.add(to, b.mul(row, ir.Constant(I64, 2)))
    for i in range(2 if fmt.has_minimum else 1):
        value = emit_scattered_scale(b, source) if kind == "iq1_m" else load(b, at(b, source, d + 2 * i), I16)
        store(b, at(b, halfword, 2 * PANEL_ROWS * i), value)
    if fmt.coding == "f16":
        return
    first = 2 * PANEL_ROWS * (2 if fmt.has_minimum else 1)
    if fmt.coding in {"byte", "nibble"}:
        put(first, [byte(i) for i in range(16)])
        return
    if fmt.coding in {"odd", "odd_single"}:
        numbers = emit_numbers(b, kind, source)
        put(first, [b.or_(low, b.shl(high, int32(4))) for low, high in zip(numbers[::2], numbers[1::2], strict=True)])
        return
    fields = {"six": _six_k45, "six_signed": _six_k3, "six_single": _six_iq4}[fmt.coding](b, byte)
    for four in range(len(fields) // 4):
        word = int32(0)
        for i, field in enumerate(fields[4 * four : 4 * four + 4]):
            word = b.or_(word, b.shl(field, int32(6 * i)))
        put(first + 3 * PANEL_ROWS * four, [b.lshr(word, int32(8 * plane)) for plane in range(3)])


def _float8(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Clear the sign, which counts for nothing but that 127 stands for 0 without it."""
    return b.select(b.icmp_unsigned("==", value, int32(127)), int32(0), b.and_(value, int32(127)))


def _six_k45(b: ir.IRBuilder, byte: Callable[[int], ir.Value]) -> list[ir.Value]:
    """Decode scale and minimum of blocks 0..7, of Q4_K and Q5_K, in turns."""
    fields = []
    for j in range(8):
        for i in (0, 4):
            if j < 4:
                fields.append(b.and_(byte(j + i), int32(63)))
            else:
                fields.append(_joined(b, byte(j + 4), i, byte(j - 4 + i), 6))
    return fields


def _joined(b: ir.IRBuilder, low: ir.Value, low_at: int, high: ir.Value, high_at: int) -> ir.Value:
    """Four bits of a byte, and above them two of another."""
    above = b.and_(b.lshr(high, int32(high_at)), int32(3))
    return b.or_(b.and_(b.lshr(low, int32(low_at)), int32(15)), b.shl(above, int32(4)))


def _six_k3(b: ir.IRBuilder, byte: Callable[[int], ir.Value]) -> list[ir.Value]:
    """Decode the 16 scales of Q3_K."""
    return [_joined(b, byte(i % 8), i // 8 * 4, byte(8 + i % 4), i // 4 * 2) for i in range(16)]


def _six_iq4(b: ir.IRBuilder, byte: Callable[[int], ir.Value]) -> list[ir.Value]:
    """Decode the 8 scales of IQ4_XS."""
    return [_joined(b, byte(2 + j // 2), j % 2 * 4, byte(j // 4), j % 4 * 2) for j in range(8)]


@emitted(*[i64] * 4, n_literals=1)
def _planes(b, kind, source, j, to, table):
    _emit_planes(b, kind, source, b.trunc(j, I32), to, table)


_scales = emitted(i64, i64, i64, n_literals=1)(_emit_scales)


@cache
def repack_kernel(kind: str) -> Any:
    """Make the kernel that packs panels of a matrix of a weight type: (source, to, n_rows, n_cols, p0, p1, table).

    source is the address of (n_rows, n_cols) weights as in a model file, to that of the packed matrix, whose panels p0..p1
    are written; rows that the last panel lacks are left as they are. table is that of the codebook, see `py`, or 0.
    """
    return _float_repack(FORMATS[kind]) if FORMATS[kind].float_bytes else _quantised_repack(kind)


def _quantised_repack(kind: str) -> Any:
    fmt, source_bytes = FORMATS[kind], _PLACES[kind][0]
    unit_blocks, unit_bytes, scale_bytes, block_bytes = fmt.unit_blocks, fmt.unit_bytes, fmt.scale_bytes, fmt.block_bytes

    def repack(source: int, to: int, n_rows: int, n_cols: int, p0: int, p1: int, table: int) -> None:
        n_units = n_cols // BLOCK // unit_blocks
        for p in range(p0, p1):
            for u in range(n_units):
                unit = to + (p * n_units + u) * unit_bytes
                for row in range(min(PANEL_ROWS, n_rows - p * PANEL_ROWS)):
                    here = source + ((p * PANEL_ROWS + row) * n_units + u) * source_bytes
                    _scales(kind, here, row, unit)
                    place = unit + scale_bytes + row // 16 * VECTOR + row % 16 * 4
                    for j in range(unit_blocks):
                        _planes(kind, here, j, place + j * block_bytes, table)

    return kernel(repack, f"repack_{kind}")


def _float_repack(fmt: Format) -> Any:
    size = fmt.float_bytes
    get, put = (simd.get_u32, simd.put_u32) if size == 4 else (simd.get_u16, simd.put_u16)

    def repack(source: int, to: int, n_rows: int, n_cols: int, p0: int, p1: int, table: int) -> None:
        padded = (n_cols + BLOCK - 1) // BLOCK * BLOCK
        for p in range(p0, p1):
            for row in range(min(PANEL_ROWS, n_rows - p * PANEL_ROWS)):
                here = source + (p * PANEL_ROWS + row) * n_cols * size
                place = to + (p * padded * PANEL_ROWS + row) * size
                for k in range(n_cols):
                    put(place + k * PANEL_ROWS * size, get(here + k * size))

    return kernel(repack, f"repack_{fmt.kind}")


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
