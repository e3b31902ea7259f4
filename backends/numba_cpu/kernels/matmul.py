"""Products of packed weights and activations, one kernel per weight type and instruction set, and rows for embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.amx import TILES
from augury.backends.numba_cpu.kernels.amx_matmul import tile_matmul, tile_scratch_bytes
from augury.backends.numba_cpu.kernels.amx_unpack import WEIGHT_PARTS, bfloat16_cut, bfloat16_quantize
from augury.backends.numba_cpu.kernels.cache_type import GETS
from augury.backends.numba_cpu.kernels.format import ACTIVATION_BYTES, BLOCK, FORMATS, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.isa import ISAS, choose_isa
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke
from augury.backends.numba_cpu.kernels.quantise import quantize_f32, quantize_q8_16
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
