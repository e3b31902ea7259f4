"""Tiles of attention: a few rows against many positions, all sums in registers; emitted as LLVM IR. And a layer's operands.

A row's score of a position is a sum over the head's dimensions in order, its weighted sum of a value's component one over the
positions in order. Which rows share a tile, and how many positions are scored at once, changes neither.

A tile unpacks its loads, which costs a second tile as much again, so for many rows a chunk's codes become float32 first. Codes
times scale is exact in float32: rows compute the same bits either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import (
    BLOCK,
    BYTES,
    COLUMNS,
    FLOATS,
    LANES,
    emit_floats,
    emit_keys,
    emit_values,
)
from augury.backends.numba_cpu.kernels.isa import host_features
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.simd import at
from augury.backends.numba_cpu.kernels.struct import nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, Segment, StridedRows

CHUNK = 256  # positions whose scores are kept at once
# Of one row: a chunk, or its beginning and a tree, then cleared cells.
SCORE_BYTES = 4 * (CHUNK + MAX_TOKENS + LANES)
_VECTOR = 64

# Rows of the largest tile, vectors of positions or columns beside each other: as many as registers hold without spilling.
MAX_ROWS, N_VECTORS = (6, 4) if "avx512f" in host_features() else (3, 2)
POSITIONS = LANES * N_VECTORS  # that are scored at once


def lines_of(kind: str) -> int:
    """Cache lines that POSITIONS keys advance by with a step, or values with each N_VECTORS vectors of columns."""
    return max(POSITIONS * BYTES[kind] // LANES // _VECTOR, 1)


def _scaled(b: ir.IRBuilder, index: ir.Value, n_bytes: int) -> ir.Value:
    return b.mul(index, ir.Constant(simd.I64, n_bytes))


class _Sums:
    """Sums of rows x vectors, in stack slots that LLVM turns into registers."""

    def __init__(self, b: ir.IRBuilder, n_rows: int, n_vectors: int) -> None:
        self._slots = [[cgutils.alloca_once(b, simd.F32X16) for _ in range(n_vectors)] for _ in range(n_rows)]
        for slots in self._slots:
            for slot in slots:
                b.store(ir.Constant(simd.F32X16, None), slot)

    def add(self, b: ir.IRBuilder, vectors: Sequence[ir.Value], factors: Sequence[ir.Value]) -> None:
        """Add vectors * the float at each row's address."""
        for address, slots in zip(factors, self._slots, strict=True):
            factor = simd.splat(b, simd.load(b, address, simd.F32), simd.F32X16)
            for vector, slot in zip(vectors, slots, strict=True):
                b.store(simd.emit_fma(b, vector, factor, b.load(slot)), slot)

    def rows(self, b: ir.IRBuilder) -> list[list[ir.Value]]:
        """The sums."""
        return [[b.load(slot) for slot in slots] for slots in self._slots]


def _emit_float_scores(b, kind, sums, keys, heads, d, fetch):
    block = _scaled(b, d, BYTES[kind])
    with cgutils.for_range(b, d) as loop:
        fetch(1)
        key = b.add(keys, _scaled(b, loop.index, BYTES[kind]))
        vectors = []
        for _ in range(N_VECTORS):
            vectors.append(emit_floats(b, kind, key))
            key = b.add(key, block)
        sums.add(b, vectors, [b.add(head, _scaled(b, loop.index, 4)) for head in heads])


def _emit_scaled_scores(b, kind, sums, keys, heads, d, fetch):
    block, columns = _scaled(b, d, BYTES[kind]), COLUMNS[kind]
    with cgutils.for_range(b, b.udiv(d, ir.Constant(simd.I64, BLOCK))) as outer:
        fetch(2)  # for the scales
        start = b.add(keys, _scaled(b, outer.index, BLOCK * BYTES[kind]))
        starts = [b.add(start, b.mul(block, ir.Constant(simd.I64, v))) for v in range(N_VECTORS)]
        scales = [emit_floats(b, "f16", place) for place in starts]
        queries = [b.add(head, _scaled(b, outer.index, 4 * BLOCK)) for head in heads]
        with cgutils.for_range(b, ir.Constant(simd.I64, BLOCK // columns)) as inner:
            fetch(1)
            codes = [b.add(at(b, place, BYTES["f16"]), _scaled(b, inner.index, LANES)) for place in starts]
            vectors = [emit_keys(b, kind, *pair) for pair in zip(codes, scales, strict=True)]
            for part in range(columns):
                factors = [at(b, b.add(query, _scaled(b, inner.index, 4 * columns)), 4 * part) for query in queries]
                sums.add(b, [vector[part] for vector in vectors], factors)


@simd.emitted(simd.i64, simd.i64, simd.i64, simd.f32x16, simd.i64, simd.i64, simd.i64, n_literals=2)
def score(b, kind, n_rows, keys, queries, d, scale, out, ahead, lines):
    """Scale * (query . key) for POSITIONS positions.

    `keys` points at their first block of 16, `queries` at the addresses of the rows' queries; a row's scores lie SCORE_BYTES
    after those of the one before. Every dimension prefetches `lines` cache lines, from `ahead` on.
    """
    rows = range(n_rows)
    heads = [simd.load(b, at(b, queries, 8 * r), simd.I64) for r in rows]
    sums = _Sums(b, len(rows), N_VECTORS)
    stream = cgutils.alloca_once_value(b, ahead)

    def fetch(times: int) -> None:
        simd.emit_prefetches(b, stream, _scaled(b, lines, times), 2)

    emit = _emit_float_scores if kind in FLOATS else _emit_scaled_scores
    emit(b, kind, sums, keys, heads, d, fetch)
    for r, vectors in enumerate(sums.rows(b)):
        for v, vector in enumerate(vectors):
            simd.store(b, at(b, out, r * SCORE_BYTES + v * _VECTOR), b.fmul(vector, scale))


def _emit_sums(b: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """The sum of each vector's lanes, one vector of them: by halves, which are put together as they become shorter."""
    width = LANES
    parts = list(vectors)
    while width > 1:
        width //= 2
        n_lanes = parts[0].type.count
        lanes = [i for i in range(2 * n_lanes if len(parts) > 1 else n_lanes) if i // width % 2 == 0]
        low, high = (ir.Constant(ir.VectorType(simd.I32, len(lanes)), [i + to for i in lanes]) for to in (0, width))
        pairs = list(zip(parts[::2], parts[1::2], strict=True)) if len(parts) > 1 else [(parts[0], parts[0])]
        parts = [b.fadd(b.shuffle_vector(*pair, low), b.shuffle_vector(*pair, high)) for pair in pairs]
    return parts[0]


@simd.emitted(simd.i64, simd.i64, simd.i64, simd.f32x16, simd.i64, simd.i64, simd.i64, n_literals=2)
def score_rows(b, kind, n_rows, keys, queries, d, scale, out, ahead, lines):
    """The same of keys that lie cell by cell, as values do; d is a multiple of 16, of codes 32.

    A lane sums every 16th product, and lanes are summed by halves.
    """
    rows = range(n_rows)
    heads = [simd.load(b, at(b, queries, 8 * r), simd.I64) for r in rows]
    step = _scaled(b, b.udiv(d, ir.Constant(simd.I64, LANES)), BYTES[kind])
    n_vectors = 1 if kind in FLOATS else BLOCK // LANES
    stream = cgutils.alloca_once_value(b, ahead)
    factor = b.shuffle_vector(scale, scale, ir.Constant(ir.VectorType(simd.I32, N_VECTORS), [0] * N_VECTORS))
    with cgutils.for_range(b, ir.Constant(simd.I64, POSITIONS // N_VECTORS)) as group:
        first = b.add(keys, b.mul(group.index, _scaled(b, step, N_VECTORS)))
        cells = [b.add(first, _scaled(b, step, cell)) for cell in range(N_VECTORS)]
        sums = [[cgutils.alloca_once(b, simd.F32X16) for _ in cells] for _ in rows]
        for slot in (slot for slots in sums for slot in slots):
            b.store(ir.Constant(simd.F32X16, None), slot)
        with cgutils.for_range(b, b.udiv(d, ir.Constant(simd.I64, LANES * n_vectors))) as loop:
            simd.emit_prefetches(b, stream, _scaled(b, lines, n_vectors), 2)
            start = b.mul(loop.index, ir.Constant(simd.I64, LANES * n_vectors))
            loaded = [emit_values(b, kind, n_vectors, cell, d, start) for cell in cells]
            for head, slots in zip(heads, sums, strict=True):
                for v in range(n_vectors):
                    query = simd.load(b, at(b, b.add(head, _scaled(b, start, 4)), v * _VECTOR), simd.F32X16)
                    for vectors, slot in zip(loaded, slots, strict=True):
                        b.store(simd.emit_fma(b, vectors[v], query, b.load(slot)), slot)
        to = b.add(out, b.mul(group.index, ir.Constant(simd.I64, 4 * N_VECTORS)))
        for r, slots in enumerate(sums):
            total = b.fmul(_emit_sums(b, [b.load(slot) for slot in slots]), factor)
            simd.store(b, at(b, to, r * SCORE_BYTES), total)


@simd.emitted(*[simd.i64] * 9, n_literals=2)
def weigh(b, kind, n_rows, weights, count, values, row, width, out, stride, ahead, lines):
    """Sums of weight * value over `count` positions, of the first `width` of `row` numbers of each.

    They are (n_rows, width) float32, rows `stride` bytes apart; both are multiples of 16, and weights lie as `score` writes
    scores. Every position of every N_VECTORS vectors of columns prefetches `lines` cache lines, from `ahead` on.
    """
    rows = range(n_rows)
    step = _scaled(b, b.udiv(row, ir.Constant(simd.I64, LANES)), BYTES[kind])
    done: ir.Value = ir.Constant(simd.I64, 0)
    stream = cgutils.alloca_once_value(b, ahead)
    least = 1 if kind in FLOATS else BLOCK // LANES
    for n_vectors in dict.fromkeys((N_VECTORS, least)):
        columns = ir.Constant(simd.I64, LANES * n_vectors)
        n_tiles = b.udiv(b.sub(width, done), columns)
        with cgutils.for_range(b, n_tiles) as tile:
            first = b.add(done, b.mul(tile.index, columns))
            sums = _Sums(b, len(rows), n_vectors)
            with cgutils.for_range(b, count) as loop:
                simd.emit_prefetches(b, stream, lines, 2)
                vectors = emit_values(b, kind, n_vectors, b.add(values, b.mul(loop.index, step)), row, first)
                weight = b.add(weights, _scaled(b, loop.index, 4))
                sums.add(b, vectors, [at(b, weight, r * SCORE_BYTES) for r in rows])
            to = b.add(out, _scaled(b, first, 4))
            for vectors in sums.rows(b):
                for v, vector in enumerate(vectors):
                    simd.store(b, at(b, to, v * _VECTOR), vector)
                to = b.add(to, stride)
        done = b.add(done, b.mul(n_tiles, columns))


@simd.emitted(simd.i64, simd.i64, simd.i64, n_literals=1)
def unpack_keys(b, kind, keys, n_blocks, out):
    """Blocks of 16 cells x 32 components, one after the other → (n_blocks, 32, 16) float32."""
    columns = COLUMNS[kind]
    with cgutils.for_range(b, n_blocks) as outer:
        start = b.add(keys, _scaled(b, outer.index, BLOCK * BYTES[kind]))
        to = b.add(out, _scaled(b, outer.index, BLOCK * _VECTOR))
        scales = emit_floats(b, "f16", start)
        for row in range(BLOCK // columns):
            for part, vector in enumerate(emit_keys(b, kind, at(b, start, BYTES["f16"] + LANES * row), scales)):
                simd.store(b, at(b, to, (columns * row + part) * _VECTOR), vector)


@simd.emitted(simd.i64, simd.i64, simd.i64, simd.i64, n_literals=1)
def unpack_values(b, kind, values, count, width, out):
    """`count` cells → (count, width) float32; width is a multiple of 32."""
    step = _scaled(b, b.udiv(width, ir.Constant(simd.I64, LANES)), BYTES[kind])
    with cgutils.for_range(b, count) as cell:
        row, to = b.add(values, b.mul(cell.index, step)), b.add(out, b.mul(cell.index, _scaled(b, width, 4)))
        with cgutils.for_range(b, b.udiv(width, ir.Constant(simd.I64, BLOCK))) as block:
            first = _scaled(b, block.index, BLOCK)
            for v, vector in enumerate(emit_values(b, kind, BLOCK // LANES, row, width, first)):
                simd.store(b, at(b, b.add(to, _scaled(b, first, 4)), v * _VECTOR), vector)


BLOCK_ROWS = 96  # rows that share a chunk of keys and values while it is in cache
MANY_ROWS = 96  # per thread: from here on, threads take rows, not chunks
N_PARTS = 16384  # chunks' parts of rows that there is memory for
LINE = 64
PART = 32  # that rows are padded to which are keys and values at once: of a panel, and of numbers that share a scale in a cache
TOTAL = 4  # where a part's total lies, in bytes
HEAD = 64  # bytes before a part's weighted sum: maximum, total (-1 where a row sees nothing of a chunk)

# Offsets into a thread's scratch: addresses of a tile's queries, a tile's scores, a row's scores by position, parts of rows.
# After these, keys and values of a chunk as float32.
QUERIES, SCORES = 0, 64
ROW_SCORES = SCORES + MAX_ROWS * SCORE_BYTES
OWN_PARTS = ROW_SCORES + 4 * CHUNK
N_OWN_PARTS = MAX_ROWS + BLOCK_ROWS


@struct
class Lists:
    """The cells that tokens attend to where these are chosen, see `choice.py`; addresses."""

    chosen: int  # (n, n_lists, ld_chosen) int64
    n_lists: int  # of a token: one, or one for each KV head
    ld_chosen: int
    runs: Any = pointer_to(Segment)  # every token by itself
    ends: int  # (n,) int64, how many cells a token attends to, less one


@struct
class AttentionLayer:
    """The operands of attention. Numbers and addresses of missing parts are 0."""

    q: Any = nested(StridedRows)  # (n, n_heads * d) float32
    out: int  # (n, n_heads * dv) float32, address
    d: int
    dv: int
    value_row: int  # numbers from one value to the next, at least dv; padded to 16
    n_heads: int
    n_kv_heads: int
    keys: int  # address
    values: int  # address
    n_rows: int  # from one head of a slot to the next
    scale: float
    window: int  # how many positions a position sees, its own the last
    chunk: int  # of every so many positions it sees those of its own only
    sees_run: bool  # whether it sees the later positions of its run, too
    sinks: int  # (n_heads,) float32, address
    adjust_scores: int  # address of the kernel, see `attention.py`; 0: scores stay as they are
    cap: float  # of scores
    slopes: int  # (n_heads,) float32, address
    parts: int  # of rows, address
    counts: int  # of parts, address
    lists: Any = nested(Lists)


@struct
class Attend(Record):
    layer: Any = nested(AttentionLayer)


def scratch_bytes(key_dim: int, value_dim: int) -> int:
    """Bytes of scratch that `attend` needs per thread."""
    part = _part_bytes(value_dim)
    return OWN_PARTS + N_OWN_PARTS * part + CHUNK * (4 * key_dim + part - HEAD)


def parts_bytes(value_dim: int, n_ctx: int, n_threads: int) -> int:
    """Bytes that the threads need for the parts of rows; a layer after the other uses them."""
    return min(N_PARTS, MANY_ROWS * n_threads * -(-n_ctx // CHUNK)) * _part_bytes(value_dim)


def counts_bytes(n_threads: int) -> int:
    """Bytes that the threads need for how far each block of rows has come, zero at first; a block has a row at least."""
    return MANY_ROWS * n_threads * LINE


def _part_bytes(value_dim: int) -> int:
    return HEAD + 4 * (-(-value_dim // 16) * 16)
