"""Products of packed weights and activations, one kernel per weight type and instruction set, operands, and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from attrs import frozen
from llvmlite import ir

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import TILES
from augury.backends.numba_cpu.kernels.amx_matmul import tile_matmul, tile_scratch_bytes
from augury.backends.numba_cpu.kernels.amx_unpack import WEIGHT_PARTS, bfloat16_cut, bfloat16_quantize
from augury.backends.numba_cpu.kernels.cache_type import GETS
from augury.backends.numba_cpu.kernels.format import (
    ACTIVATION_BYTES,
    BLOCK,
    FORMATS,
    NEGATIVE_SUMS,
    PANEL_ROWS,
    SCALES,
    SUM,
    VECTOR,
    Format,
)
from augury.backends.numba_cpu.kernels.isa import ISAS, choose_isa
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import F32, F32X16, I8, I32, I32X16, at, i64, invoke, void
from augury.backends.numba_cpu.kernels.step import scale_row, scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own, row_of
from augury.backends.numba_cpu.kernels.tile import multiply, unpack
from augury.backends.numba_cpu.kernels.unpack import SCRATCH_BLOCK, SCRATCH_MINIMA, SCRATCH_SCALES

_CHUNK = 8  # blocks that are multiplied together: a unit of the K types, of others about as many as the L1 cache holds
_FLOAT_CHUNK = 4
_SUMS = _CHUNK * SCRATCH_BLOCK  # where the sums begin in scratch
_SUM_BYTES = 4 * PANEL_ROWS

MAX_TOKENS = 512
# Scratch memory that a matrix kernel needs, per thread; align it to 64.
SCRATCH_BYTES = max(_SUMS + MAX_TOKENS * _SUM_BYTES, tile_scratch_bytes(MAX_TOKENS))


def quantised_embed(fmt: Format) -> Any:
    """Make the kernel that dequantises one row of a packed matrix: (w, row, n_cols, out, scratch), out (n_cols,) float32."""
    kind, unit_bytes, unit_blocks = fmt.kind, fmt.unit_bytes, fmt.unit_blocks
    offset, halves, has_minimum = fmt.offset, fmt.halves, fmt.has_minimum

    def embed(w: int, row: int, n_cols: int, out: int, scratch: int) -> None:
        n_blocks = n_cols // BLOCK
        lane = row % 16 * 4 + row % PANEL_ROWS // 16 * VECTOR
        for k in range(0, n_blocks, unit_blocks):
            unpack(kind, "generic", w + (row // PANEL_ROWS * n_blocks + k) // unit_blocks * unit_bytes, unit_blocks, scratch)
            for i in range(unit_blocks * BLOCK):
                block = scratch + i // BLOCK * SCRATCH_BLOCK + lane
                column = i % BLOCK
                weight = np.int32(simd.get_u8(block + column // 4 * 2 * VECTOR + column % 4)) - np.int32(offset)
                place = column * halves // BLOCK * 2 * VECTOR
                value = np.float32(weight) * simd.get_f32(block + SCRATCH_SCALES + place)
                if has_minimum:
                    value += simd.get_f32(block + SCRATCH_MINIMA + place)
                simd.put_f32(out + (k * BLOCK + i) * 4, value)

    return kernel(embed, f"embed_{fmt.kind}")


def float_embed(fmt: Format) -> Any:
    """Make the kernel that copies one row of packed float weights as float32; arguments as in `quantised_embed`."""
    get, size = GETS[fmt.kind], fmt.float_bytes

    def embed(w: int, row: int, n_cols: int, out: int, scratch: int) -> None:
        padded = (n_cols + BLOCK - 1) // BLOCK * BLOCK
        first = w + (row // PANEL_ROWS * padded * PANEL_ROWS + row % PANEL_ROWS) * size
        for k in range(n_cols):
            simd.put_f32(out + 4 * k, get(first + k * PANEL_ROWS * size))

    return kernel(embed, f"embed_{fmt.kind}")


@struct
class LookUp(Record):
    embed: int  # address of a kernel, see `quantised_embed`
    weights: int  # address of the packed matrix
    x: Any = nested(StridedRows)  # (n, E) float32
    is_private: bool
    scale: float
    is_by_position: bool  # rows are looked up by positions instead of ids


@kernel(record=LookUp)
def look_up(record: Any, state: int, thread: int, n_threads: int) -> None:
    """x[t] = scale * W[id t]."""
    size, x = record.x.width, own(record.x, thread)
    first, end = share(state.n_tokens, thread, n_threads, record.is_private)
    scale = simd.splat_f32(np.float32(record.scale))
    ids = state.positions if record.is_by_position else state.tokens
    for t in range(first, end):
        row = x + 4 * t * size
        invoke(record.embed, (record.weights, simd.get_i64(ids + 8 * t), size, row, scratch_of(state, thread)))
        scale_row(row, size, scale)


@struct
class ReadTokens(Record):
    out: Any = nested(StridedRows)  # (n, 1) float32


@kernel(record=ReadTokens)
def read_tokens(record: Any, state: int, thread: int, n_threads: int) -> None:
    """out[t] = id t."""
    first, end = share(state.n_tokens, thread, n_threads, 0)
    for t in range(first, end):
        simd.put_f32(row_of(record.out, t), np.float32(simd.get_i64(state.tokens + 8 * t)))


@helper
def _clear(sums: int, n: int) -> None:
    for i in range(2 * n):
        simd.store_f32(sums + i * VECTOR, simd.zero_f32())


@helper
def _write(sums: int, y: int, n: int, ldy: int) -> None:
    for t in range(n):
        simd.store_f32(y + t * ldy * 4, simd.load_f32(sums + t * _SUM_BYTES))
        simd.store_f32(y + t * ldy * 4 + VECTOR, simd.load_f32(sums + t * _SUM_BYTES + VECTOR))


def byte_matmul(fmt: Format, isa: str) -> Any:
    """Make the kernel for a weight type, by byte dot products or by floats; arguments are those of `MatmulKernel.matmul`."""
    kind, unit_bytes, unit_blocks, token = fmt.kind, fmt.unit_bytes, fmt.unit_blocks, ACTIVATION_BYTES[fmt.activation]
    chunk, block_lines = _FLOAT_CHUNK if fmt.float_bytes else _CHUNK, -(-unit_bytes // (unit_blocks * VECTOR))
    distance, is_float = chunk // unit_blocks * unit_bytes, bool(fmt.float_bytes)
    easy, others = ISAS[isa].n_fused
    n_fused = easy if fmt.is_easy else others

    def matmul(w: int, x: int, y: int, n: int, n_cols: int, p0: int, p1: int, ldy: int, scratch: int) -> None:
        n_blocks = (n_cols + BLOCK - 1) // BLOCK
        sums = scratch + _SUMS
        for p in range(p0, p1):
            _clear(sums, n)
            unit = w + p * (n_blocks // unit_blocks) * unit_bytes
            for k in range(0, n_blocks, chunk):
                here = min(chunk, n_blocks - k)
                columns, ahead = x + k * n * token, unit + distance  # the end of a panel fetches for the next one, too
                if is_float or n <= n_fused:
                    multiply(kind, isa, "packed", unit, columns, sums, n, here, ahead, block_lines)
                else:
                    unpack(kind, isa, unit, here, scratch)
                    multiply(kind, isa, "scratch", scratch, columns, sums, n, here, ahead, block_lines)
                unit += here // unit_blocks * unit_bytes
            _write(sums, y + p * _SUM_BYTES, n, ldy)

    return kernel(matmul, f"matmul_{fmt.kind}_{isa}")


@frozen
class MatmulKernel:
    """The kernels of a packed format of one or several weight types; all arguments are int64, addresses included.

    Attributes:
        kind: The packed format, as in `PackedMatrix.kind`.
        activation: The kind of activations that they are multiplied with.
        matmul: (w, x, y, n, n_cols, p0, p1, ldy, scratch): y[t * ldy + row], float32, for the rows of panels p0..p1 and all n
            <= MAX_TOKENS tokens. ldy is at least the rows of all panels, because whole panels are written. x is the result of
            `quantize` for the n tokens; scratch has SCRATCH_BYTES, and no other thread uses it.
        quantize: (x, out, n, k, i0, i1): (n, k) float32 → `activation_bytes` bytes; see `quantize_q8_16`.
        embed: (w, row, n_cols, out, scratch): one row as (n_cols,) float32, the same bits as ggml's dequantisation.
    """

    kind: str
    activation: str
    matmul: Any
    quantize: Any
    embed: Any


def activation_bytes(activation: str, n: int, k: int) -> int:
    """Bytes that the activations of n tokens and k columns take as operands of a matrix kernel."""
    return n_blocks(k) * n * ACTIVATION_BYTES[activation]


def n_blocks(k: int) -> int:
    """Blocks of k columns: activations are quantised in `n_blocks(k) * n` items."""
    return (k + BLOCK - 1) // BLOCK


def matmul_kernels(kinds: Iterable[str], isa: str | None = None) -> dict[str, MatmulKernel]:
    """Make the kernels for packed weights; each is compiled, or taken from the cache, at first use."""
    return {kind: _kernels(kind, isa or choose_isa()) for kind in sorted(kinds)}


@cache
def _kernels(kind: str, isa: str) -> MatmulKernel:
    fmt = FORMATS[kind]
    embed, by_tiles = (float_embed if fmt.float_bytes else quantised_embed)(fmt), isa in TILES
    if by_tiles and kind in WEIGHT_PARTS:
        return MatmulKernel(kind, "bf16x2", tile_matmul(fmt, isa), bfloat16_cut(isa), embed)
    if by_tiles and not fmt.float_bytes:
        return MatmulKernel(kind, "bf16", tile_matmul(fmt, isa), bfloat16_quantize(isa), embed)
    quantize = quantize_f32 if fmt.float_bytes else quantize_q8_16
    return MatmulKernel(kind, fmt.activation, byte_matmul(fmt, isa), quantize, embed)


_Q8_BYTES, _F32_BYTES = ACTIVATION_BYTES["q8_16"], ACTIVATION_BYTES["f32"]
_LANES = 16
_LARGEST = 127.0
# Sixteen activations whose largest magnitude is below this count as zero: their inverse scale would overflow.
_SMALLEST = 1e-35


def _lanes(b: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: Sequence[int]) -> ir.Value:
    return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def _reduce_both(b: ir.IRBuilder, vectors: Sequence[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduce two vectors of 16 lanes together, each to one lane of the result."""
    half = _LANES // 2
    low, high = ([*range(start, start + half), *range(start + _LANES, start + _LANES + half)] for start in (0, half))
    both = combine(_lanes(b, *vectors, low), _lanes(b, *vectors, high))
    for step in (4, 2, 1):
        both = combine(both, _lanes(b, both, both, [lane ^ step for lane in range(_LANES)]))
    return _lanes(b, both, both, (0, half))


def _emit_round(b: ir.IRBuilder, x: ir.Value, to: ir.Value) -> None:
    pair = ir.VectorType(F32, 2)
    values = [simd.load(b, at(b, x, 4 * _LANES * half), F32X16) for half in range(2)]
    # as whole numbers, which are in the order of the magnitudes, and NaN above all
    magnitudes = [b.bitcast(simd.call(b, "llvm.fabs.v16f32", F32X16, value), I32X16) for value in values]
    largest = b.bitcast(_reduce_both(b, magnitudes, lambda p, q: b.select(b.icmp_signed(">", p, q), p, q)), pair)
    limit = simd.constant(pair, _LARGEST)
    ratios = b.fdiv(_lanes(b, limit, largest, range(4)), _lanes(b, largest, limit, range(4)))  # two inverses, two scales
    is_large = b.fcmp_ordered(">=", largest, simd.constant(pair, _SMALLEST))
    is_odd = b.fcmp_unordered(">=", largest, simd.constant(pair, _SMALLEST))  # or NaN: as a scale it says so in every product
    ratios = b.select(_lanes(b, is_large, is_odd, range(4)), ratios, ir.Constant(ratios.type, None))
    rounded = []
    for half, value in enumerate(values):
        scaled = b.fmul(value, _lanes(b, ratios, ratios, [half] * _LANES))
        rounded.append(b.fptosi(simd.call(b, "llvm.rint.v16f32", F32X16, scaled), I32X16))
        simd.store(b, at(b, to, _LANES * half), b.trunc(rounded[-1], ir.VectorType(I8, _LANES)))
    sums, scales = _reduce_both(b, rounded, b.add), _lanes(b, ratios, ratios, (2, 3))
    simd.store(b, at(b, to, NEGATIVE_SUMS), b.neg(sums))
    simd.store(b, at(b, to, SCALES), scales)
    scaled = b.fmul(scales, b.sitofp(sums, pair))
    simd.store(b, at(b, to, SUM), b.fadd(*(b.extract_element(scaled, ir.Constant(I32, half)) for half in range(2))))


_round = simd.operation("round_block", void, (i64, i64), _emit_round)  # 32 activations → a record


@kernel
def quantize_q8_16(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
    """Round activations to signed bytes with one scale per 16, in 1/127 of the largest magnitude; NaN where one is NaN.

    Args:
        x: address of (n, k) float32; k is a multiple of 32.
        out: address of (k/32, n) records of 52 bytes, see `format.py`.
        n: tokens.
        k: columns.
        i0: first record, counted as `block * n + token`.
        i1: end of the records.
    """
    block = i0 // n
    token = i0 - block * n
    for i in range(i0, i1):
        _round(x + (token * k + block * BLOCK) * 4, out + i * _Q8_BYTES)
        token += 1
        if token == n:
            block, token = block + 1, 0


@kernel
def quantize_f32(x: int, out: int, n: int, k: int, i0: int, i1: int) -> None:
    """Copy float32 activations block by block, with zeros after the last column; arguments as `quantize_q8_16`, any k."""
    for i in range(i0, i1):
        block = i // n
        source = x + ((i - block * n) * k + block * BLOCK) * 4
        to = out + i * _F32_BYTES
        here = min(BLOCK, k - block * BLOCK)
        for j in range(here):
            simd.put_f32(to + 4 * j, simd.get_f32(source + 4 * j))
        for j in range(here, BLOCK):
            simd.put_f32(to + 4 * j, np.float32(0))
