"""Tiles of bfloat16: the instructions of Intel's AMX, and a stand-in that gives the same bits on any CPU.

There are eight tiles of up to 16 rows of 64 bytes. `dot` multiplies rows of 32 numbers (m of them, a tile of activations) with
16 pairs of rows of 16 numbers (a tile of weights: word 2 * i + e of row p is number 2 * p + e of weight row i), and adds the
products to a tile of (m, 16) float32: the numbers with even and with odd index are summed apart from 0 on, in their order and
fused, then both sums are added, and this to the tile's contents. Denormal numbers always count as 0; roundings
are to nearest, ties to even. Source: Intel's Software Developer's Manual, TDPBF16PS and VCVTNE2PS2BF16.

Functions take the address of MEMORY_BYTES bytes, one cache line's start: there the instructions find the shape of tiles, and
the stand-in has its tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.simd import (
    F16,
    F16X32,
    F32X16,
    I8,
    I16X32,
    I32,
    I32X16,
    I64,
    call,
    constant,
    emit_fma,
    emitted,
    i64,
    load,
    splat,
    store,
)

TILE_ROWS, ROW_BYTES = 16, 64
TILE_BYTES = TILE_ROWS * ROW_BYTES
N_TILES = 8
MEMORY_BYTES = ROW_BYTES + N_TILES * TILE_BYTES

# Tiles 0 to 3 hold sums, 4 and 5 activations, the others weights.
_OF_TOKENS, _OF_WEIGHTS = range(6), range(6, N_TILES)

_SHRUNK = 0x8FFF  # the bits of a number that was shrunk


class Tiles:
    """The emitters of operations on tiles: the instructions. Every address is an int64."""

    def configure(self, b: ir.IRBuilder, memory: ir.Value, n_tokens: ir.Value) -> None:
        """Give the tiles of sums and of activations `n_tokens` rows, those of weights 16; all begin with zeros."""
        palette, row_bytes = [1] + [0] * 15, [ROW_BYTES, 0] * N_TILES
        head = ir.Constant(ir.VectorType(I8, ROW_BYTES), palette + row_bytes + [0] * 32)
        store(b, memory, head)
        of_tokens = ir.Constant(I64, sum(1 << 8 * tile for tile in _OF_TOKENS))
        of_weights = ir.Constant(I64, sum(TILE_ROWS << 8 * tile for tile in _OF_WEIGHTS))
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
        return b.and_(moved, constant(I16X32, _SHRUNK))


class StandInTiles(Tiles):
    """The same in operations that every CPU has; tiles lie in memory."""

    def configure(self, b: ir.IRBuilder, memory: ir.Value, n_tokens: ir.Value) -> None:
        store(b, memory, n_tokens)
        for tile in range(N_TILES):
            self.clear(b, memory, tile)

    def release(self, b: ir.IRBuilder) -> None:
        """Is nothing here."""

    def clear(self, b: ir.IRBuilder, memory: ir.Value, tile: int) -> None:
        for row in range(TILE_ROWS):
            store(b, b.add(_place(b, memory, tile), ir.Constant(I64, ROW_BYTES * row)), ir.Constant(I32X16, None))

    def load(self, b: ir.IRBuilder, memory: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        with cgutils.for_range(b, _n_rows(b, memory, tile)) as loop:
            to = b.add(_place(b, memory, tile), b.mul(loop.index, ir.Constant(I64, ROW_BYTES)))
            store(b, to, load(b, b.add(address, b.mul(loop.index, stride)), I32X16))

    stream = load

    def save(self, b: ir.IRBuilder, memory: ir.Value, tile: int, address: ir.Value, stride: ir.Value) -> None:
        with cgutils.for_range(b, _n_rows(b, memory, tile)) as loop:
            row = load(b, b.add(_place(b, memory, tile), b.mul(loop.index, ir.Constant(I64, ROW_BYTES))), I32X16)
            store(b, b.add(address, b.mul(loop.index, stride)), row)

    def dot(self, b: ir.IRBuilder, memory: ir.Value, sums: int, tokens: int, weights: int) -> None:
        with cgutils.for_range(b, _n_rows(b, memory, tokens)) as loop:
            offset = b.mul(loop.index, ir.Constant(I64, ROW_BYTES))
            row, to = (b.add(_place(b, memory, tile), offset) for tile in (tokens, sums))
            even, odd = (cgutils.alloca_once_value(b, ir.Constant(F32X16, None)) for _ in range(2))
            for slot in (even, odd):
                b.store(ir.Constant(F32X16, None), slot)
            with cgutils.for_range(b, ir.Constant(I64, TILE_ROWS)) as pair:
                pairs = splat(b, load(b, b.add(row, b.mul(pair.index, ir.Constant(I64, 4))), I32), I32X16)
                place = b.add(_place(b, memory, weights), b.mul(pair.index, ir.Constant(I64, ROW_BYTES)))
                for slot, x, w in zip((even, odd), _floats(b, pairs), _floats(b, load(b, place, I32X16)), strict=True):
                    b.store(_flush(b, emit_fma(b, x, w, b.load(slot))), slot)
            total = _flush(b, b.fadd(b.load(even), b.load(odd)))
            store(b, to, _flush(b, b.fadd(_flush(b, load(b, to, F32X16)), total)))

    def round(self, b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
        halves = [b.trunc(_to_bfloat16(b, part), ir.VectorType(simd.I16, 16)) for part in (low, high)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def choose(self, b: ir.IRBuilder, table: tuple[int, ...], indices: ir.Value) -> ir.Value:
        candidates: list[ir.Value] = [constant(I16X32, float16_bits(value)) for value in table]
        for bit in range(len(table).bit_length() - 1):
            is_set = b.icmp_unsigned("!=", b.and_(indices, constant(I16X32, 1 << bit)), constant(I16X32, 0))
            candidates = [b.select(is_set, high, low) for low, high in zip(candidates[::2], candidates[1::2], strict=True)]
        return b.bitcast(candidates[0], F16X32)

    def fma(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        halves = [_fma_of_halves(b, *(b.fpext(_lanes(b, value, first), F32X16) for value in (x, y, z))) for first in (0, 16)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def scale(self, b: ir.IRBuilder, value: ir.Value, exponents: ir.Value) -> ir.Value:
        halves = []
        for first in (0, 16):
            biased = b.add(b.fptosi(_lanes(b, exponents, first), I32X16), constant(I32X16, 127))
            factor = b.bitcast(b.shl(biased, constant(I32X16, 23)), F32X16)
            halves.append(b.fptrunc(b.fmul(b.fpext(_lanes(b, value, first), F32X16), factor), ir.VectorType(F16, 16)))
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def shrink(self, b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        moved = b.ashr(b.add(b.bitcast(value, I16X32), constant(I16X32, 4)), constant(I16X32, 3))
        return b.and_(moved, constant(I16X32, _SHRUNK))


def float16_bits(value: int) -> int:
    """Return the bits of a whole number as float16."""
    return int(np.array(value, np.float16).view(np.uint16))


def _lanes(b: ir.IRBuilder, value: ir.Value, first: int) -> ir.Value:
    return b.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, 16), list(range(first, first + 16))))


def _fma_of_halves(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Compute x * y + z of float16, given as float32: the product is exact, the sum is rounded to odd and only then to even."""
    product = b.fmul(x, y)
    total = b.fadd(product, z)
    other = b.fsub(total, product)
    error = b.fadd(b.fsub(product, b.fsub(total, other)), b.fsub(z, other))
    bits = b.bitcast(total, I32X16)
    differs = b.xor(bits, b.bitcast(error, I32X16))
    is_beyond = b.icmp_signed("<", differs, constant(I32X16, 0))  # the sum is larger than its unrounded value
    cut = b.select(is_beyond, b.sub(bits, constant(I32X16, 1)), bits)
    is_exact = b.fcmp_ordered("==", error, ir.Constant(F32X16, None))
    odd = b.select(is_exact, bits, b.or_(cut, constant(I32X16, 1)))
    return b.fptrunc(b.bitcast(odd, F32X16), ir.VectorType(F16, 16))


def _place(b: ir.IRBuilder, memory: ir.Value, tile: int) -> ir.Value:
    return b.add(memory, ir.Constant(I64, ROW_BYTES + TILE_BYTES * tile))


def _n_rows(b: ir.IRBuilder, memory: ir.Value, tile: int) -> ir.Value:
    return ir.Constant(I64, TILE_ROWS) if tile in _OF_WEIGHTS else load(b, memory, I64)


def _is_denormal(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return b.icmp_unsigned("==", b.and_(bits, constant(I32X16, 0x7F800000)), constant(I32X16, 0))


def _flush(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Make zeros of denormal numbers; they keep their signs."""
    bits = b.bitcast(value, I32X16)
    return b.bitcast(b.select(_is_denormal(b, bits), b.and_(bits, constant(I32X16, 1 << 31)), bits), F32X16)


def _floats(b: ir.IRBuilder, pairs: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split pairs of bfloat16 into the even and the odd ones, float32."""
    parts = b.shl(pairs, constant(I32X16, 16)), b.and_(pairs, constant(I32X16, 0xFFFF0000))
    even, odd = (_flush(b, b.bitcast(part, F32X16)) for part in parts)
    return even, odd


def _to_bfloat16(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round float32 to bfloat16, in the lower halves of i32x16; NaN stays NaN."""
    bits = b.bitcast(value, I32X16)
    upper = b.lshr(bits, constant(I32X16, 16))
    rounded = b.add(b.add(bits, constant(I32X16, 0x7FFF)), b.and_(upper, constant(I32X16, 1)))
    rounded = b.lshr(rounded, constant(I32X16, 16))
    zero = b.and_(upper, constant(I32X16, 0x8000))
    is_nan = b.fcmp_unordered("uno", value, value)
    number = b.select(_is_denormal(b, bits), zero, rounded)
    return b.select(is_nan, b.or_(upper, constant(I32X16, 0x40)), number)


# By the name of the instruction set.
TILES: dict[str, Tiles] = {"amx": Tiles(), "amx-stand-in": StandInTiles()}


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
