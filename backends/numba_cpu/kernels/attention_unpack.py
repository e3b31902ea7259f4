"""Keys and values of quantised types → float32, for a chunk that many rows attend to; emitted as LLVM IR.

A tile unpacks its loads, which costs a second tile as much again. Codes times scale is exact in float32, so rows compute
the same bits either way.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels.cache_type import BLOCK, BYTES, COLUMNS, LANES, emit_floats, emit_keys, emit_values
from augury.backends.numba_cpu.kernels.simd import I64, at, emitted, i64, store

_VECTOR = 64


def _int(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


@emitted(i64, i64, i64, n_literals=1)
def unpack_keys(b, kind, keys, n_blocks, out):
    """Blocks of 16 cells x 32 components, one after the other → (n_blocks, 32, 16) float32."""
    columns = COLUMNS[kind]
    with cgutils.for_range(b, n_blocks) as outer:
        start = b.add(keys, b.mul(outer.index, _int(BLOCK * BYTES[kind])))
        to = b.add(out, b.mul(outer.index, _int(BLOCK * _VECTOR)))
        scales = emit_floats(b, "f16", start)
        for row in range(BLOCK // columns):
            for part, vector in enumerate(emit_keys(b, kind, at(b, start, BYTES["f16"] + LANES * row), scales)):
                store(b, at(b, to, (columns * row + part) * _VECTOR), vector)


@emitted(i64, i64, i64, i64, n_literals=1)
def unpack_values(b, kind, values, count, width, out):
    """`count` cells → (count, width) float32; width is a multiple of 32."""
    step = b.mul(b.udiv(width, _int(LANES)), _int(BYTES[kind]))
    with cgutils.for_range(b, count) as cell:
        row, to = b.add(values, b.mul(cell.index, step)), b.add(out, b.mul(cell.index, b.mul(width, _int(4))))
        with cgutils.for_range(b, b.udiv(width, _int(BLOCK))) as block:
            first = b.mul(block.index, _int(BLOCK))
            for v, vector in enumerate(emit_values(b, kind, BLOCK // LANES, row, width, first)):
                store(b, at(b, b.add(to, b.mul(first, _int(4))), v * _VECTOR), vector)
