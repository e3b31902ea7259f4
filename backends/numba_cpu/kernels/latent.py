"""The parts of latent attention beside attending: products of heads with a matrix each, and the way into its cache.

A row of every position is kept, cell by cell: the latent vector, padded to PART, and the values that rope turned, padded
likewise, see `cache_type.py`. Queries are laid out the same way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, store_value
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.step import SeveralMatrices, claim, copy_row, multiply_one, scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own, row_of


@struct
class LatentLayer:
    """The cache of latents, and how queries ask for it."""

    queries: Any = nested(StridedRows)  # (n, n_heads * head_dim) float32, as they were computed
    head_dim: int
    n_plain: int  # of a head, values that are not turned
    latents: Any = nested(StridedRows)  # (n, n_latent + n_turned) float32
    n_latent: int
    padded: int  # the same, padded
    n_turned: int
    norm: int  # address of `HeadSteps` for latents; 0: there are none
    turn: int  # likewise, for a part of queries
    turn_kept: int  # likewise, for the turned part of the cache
    prepare_head: int  # address of the kernel
    out: Any = nested(StridedRows)  # (n, n_heads * size) float32, queries as attention reads them
    size: int  # of a row that is kept
    n_heads: int
    kept: int  # address
    n_rows: int  # of a slot


@struct
class PrepareLatents(Record):
    """Operands of the kernel that `prepare_kernel` makes."""

    layer: Any = nested(LatentLayer)


@struct
class HeadMatrices(SeveralMatrices):
    """The matrices of all heads; products of n tokens are (n, ldy), and rows of x come head by head."""

    head_y: int  # floats from one head to the next
    n_heads: int


@struct
class QuantizeHeads(Record):
    heads: Any = nested(HeadMatrices)
    quantize: int  # address of a kernel, see `MatmulKernel.quantize`
    x: Any = nested(StridedRows)  # float32
    head_dim: int  # floats from one head to the next
    is_private: bool


@struct
class MultiplyHeads(Record):
    heads: Any = nested(HeadMatrices)


@struct
class GatherParts(Record):
    x: Any = nested(StridedRows)  # float32
    n_parts: int
    part: int  # floats from one to the next
    size: int  # of a part
    y: int  # (n, n_parts * size) float32, address


@kernel(record=QuantizeHeads)
def quantize_heads(record, state, thread, n_threads):
    """A part of every head → operands of the matrix kernels, head by head."""
    table, quantize, ldx, head_dim = record.heads, record.quantize, record.x.width, record.head_dim
    n, n_cols, scratch = state.n_tokens, table.n_cols, scratch_of(state, thread)
    operands = own(table.operands, thread)
    first, end = share(table.n_heads, thread, n_threads, record.is_private)
    for head in range(first, end):
        for t in range(n):
            copy_row(record.x.address + 4 * (t * ldx + head * head_dim), scratch + 4 * t * n_cols, n_cols)
        to = operands + head * n * table.operand_bytes
        invoke(quantize, (scratch, to, n, n_cols, 0, n * ((n_cols + 31) // 32)))


@kernel(record=MultiplyHeads)
def multiply_heads(record, state, thread, n_threads):
    """The products of every head's operands with its matrix."""
    table, n = record.heads, state.n_tokens
    n_panels = table.n_panels
    while True:
        item, last = claim(state, table.n_heads * n_panels, n_threads)
        if item == last:
            return
        while item < last:
            head, first = item // n_panels, item % n_panels
            end = min(n_panels, first + last - item)
            multiply_one(table, head, first, end, head * n, n, table.y + 4 * head * table.head_y, state, thread)
            item += end - first


@kernel(record=GatherParts)
def gather_parts(record, state, thread, n_threads):
    """Put the parts of every row side by side."""
    n_parts, size = record.n_parts, record.size
    n_items = state.n_tokens * n_parts
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, part = item // n_parts, item % n_parts
        copy_row(row_of(record.x, t) + 4 * part * record.part, record.y + 4 * item * size, size)


@cache
def prepare_kernel(kind: str) -> Any:
    """Make the kernel that norms and turns latents, stores them, and turns their part of queries."""
    put, n_bytes = store_value(kind), BYTES[kind]

    @helper
    def lay_out(x, to, size, padded):
        for i in range(0, padded, 16):
            simd.store_f32(to + 4 * i, simd.zero_f32())
        copy_row(x, to, size)

    def prepare(record, state, thread, n_threads):
        layer = record.layer
        n, n_heads, d, prepare_head = state.n_tokens, layer.n_heads, layer.size, layer.prepare_head
        latent, padded, turned = layer.n_latent, layer.padded, layer.n_turned
        row = scratch_of(state, thread)
        n_items = n * (n_heads + 1)
        for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
            t, head = item // (n_heads + 1), item % (n_heads + 1)
            position = get_i64(state.positions + 8 * t)
            if head < n_heads:
                x = layer.queries.address + 4 * (t * layer.queries.width + head * layer.head_dim)
                to = layer.out.address + 4 * (t * layer.out.width + head * d + padded)
                lay_out(x + 4 * layer.n_plain, to, turned, d - padded)
            else:
                x, to = layer.latents.address + 4 * t * layer.latents.width, row + 4 * padded
                lay_out(x, row, latent, padded)
                invoke(prepare_head, (row, layer.norm, 0, position, latent))
                lay_out(x + 4 * latent, to, turned, d - padded)
            steps = layer.turn
            if head == n_heads:
                steps = layer.turn_kept
            if steps != 0:
                invoke(prepare_head, (to, steps, 0, position, turned))
            if head == n_heads:
                cell = get_i64(state.slots + 8 * t) * layer.n_rows + get_i64(state.cells + 8 * t)
                put(row, layer.kept + n_bytes * (d // LANES) * cell, d, row + 4 * d)

    return kernel(prepare, f"prepare_latent_{kind}", record=PrepareLatents)
