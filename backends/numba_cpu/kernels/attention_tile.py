"""Tiles of attention: a few rows against many positions, all sums in registers; emitted as LLVM IR.

A row's score of a position is a sum over the head's dimensions in order, its weighted sum of a value's component one over the
positions in order. Which rows share a tile, and how many positions are scored at once, changes neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.backends.numba_cpu.kernels.simd import F16, F32, F32X16, I64, call, emit_prefetch, f32x16, load, splat, store
from augury.backends.numba_cpu.kernels.unpack import at

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 256  # positions whose scores are kept at once
LANES = 16
SCORE_BYTES = 4 * (CHUNK + MAX_TOKENS + LANES)  # of one row: a chunk, or its beginning and a tree, and what is cleared behind
BYTES = {"f16": 2, "f32": 4}
_VECTOR = 64

# Rows of the largest tile, vectors of positions or columns beside each other: what registers hold without spilling.
MAX_ROWS, N_VECTORS = (6, 4) if llvmlite.binding.get_host_cpu_features().get("avx512f", False) else (3, 2)
POSITIONS = LANES * N_VECTORS  # that are scored at once


def _load(b: ir.IRBuilder, kind: str, address: ir.Value) -> ir.Value:
    """Load 16 numbers of the cache as float32."""
    if kind == "f16":
        return b.fpext(load(b, address, ir.VectorType(F16, LANES)), F32X16)
    return load(b, address, F32X16)


def _scaled(b: ir.IRBuilder, index: ir.Value, n_bytes: int) -> ir.Value:
    return b.mul(index, ir.Constant(I64, n_bytes))


def _prefetch(b: ir.IRBuilder, stream: ir.Value, lines: ir.Value) -> None:
    """Ask for the next cache lines of the stream whose address lies in a stack slot."""
    with cgutils.for_range(b, lines):
        address = b.load(stream)
        emit_prefetch(b, address, 3)
        b.store(at(b, address, _VECTOR), stream)


class _Sums:
    """Sums of rows x vectors, in stack slots that LLVM turns into registers."""

    def __init__(self, b: ir.IRBuilder, n_rows: int, n_vectors: int) -> None:
        self._slots = [[cgutils.alloca_once(b, F32X16) for _ in range(n_vectors)] for _ in range(n_rows)]
        for slots in self._slots:
            for slot in slots:
                b.store(ir.Constant(F32X16, None), slot)

    def add(self, b: ir.IRBuilder, vectors: Sequence[ir.Value], factors: Sequence[ir.Value]) -> None:
        """Add vectors * the float at each row's address."""
        for address, slots in zip(factors, self._slots, strict=True):
            factor = splat(b, load(b, address, F32), F32X16)
            for vector, slot in zip(vectors, slots, strict=True):
                b.store(call(b, "llvm.fma.v16f32", F32X16, vector, factor, b.load(slot)), slot)

    def rows(self, b: ir.IRBuilder) -> list[list[ir.Value]]:
        """What has been summed."""
        return [[b.load(slot) for slot in slots] for slots in self._slots]


def _score(
    _: Any, kind: Any, n_rows: Any, keys: Any, queries: Any, d: Any, scale: Any, out: Any, ahead: Any, lines: Any
) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _: Any, args: Any) -> Any:
        keys, queries, d, scale, out, ahead, lines = args[2:]
        n_bytes = BYTES[kind.literal_value]
        rows = range(n_rows.literal_value)
        heads = [load(b, at(b, queries, 8 * r), I64) for r in rows]
        block = _scaled(b, d, LANES * n_bytes)
        sums = _Sums(b, len(rows), N_VECTORS)
        stream = cgutils.alloca_once_value(b, ahead)
        with cgutils.for_range(b, d) as loop:
            _prefetch(b, stream, lines)
            key = b.add(keys, _scaled(b, loop.index, LANES * n_bytes))
            vectors = []
            for _v in range(N_VECTORS):
                vectors.append(_load(b, kind.literal_value, key))
                key = b.add(key, block)
            sums.add(b, vectors, [b.add(head, _scaled(b, loop.index, 4)) for head in heads])
        for r, vectors in enumerate(sums.rows(b)):
            for v, vector in enumerate(vectors):
                store(b, at(b, out, r * SCORE_BYTES + v * _VECTOR), b.fmul(vector, scale))
        return context.get_dummy_value()

    return types.void(kind, n_rows, *[types.int64] * 3, f32x16, *[types.int64] * 3), generate


def _weigh(
    _: Any,
    kind: Any,
    n_rows: Any,
    weights: Any,
    count: Any,
    values: Any,
    width: Any,
    out: Any,
    stride: Any,
    ahead: Any,
    lines: Any,
) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _: Any, args: Any) -> Any:
        weights, count, values, width, out, stride, ahead, lines = args[2:]
        n_bytes, rows = BYTES[kind.literal_value], range(n_rows.literal_value)
        step = _scaled(b, width, n_bytes)
        done: ir.Value = ir.Constant(I64, 0)
        stream = cgutils.alloca_once_value(b, ahead)
        for n_vectors in (N_VECTORS, 1):
            columns = ir.Constant(I64, LANES * n_vectors)
            n_tiles = b.udiv(b.sub(width, done), columns)
            with cgutils.for_range(b, n_tiles) as tile:
                first = b.add(done, b.mul(tile.index, columns))
                sums = _Sums(b, len(rows), n_vectors)
                start = b.add(values, _scaled(b, first, n_bytes))
                with cgutils.for_range(b, count) as loop:
                    _prefetch(b, stream, lines)
                    value = b.add(start, b.mul(loop.index, step))
                    vectors = [_load(b, kind.literal_value, at(b, value, LANES * n_bytes * v)) for v in range(n_vectors)]
                    weight = b.add(weights, _scaled(b, loop.index, 4))
                    sums.add(b, vectors, [at(b, weight, r * SCORE_BYTES) for r in rows])
                to = b.add(out, _scaled(b, first, 4))
                for vectors in sums.rows(b):
                    for v, vector in enumerate(vectors):
                        store(b, at(b, to, v * _VECTOR), vector)
                    to = b.add(to, stride)
            done = b.add(done, b.mul(n_tiles, columns))
        return context.get_dummy_value()

    return types.void(kind, n_rows, *[types.int64] * 8), generate


# score(type, n_rows, keys, queries, d, scale, out, ahead, lines): scale * (query . key) for POSITIONS positions. `keys` points
# at their first block of 16, `queries` at the addresses of the rows' queries; a row's scores lie SCORE_BYTES behind those of
# the one before. Every dimension prefetches `lines` cache lines, from `ahead` on.
score = intrinsic(prefer_literal=True)(_score)
# weigh(type, n_rows, weights, count, values, width, out, stride, ahead, lines): sums of weight * value over `count` positions,
# (n_rows, width) float32, rows `stride` bytes apart; width is a multiple of 16, and weights lie as `score` writes scores.
# Every position of every N_VECTORS vectors of columns prefetches `lines` cache lines, from `ahead` on.
weigh = intrinsic(prefer_literal=True)(_weigh)
