"""Rows of packed matrices as float32, for embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import GETS
from augury.backends.numba_cpu.kernels.format import BLOCK, PANEL_ROWS, VECTOR, Format
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import invoke
from augury.backends.numba_cpu.kernels.step import scale_row, scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own, row_of
from augury.backends.numba_cpu.kernels.tile import unpack
from augury.backends.numba_cpu.kernels.unpack import SCRATCH_BLOCK, SCRATCH_MINIMA, SCRATCH_SCALES


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
