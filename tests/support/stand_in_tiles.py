"""Tiles of bfloat16 in operations that every CPU has, with the bits of the instructions: their kernels run on any machine.

Importing this module offers them as one more instruction set, the last one.
"""

import hashlib
from pathlib import Path

from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels.amx import (
    N_TILES,
    OF_WEIGHTS,
    ROW_BYTES,
    SHRUNK,
    TILE_BYTES,
    TILE_ROWS,
    TILES,
    Tiles,
    float16_bits,
)
from augury.backends.numba_cpu.kernels.isa import ISAS
from augury.backends.numba_cpu.kernels.simd import (
    F16,
    F16X32,
    F32X16,
    I16,
    I16X32,
    I32,
    I32X16,
    I64,
    constant,
    emit_fma,
    load,
    splat,
    store,
)

# Kernels are kept by name and by the sources of the package, of which this is none.
STAND_IN = f"amx-stand-in-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}"


class StandInTiles(Tiles):
    """The operations on tiles, which lie in memory."""

    def configure(self, b, memory, n_tokens):
        store(b, memory, n_tokens)
        for tile in range(N_TILES):
            self.clear(b, memory, tile)

    def release(self, b):
        """Is nothing here."""

    def clear(self, b, memory, tile):
        for row in range(TILE_ROWS):
            store(b, b.add(_place(b, memory, tile), ir.Constant(I64, ROW_BYTES * row)), ir.Constant(I32X16, None))

    def load(self, b, memory, tile, address, stride):
        with cgutils.for_range(b, _n_rows(b, memory, tile)) as loop:
            to = b.add(_place(b, memory, tile), b.mul(loop.index, ir.Constant(I64, ROW_BYTES)))
            store(b, to, load(b, b.add(address, b.mul(loop.index, stride)), I32X16))

    stream = load

    def save(self, b, memory, tile, address, stride):
        with cgutils.for_range(b, _n_rows(b, memory, tile)) as loop:
            row = load(b, b.add(_place(b, memory, tile), b.mul(loop.index, ir.Constant(I64, ROW_BYTES))), I32X16)
            store(b, b.add(address, b.mul(loop.index, stride)), row)

    def dot(self, b, memory, sums, tokens, weights):
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

    def round(self, b, low, high):
        halves = [b.trunc(_to_bfloat16(b, part), ir.VectorType(I16, 16)) for part in (low, high)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def choose(self, b, table, indices):
        candidates = [constant(I16X32, float16_bits(value)) for value in table]
        for bit in range(len(table).bit_length() - 1):
            is_set = b.icmp_unsigned("!=", b.and_(indices, constant(I16X32, 1 << bit)), constant(I16X32, 0))
            candidates = [b.select(is_set, high, low) for low, high in zip(candidates[::2], candidates[1::2], strict=True)]
        return b.bitcast(candidates[0], F16X32)

    def fma(self, b, x, y, z):
        halves = [_fma_of_halves(b, *(b.fpext(_lanes(b, value, first), F32X16) for value in (x, y, z))) for first in (0, 16)]
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def scale(self, b, value, exponents):
        halves = []
        for first in (0, 16):
            biased = b.add(b.fptosi(_lanes(b, exponents, first), I32X16), constant(I32X16, 127))
            factor = b.bitcast(b.shl(biased, constant(I32X16, 23)), F32X16)
            halves.append(b.fptrunc(b.fmul(b.fpext(_lanes(b, value, first), F32X16), factor), ir.VectorType(F16, 16)))
        return b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 32), list(range(32))))

    def shrink(self, b, value):
        moved = b.ashr(b.add(b.bitcast(value, I16X32), constant(I16X32, 4)), constant(I16X32, 3))
        return b.and_(moved, constant(I16X32, SHRUNK))


def _lanes(b, value, first):
    return b.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, 16), list(range(first, first + 16))))


def _fma_of_halves(b, x, y, z):
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


def _place(b, memory, tile):
    return b.add(memory, ir.Constant(I64, ROW_BYTES + TILE_BYTES * tile))


def _n_rows(b, memory, tile):
    return ir.Constant(I64, TILE_ROWS) if tile in OF_WEIGHTS else load(b, memory, I64)


def _is_denormal(b, bits):
    return b.icmp_unsigned("==", b.and_(bits, constant(I32X16, 0x7F800000)), constant(I32X16, 0))


def _flush(b, value):
    """Make zeros of denormal numbers; they keep their signs."""
    bits = b.bitcast(value, I32X16)
    return b.bitcast(b.select(_is_denormal(b, bits), b.and_(bits, constant(I32X16, 1 << 31)), bits), F32X16)


def _floats(b, pairs):
    """Split pairs of bfloat16 into the even and the odd ones, float32."""
    parts = b.shl(pairs, constant(I32X16, 16)), b.and_(pairs, constant(I32X16, 0xFFFF0000))
    even, odd = (_flush(b, b.bitcast(part, F32X16)) for part in parts)
    return even, odd


def _to_bfloat16(b, value):
    """Round float32 to bfloat16, in the lower halves of i32x16; NaN stays NaN."""
    bits = b.bitcast(value, I32X16)
    upper = b.lshr(bits, constant(I32X16, 16))
    rounded = b.add(b.add(bits, constant(I32X16, 0x7FFF)), b.and_(upper, constant(I32X16, 1)))
    rounded = b.lshr(rounded, constant(I32X16, 16))
    zero = b.and_(upper, constant(I32X16, 0x8000))
    is_nan = b.fcmp_unordered("uno", value, value)
    number = b.select(_is_denormal(b, bits), zero, rounded)
    return b.select(is_nan, b.or_(upper, constant(I32X16, 0x40)), number)


ISAS[STAND_IN], TILES[STAND_IN] = ISAS["generic"], StandInTiles()
