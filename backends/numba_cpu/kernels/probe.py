"""The limits of the machine: records that only read memory, or multiply."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import MEMORY_BYTES, TILE_BYTES, TILE_ROWS, TILES, configure, dot, release
from augury.backends.numba_cpu.kernels.format import VECTOR
from augury.backends.numba_cpu.kernels.isa import ISAS
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.simd import at
from augury.backends.numba_cpu.kernels.struct import struct
from augury.backends.numba_cpu.kernels.team import CLAIMED, Record

READ_STEP = 1 << 20  # bytes that a thread claims: about as many as of a large matrix
SCRATCH_BYTES = MEMORY_BYTES  # of `multiply`, per thread: weights, columns, sums; or tiles

_LINES = 4
_AHEAD = 1024
_BITS = 4  # of the weights
_N_SUMS, _N_ADDS = 8, 8  # as tiles have them: sums side by side, products after each other
# Products of one round of `multiply`, by bytes and by tiles of bfloat16.
_OF_BYTES, _OF_TILES = _N_SUMS * _N_ADDS * VECTOR, 4 * TILE_ROWS * TILE_BYTES // 2


@struct
class Read(Record):
    memory: int  # address
    size: int  # bytes, a multiple of READ_STEP
    scratch: int  # 64 bytes per thread for a sum, address


@kernel(record=Read)
def read(record, state, thread, n_threads):
    """Read memory."""
    base, size = record.memory, record.size
    total = simd.zero_i32()
    while True:
        first = simd.atomic_add(state + CLAIMED, READ_STEP)
        if first >= size:
            break
        for place in range(base + first, base + first + READ_STEP, _LINES * VECTOR):
            for line in range(_LINES):
                simd.prefetch(place + _AHEAD + line * VECTOR)
            low = simd.add_i32(simd.load_i32(place), simd.load_i32(place + VECTOR))
            high = simd.add_i32(simd.load_i32(place + 2 * VECTOR), simd.load_i32(place + 3 * VECTOR))
            total = simd.add_i32(total, simd.add_i32(low, high))
    simd.store_i32(record.scratch + VECTOR * thread, total)


@simd.emitted(*[simd.i64] * 4, n_literals=1)
def _multiply(b, isa, weights, columns, sums, rounds):
    dot = ISAS[isa].dot(_BITS)
    slots = [cgutils.alloca_once_value(b, simd.load(b, at(b, sums, VECTOR * i), simd.I32X16)) for i in range(_N_SUMS)]
    operands = [dot.operand(b, simd.load(b, at(b, weights, VECTOR * i), simd.U8X64)) for i in range(2)]
    with cgutils.for_range(b, rounds) as loop:
        # the columns change from round to round, lest their part of a product be computed once and for all
        here = b.add(columns, b.mul(b.and_(loop.index, ir.Constant(simd.I64, 15)), ir.Constant(simd.I64, 4 * _N_ADDS)))
        totals = [dot.start(partial(b.load, slot)) for slot in slots]
        for step in range(_N_ADDS):
            for i in range(_N_SUMS):
                place = at(b, here, 4 * ((step + i // 2) % _N_ADDS))
                repeated = b.bitcast(simd.splat(b, simd.load(b, place, simd.I32), simd.I32X16), simd.U8X64)
                totals[i] = dot.add(b, totals[i], operands[i % 2], repeated)
        for slot, total in zip(slots, totals, strict=True):
            b.store(dot.end(b, total), slot)
    for i, slot in enumerate(slots):
        simd.store(b, at(b, sums, VECTOR * i), b.load(slot))


@struct
class Multiply(Record):
    n_rounds: int
    scratch: int  # SCRATCH_BYTES per thread, address


@cache
def multiply_kernel(isa: str) -> Any:
    """Make the kernel that multiplies values in registers."""

    def of_bytes(record, state, thread, n_threads):
        place = record.scratch + SCRATCH_BYTES * thread
        _multiply(isa, place, place + 2 * VECTOR, place + 1024, record.n_rounds)

    def of_tiles(record, state, thread, n_threads):
        place = record.scratch + SCRATCH_BYTES * thread
        configure(isa, place, TILE_ROWS)
        for _ in range(record.n_rounds):
            dot(isa, 0, 4, 6, place)
            dot(isa, 1, 4, 7, place)
            dot(isa, 2, 5, 6, place)
            dot(isa, 3, 5, 7, place)
        release(isa)

    multiply = of_tiles if isa in TILES else of_bytes
    return kernel(multiply, f"multiply_{isa.replace('-', '_')}", record=Multiply)


def multiply_adds(isa: str) -> int:
    """Products that one round of `multiply` adds up."""
    return _OF_TILES if isa in TILES else _OF_BYTES
