"""Tiles of bfloat16: the instructions of Intel's AMX.

There are eight tiles of up to 16 rows of 64 bytes. `dot` multiplies rows of 32 numbers (m of them, a tile of activations) with
16 pairs of rows of 16 numbers (a tile of weights: word 2 * i + e of row p is number 2 * p + e of weight row i), and adds the
products to a tile of (m, 16) float32: the numbers with even and with odd index are summed apart from 0 on, in their order and
fused, then both sums are added, and this to the tile's contents. Denormal numbers always count as 0; roundings
are to nearest, ties to even. Source: Intel's Software Developer's Manual, TDPBF16PS and VCVTNE2PS2BF16.

Functions take the address of MEMORY_BYTES bytes, one cache line's start: there the instructions find the shape of tiles, and
the tests' stand-in for them (`tests/support/stand_in_tiles.py`) has its tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.simd import F16X32, I8, I16X32, I32, I64, call, constant, emitted, i64, store

TILE_ROWS, ROW_BYTES = 16, 64
TILE_BYTES = TILE_ROWS * ROW_BYTES
N_TILES = 8
MEMORY_BYTES = ROW_BYTES + N_TILES * TILE_BYTES

# Tiles 0 to 3 hold sums, 4 and 5 activations, the others weights.
_OF_TOKENS, OF_WEIGHTS = range(6), range(6, N_TILES)

SHRUNK = 0x8FFF  # the bits of a number that was shrunk


class Tiles:
    """The emitters of operations on tiles: the instructions. Every address is an int64."""

    def configure(self, b: ir.IRBuilder, memory: ir.Value, n_tokens: ir.Value) -> None:
        """Give the tiles of sums and of activations `n_tokens` rows, those of weights 16; all begin with zeros."""
        palette, row_bytes = [1] + [0] * 15, [ROW_BYTES, 0] * N_TILES
        head = ir.Constant(ir.VectorType(I8, ROW_BYTES), palette + row_bytes + [0] * 32)
        store(b, memory, head)
        of_tokens = ir.Constant(I64, sum(1 << 8 * tile for tile in _OF_TOKENS))
        of_weights = ir.Constant(I64, sum(TILE_ROWS << 8 * tile for tile in OF_WEIGHTS))
        store(b, b.add(memory, ir.Constant(I64, 48)), b.add(b.mul(n_tokens, of_tokens), of_weights))
        call(b, "llvm.x86.ldtilecfg", ir.VoidType(), simd.pointer(b, memory, I8))

    def release(self, b: ir.IRBuilder) -> None:
        """End the use of tiles on this thread."""
        call(b, "llvm.x86.tilerelease", ir.VoidType())

    def clear(self, b: ir.IRBuilder, _: ir.Value, tile: int) -> None:
        """Fill a tile with zeros."""
        call(b, "llvm.x86.tilezero", ir.VoidType(), ir.Constant(I8, tile))

    def load(self, b: ir.IRBuilder, _: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Fill a tile with rows that lie `stride` bytes apart."""
        call(b, "llvm.x86.tileloadd64", ir.VoidType(), ir.Constant(I8, tile), simd.pointer(b, address, I8), stride)

    def stream(self, b: ir.IRBuilder, _: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Fill a tile like `load`, past the L1 cache, which keeps its contents."""
        call(b, "llvm.x86.tileloaddt164", ir.VoidType(), ir.Constant(I8, tile), simd.pointer(b, address, I8), stride)

    def save(self, b: ir.IRBuilder, _: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Store the rows of a tile `stride` bytes apart."""
        call(b, "llvm.x86.tilestored64", ir.VoidType(), ir.Constant(I8, tile), simd.pointer(b, address, I8), stride)

    def dot(self, b: ir.IRBuilder, _: ir.Value, sums: int, tokens: int, weights: int) -> None:
        """Add products to sums."""
        call(b, "llvm.x86.tdpbf16ps", ir.VoidType(), *(ir.Constant(I8, tile) for tile in (sums, tokens, weights)))

    def round(self, b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
        """Round two vectors of float32 to one of bfloat16, i16x32."""
        return call(b, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", I16X32, high, low)

    def choose(self, b: ir.IRBuilder, table: tuple[int, ...], indices: ir.Value) -> ir.Value:
        """Return the whole numbers table[index], float16, by the lowest bits of indices, i16x32; up to 32 are in the table."""
        words = ir.Constant(I16X32, [float16_bits(value) for value in table] * (32 // len(table)))
        return b.bitcast(call(b, "llvm.x86.avx512.permvar.hi.512", I16X32, words, indices), F16X32)

    def fma(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """Compute x * y + z with one rounding, in 32 lanes of float16."""
        return call(b, "llvm.fma.v32f16", F16X32, x, y, z)

    def scale(self, b: ir.IRBuilder, value: ir.Value, exponents: ir.Value) -> ir.Value:
        """Multiply float16 with two to the power of whole numbers, float16 as well."""
        everywhere, nearest = ir.Constant(I32, -1), ir.Constant(I32, 8)
        args = (value, exponents, ir.Constant(F16X32, None), everywhere, nearest)
        return call(b, "llvm.x86.avx512fp16.mask.scalef.ph.512", F16X32, *args)

    def shrink(self, b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Round float16 to bfloat16 of 2**-112 times the value, i16x32; values below 2**-14 become denormal numbers."""
        moved = call(b, "llvm.x86.avx512.pmul.hr.sw.512", I16X32, b.bitcast(value, I16X32), constant(I16X32, 1 << 12))
        return b.and_(moved, constant(I16X32, SHRUNK))


def float16_bits(value: int) -> int:
    """Return the bits of a whole number as float16."""
    return int(np.array(value, np.float16).view(np.uint16))


# By the name of the instruction set.
TILES = {"amx": Tiles()}


def _operation(n_numbers: int, n_addresses: int, emit: Callable[..., None]) -> Any:
    """Make a function that kernels call: (isa, literal numbers of tiles, addresses)."""

    def operation(b: ir.IRBuilder, isa: str, *args: Any) -> None:
        emit(TILES[isa], b, *args)

    return emitted(*[i64] * n_addresses, n_literals=1 + n_numbers)(operation)


configure = _operation(0, 2, lambda tiles, b, memory, n_tokens: tiles.configure(b, memory, n_tokens))
release = _operation(0, 0, lambda tiles, b: tiles.release(b))
clear = _operation(1, 1, lambda tiles, b, tile, memory: tiles.clear(b, memory, tile))
load_tile = _operation(1, 3, lambda tiles, b, tile, memory, *rows: tiles.load(b, memory, tile, *rows))  # address, stride
stream_tile = _operation(1, 3, lambda tiles, b, tile, memory, *rows: tiles.stream(b, memory, tile, *rows))
save_tile = _operation(1, 3, lambda tiles, b, tile, memory, *rows: tiles.save(b, memory, tile, *rows))
dot = _operation(3, 1, lambda tiles, b, sums, tokens, weights, memory: tiles.dot(b, memory, sums, tokens, weights))
