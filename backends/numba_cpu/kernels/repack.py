"""Rows of a model file → packed panels; emitted as LLVM IR from the description in `format.py`.

A block of 32 columns of one row is read as eight words of four unsigned bytes each (logical vectors, one row of them), which
are then distributed over the planes. Source: block structs and dequantisation of ggml-quants.c, as in gguf's quants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels import codebook, simd
from augury.backends.numba_cpu.kernels.format import BLOCK, FORMATS, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import I8, I16, I32, I64, at, emitted, i64, int32, load, store
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
    if kind in codebook.CODEBOOK_TYPES:
        return codebook.emit_word(b, kind, source, j, u, table)
    if kind == "tq1_0":
        return codebook.emit_ternary_word(b, source, j, u)
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
        value = codebook.emit_scattered_scale(b, source) if kind == "iq1_m" else load(b, at(b, source, d + 2 * i), I16)
        store(b, at(b, halfword, 2 * PANEL_ROWS * i), value)
    if fmt.coding == "f16":
        return
    first = 2 * PANEL_ROWS * (2 if fmt.has_minimum else 1)
    if fmt.coding in {"byte", "nibble"}:
        put(first, [byte(i) for i in range(16)])
        return
    if fmt.coding in {"odd", "odd_single"}:
        numbers = codebook.emit_numbers(b, kind, source)
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
    are written; rows that the last panel lacks are left as they are. table is that of the codebook, see `codebook.py`, or 0.
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
