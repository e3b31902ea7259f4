"""How keys and values are kept, by cache type: sizes, loads, stores of one token's heads, and ways from cell to cell.

Floats are as they are. The types q8_0 and q4_0 keep 32 neighbouring components of a head together: codes, and a float16 scale
that they are multiples of, as ggml's types of these names; they lie so that a vector is loaded at once:

    keys     16 cells at a time. Floats: [D][16]. Else per 32 components 16 scales, then codes: [32][16] bytes, or [16][16]
             bytes of which each has two neighbouring components, the first in its lower half.
    values   cell by cell. Floats: [D_v padded to 16]. Else all scales, then codes: bytes, or, as in a model file, 16 bytes for
             32 components, the first 16 in the lower halves.

Numerics: codes times scale is exact in float32. Largest error of a number: f16 2^-11 and bf16 2^-8 of itself, q8_0 1/225 and
q4_0 1/7.9 of the largest of its 32 (measured in tests/backends/reference).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import at, get_i64, load_part
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record

f32 = np.float32
LANES = 16
BLOCK = 32  # components that share a scale
BYTES = {"f16": 32, "bf16": 32, "f32": 64, "q8_0": 17, "q4_0": 9}  # of 16 numbers, scales included
FLOATS = ("f16", "bf16", "f32")
COLUMNS = {"q8_0": 1, "q4_0": 2}  # components that a vector of 16 bytes of keys holds
_SCALE = 2


# Loads, for the tiles of attention


def emit_floats(b: ir.IRBuilder, kind: str, address: ir.Value) -> ir.Value:
    """Load 16 numbers of a float type."""
    if kind == "f16":
        return b.fpext(simd.load(b, address, ir.VectorType(simd.F16, LANES)), simd.F32X16)
    return simd.emit_load_bf16(b, address) if kind == "bf16" else simd.load(b, address, simd.F32X16)


def _codes(b: ir.IRBuilder, kind: str, address: ir.Value) -> list[ir.Value]:
    """Load 16 bytes of codes as whole numbers: one vector of floats, or two."""
    packed = simd.load(b, address, ir.VectorType(simd.I8, LANES))
    if kind == "q8_0":
        return [b.sitofp(b.sext(packed, simd.I32X16), simd.F32X16)]
    wide, eight = b.zext(packed, simd.I32X16), simd.constant(simd.I32X16, 8)
    halves = (b.and_(wide, simd.constant(simd.I32X16, 15)), b.lshr(wide, simd.constant(simd.I32X16, 4)))
    return [b.sitofp(b.sub(half, eight), simd.F32X16) for half in halves]


def emit_keys(b: ir.IRBuilder, kind: str, codes: ir.Value, scales: ir.Value) -> list[ir.Value]:
    """One component of 16 keys, or two that lie together; `scales` is a vector."""
    return [b.fmul(vector, scales) for vector in _codes(b, kind, codes)]


def emit_values(b: ir.IRBuilder, kind: str, n_vectors: int, row: ir.Value, width: ir.Value, first: ir.Value) -> list[ir.Value]:
    """Components `first` to first + 16 * n_vectors of the values of a cell at `row`."""
    if kind in FLOATS:
        start = b.add(row, b.mul(first, ir.Constant(first.type, BYTES[kind] // LANES)))
        return [emit_floats(b, kind, at(b, start, BYTES[kind] * v)) for v in range(n_vectors)]
    divisor = ir.Constant(first.type, LANES)
    scale = b.add(row, b.udiv(first, divisor))
    codes = b.add(b.add(row, b.udiv(width, divisor)), b.udiv(first, ir.Constant(first.type, COLUMNS[kind])))
    vectors = []
    for v in range(0, n_vectors, 2):
        factor = simd.splat(b, b.fpext(simd.load(b, at(b, scale, _SCALE * v // 2), simd.F16), simd.F32), simd.F32X16)
        for part in range(0, 2, COLUMNS[kind]):
            here = at(b, codes, LANES * (v + part) // COLUMNS[kind])
            vectors += [b.fmul(vector, factor) for vector in _codes(b, kind, here)]
    return vectors


# Stores


def _round_bf16(b: ir.IRBuilder, x: ir.Value, whole: ir.Type, half: ir.Type) -> ir.Value:
    """Round to the nearest, ties to even, by integers: an instruction for it takes small numbers for zero."""

    def number(value: int) -> ir.Constant:
        return simd.constant(whole, value) if isinstance(whole, ir.VectorType) else ir.Constant(whole, value)

    bits = b.bitcast(x, whole)
    odd = b.and_(b.lshr(bits, number(16)), number(1))
    return b.trunc(b.lshr(b.add(b.add(bits, number(0x7FFF)), odd), number(16)), half)


_put_bf16 = simd.operation(
    "put_bf16", simd.void, (simd.i64, simd.f32), lambda b, a, v: simd.store(b, a, _round_bf16(b, v, simd.I32, simd.I16))
)
_store_bf16 = simd.operation(
    "store_bf16",
    simd.void,
    (simd.i64, simd.f32x16),
    lambda b, a, v: simd.store(b, a, _round_bf16(b, v, simd.I32X16, ir.VectorType(simd.I16, LANES))),
)
_to_whole = simd.operation("to_whole", simd.i32x16, (simd.f32x16,), lambda b, x: b.fptosi(x, simd.I32X16))  # towards zero
GETS = {"f16": simd.get_f16, "bf16": simd.get_bf16, "f32": simd.get_f32}
_PUTS = {"f16": simd.put_f16, "bf16": _put_bf16, "f32": simd.put_f32}
_STORES = {"f16": simd.store_f16, "bf16": _store_bf16, "f32": simd.store_f32}


@helper
def _round_q8_0(x, out):
    """32 floats → as many signed bytes; returns their scale."""
    a, b = simd.load_f32(x), simd.load_f32(x + 64)
    largest = simd.max_lanes(simd.maximum(simd.absolute(a), simd.absolute(b)))
    inverse = f32(0)
    if largest > f32(0):
        inverse = f32(127) * (f32(1) / largest)
    factor = simd.splat_f32(inverse)
    simd.store_i8(out, simd.to_i32(simd.mul(a, factor)))
    simd.store_i8(out + 16, simd.to_i32(simd.mul(b, factor)))
    return largest / f32(127)


@helper
def _round_q4_0(x, out):
    """32 floats → codes from 0 to 15, a byte each; returns their scale."""
    a, b, zero = simd.load_f32(x), simd.load_f32(x + 64), simd.zero_f32()
    scale = simd.max_lanes(simd.maximum(a, b))
    low = simd.max_lanes(simd.maximum(simd.sub(zero, a), simd.sub(zero, b)))
    if low > scale:
        scale = -low
    scale /= f32(-8)
    inverse = f32(0)
    if scale != f32(0):
        inverse = f32(1) / scale
    factor, half, top = simd.splat_f32(inverse), simd.splat_f32(f32(8.5)), simd.splat_f32(f32(15))
    simd.store_i8(out, _to_whole(simd.minimum(simd.add(simd.mul(a, factor), half), top)))
    simd.store_i8(out + 16, _to_whole(simd.minimum(simd.add(simd.mul(b, factor), half), top)))
    return scale


_ROUNDS = {"q8_0": _round_q8_0, "q4_0": _round_q4_0}


def store_key(kind: str) -> Any:
    """The function that stores a key: (x, to, lane, d, scratch), one lane of the 16 cells at `to`."""
    if kind in FLOATS:
        put, n_bytes = _PUTS[kind], BYTES[kind] // LANES

        @helper
        def store_floats(x, to, lane, d, scratch):
            for i in range(d):
                put(to + n_bytes * (LANES * i + lane), simd.get_f32(x + 4 * i))

        return store_floats
    rounded, columns, n_bytes = _ROUNDS[kind], COLUMNS[kind], 2 * BYTES[kind]

    @helper
    def store_codes(x, to, lane, d, scratch):
        for i in range(0, d, BLOCK):
            block = to + i // BLOCK * n_bytes * LANES
            simd.put_f16(block + _SCALE * lane, rounded(x + 4 * i, scratch))
            for j in range(BLOCK // columns):
                code = simd.get_u8(scratch + columns * j)
                if columns == 2:
                    code |= simd.get_u8(scratch + 2 * j + 1) << 4
                simd.put_u8(block + _SCALE * LANES + LANES * j + lane, code)

    return store_codes


def store_value(kind: str) -> Any:
    """The function that stores a value: (x, to, width, scratch)."""
    if kind in FLOATS:
        put, n_bytes = _STORES[kind], BYTES[kind] // LANES

        @helper
        def store_floats(x, to, width, scratch):
            for i in range(0, width, LANES):
                put(to + n_bytes * i, load_part(x + 4 * i, width - i))

        return store_floats
    rounded, columns = _ROUNDS[kind], COLUMNS[kind]

    @helper
    def store_codes(x, to, width, scratch):
        codes = to + width // LANES
        for i in range(0, width, BLOCK):
            simd.put_f16(to + i // LANES, rounded(x + 4 * i, scratch))
            for j in range(BLOCK // columns):
                code = simd.get_u8(scratch + j)
                if columns == 2:
                    code |= simd.get_u8(scratch + LANES + j) << 4
                simd.put_u8(codes + i // columns + j, code)

    return store_codes


def copy_key(kind: str) -> Callable[..., None]:
    """The function that copies a key: (source, source lane, target, target lane, d), between blocks of 16 cells."""
    if kind in FLOATS:
        get, put = (simd.get_u32, simd.put_u32) if kind == "f32" else (simd.get_u16, simd.put_u16)
        n_bytes = BYTES[kind] // LANES

        @helper
        def copy_floats(source, lane, target, to_lane, d):
            for i in range(d):
                put(target + n_bytes * (LANES * i + to_lane), get(source + n_bytes * (LANES * i + lane)))

        return copy_floats
    rows, n_bytes = BLOCK // COLUMNS[kind], 2 * BYTES[kind] * LANES

    @helper
    def copy_codes(source, lane, target, to_lane, d):
        for block in range(0, d // BLOCK * n_bytes, n_bytes):
            simd.put_u16(target + block + _SCALE * to_lane, simd.get_u16(source + block + _SCALE * lane))
            for j in range(_SCALE, _SCALE + rows):
                simd.put_u8(target + block + LANES * j + to_lane, simd.get_u8(source + block + LANES * j + lane))

    return copy_codes


def load_key(kind: str) -> Any:
    """The function that reads a key: (source, lane, d, out), one lane of the 16 cells at `source`, as float32."""
    if kind in FLOATS:
        get, n_bytes = GETS[kind], BYTES[kind] // LANES

        @helper
        def load_floats(source, lane, d, out):
            for i in range(d):
                simd.put_f32(out + 4 * i, get(source + n_bytes * (LANES * i + lane)))

        return load_floats
    columns, block_bytes = COLUMNS[kind], 2 * BYTES[kind] * LANES

    @helper
    def load_codes(source, lane, d, out):
        for i in range(d):
            block = source + i // BLOCK * block_bytes
            code = np.int64(simd.get_u8(block + _SCALE * LANES + LANES * (i % BLOCK // columns) + lane))
            number = (code >> (4 * (i % 2)) & 15) - 8 if columns == 2 else code - 256 * (code >> 7)
            simd.put_f32(out + 4 * i, f32(number) * simd.get_f16(block + _SCALE * lane))

    return load_codes


@struct
class CachedRows:
    """A cache whose cells have one row each."""

    address: int
    row_bytes: int
    n_rows: int  # of a slot


@helper
def cached_row(rows, slot, cell):
    """The address of the row in a cell."""
    return rows.address + rows.row_bytes * (slot * rows.n_rows + cell)


@helper
def cell_of(place, positions, node, position):
    """The cell of a position that a token of the run at `place` sees; `positions` are the run's."""
    parents, mark = place.parents, get_i64(positions)
    if parents == 0 or position < mark:
        return position
    at = get_i64(positions + 8 * node)
    while at > position:
        node = get_i64(parents + 8 * node)
        at -= 1
    return mark + node


@struct
class MovedCache:
    """A cache whose cells move."""

    address: int
    size: int  # bytes of a row, or numbers of a key
    n_heads: int
    n_rows: int  # from one head of a slot to the next
    first: int  # the row of cell 0


@struct
class CellMove:
    """A row that is copied."""

    slot: int
    source: int  # cell
    target: int


@struct
class Move(Record):
    caches: Any = pointer_to(MovedCache)
    n_caches: int
    moves: Any = pointer_to(CellMove)
    n_moves: int


@cache
def put_key_kernel(kind: str) -> Any:
    """Make the kernel that keeps a key of keys that lie 16 by 16."""
    put, n_bytes = store_key(kind), BYTES[kind]

    def put_key(x, kept, row, size, scratch):
        put(x, kept + n_bytes * size * (row // LANES), row % LANES, size, scratch)

    return kernel(put_key, f"put_key_{kind}")


@cache
def put_row_kernel(kind: str) -> Any:
    """Make the kernel that keeps a row of rows that lie one after the other."""
    put, n_bytes = store_value(kind), BYTES[kind]

    def put_row(x, kept, row, size, scratch):
        put(x, kept + n_bytes * ((size + LANES - 1) // LANES) * row, size, scratch)

    return kernel(put_row, f"put_row_{kind}")


def _move_kernel(copy: Any, name: str) -> Any:
    def move(record, state, thread, n_threads):
        n = record.n_caches
        for index in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            cached = record.caches[index]
            for number in range(record.n_moves):
                moved = record.moves[number]
                for run in range(moved.slot * cached.n_heads, (moved.slot + 1) * cached.n_heads):
                    start = run * cached.n_rows + cached.first
                    copy(cached.address, cached.size, start + moved.source, start + moved.target)

    move.__doc__ = "Copy rows from cell to cell."
    return kernel(move, name, record=Move)


@cache
def move_keys_kernel(kind: str) -> Any:
    """Make the kernel that moves keys that lie 16 by 16."""
    copy, n_bytes = copy_key(kind), BYTES[kind]

    @helper
    def copy_from(kept, size, source, target):
        here, there = kept + n_bytes * size * (source // LANES), kept + n_bytes * size * (target // LANES)
        copy(here, source % LANES, there, target % LANES, size)

    return _move_kernel(copy_from, f"move_keys_{kind}")


@cache
def move_rows_kernel() -> Any:
    """Make the kernel that moves rows that lie one after the other."""

    @helper
    def copy_row(kept, size, source, target):
        for i in range(size):
            simd.put_u8(kept + size * target + i, simd.get_u8(kept + size * source + i))

    return _move_kernel(copy_row, "move_rows")
