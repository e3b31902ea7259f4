"""Weights of 16 bits, and their activations, → tiles of bfloat16, see `amx.py`.

A float16 is the sum of two bfloat16, a bfloat16 is one. An activation is taken for the sum of two: itself, rounded, and the
remainder, rounded, which is off by 2**-18 of it at most. If both are cut, the product of both remainders is not computed: it is
2**-16 of a product at most, of either sign.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import ROW_BYTES, TILE_BYTES, TILE_ROWS, TILES
from augury.backends.numba_cpu.kernels.format import BLOCK, PANEL_ROWS, VECTOR
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part
from augury.backends.numba_cpu.kernels.simd import at
from augury.backends.numba_cpu.kernels.unpack import GROUPS

_COLUMN = 2 * PANEL_ROWS  # bytes of a column of a panel


def _cut(b: ir.IRBuilder, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cut float32 into the upper half of its bits and the remainder, float32 each."""
    upper = b.bitcast(b.and_(b.bitcast(value, simd.I32X16), simd.constant(simd.I32X16, 0xFFFF0000)), simd.F32X16)
    return upper, b.fsub(value, upper)


def _words(b: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    return b.shuffle_vector(
        b.bitcast(first, simd.I16X32), b.bitcast(second, simd.I16X32), ir.Constant(ir.VectorType(simd.I32, 32), lanes)
    )


def _unpack_bf16(b: ir.IRBuilder, columns: ir.Value, g: int) -> list[ir.Value]:
    even, odd = (simd.load(b, at(b, columns, _COLUMN * i), simd.I16X32) for i in range(2))
    return [_words(b, even, odd, [16 * g + lane // 2 + 32 * (lane % 2) for lane in range(32)])]


def _unpack_f16(b: ir.IRBuilder, columns: ir.Value, g: int) -> list[ir.Value]:
    halves = (simd.load(b, at(b, columns, _COLUMN * i + 2 * TILE_ROWS * g), ir.VectorType(simd.F16, 16)) for i in range(2))
    parts = zip(*(_cut(b, b.fpext(half, simd.F32X16)) for half in halves), strict=True)
    return [_words(b, even, odd, [lane // 2 * 2 + 1 + 32 * (lane % 2) for lane in range(32)]) for even, odd in parts]


_UNPACK = {"bf16": _unpack_bf16, "f16": _unpack_f16}
WEIGHT_PARTS = {"bf16": 1, "f16": 2}
"""How many bfloat16 a weight is the sum of, of those types that are cut."""
TOKEN_PARTS = 2


@simd.emitted(simd.i64, simd.i64, simd.i64, n_literals=1)
def unpack_floats(b, kind, columns, out, ahead):
    """32 columns of 32 rows → a tile for each group of rows, and if weights are cut, two more of the remainders.

    As many bytes are fetched from `ahead` on.
    """
    emit = _UNPACK[kind]
    for pair in range(TILE_ROWS):
        for g in GROUPS:
            for part, row in enumerate(emit(b, at(b, columns, 2 * _COLUMN * pair), g)):
                simd.store(b, at(b, out, (part * len(GROUPS) + g) * TILE_BYTES + ROW_BYTES * pair), row)
            simd.emit_prefetch(b, at(b, ahead, VECTOR * (len(GROUPS) * pair + g)), 2)


@simd.emitted(simd.f32x16, simd.f32x16, simd.i64, n_literals=1)
def _cut_32(b, isa, low, high, out):
    """Cut 16 float32, and 16 more, to 128 bytes."""
    tiles = TILES[isa]
    words = tiles.round(b, low, high)
    simd.store(b, out, words)
    rests = []
    for half, value in enumerate((low, high)):
        lanes = [16 * half + lane // 2 + 32 * (1 - lane % 2) for lane in range(32)]  # a zero below each
        rounded = b.bitcast(_words(b, words, ir.Constant(simd.I16X32, None), lanes), simd.F32X16)
        is_whole = b.fcmp_ordered("==", rounded, value)  # and nothing is left of infinity
        rests.append(b.select(is_whole, ir.Constant(simd.F32X16, None), b.fsub(value, rounded)))
    simd.store(b, at(b, out, ROW_BYTES), tiles.round(b, *rests))


def bfloat16_cut(isa: str) -> Any:
    """Make the kernel that cuts activations for tiles; its arguments are those of `quantize_f32`."""

    def quantize(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
        for i in range(i0, i1):
            block = i // n
            source, left = x + ((i - block * n) * k + block * BLOCK) * 4, k - block * BLOCK
            high = simd.zero_f32()
            if left > 16:
                high = load_part(source + 64, left - 16)
            _cut_32(isa, load_part(source, left), high, out + i * TOKEN_PARTS * ROW_BYTES)

    return kernel(quantize, f"quantize_bf16x2_{isa.replace('-', '_')}")
