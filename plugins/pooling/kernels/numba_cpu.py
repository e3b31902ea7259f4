"""Rows that are pooled of blocks of positions, see `augury.plugins.pooling.Pooling`.

Tokens' values to be pooled are stored cell by cell: values, then weights. A pooled row is stored by the cell of the last token
of its block, so that the rows of a tree's branches are apart, and move with their tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.backend import numba_cpu as cpu

f32 = np.float32


@cpu.struct
class KeepToPool(cpu.Record):
    values: Any = cpu.nested(cpu.StridedRows)  # (n, n_values) float32
    weights: Any = cpu.nested(cpu.StridedRows)  # likewise; address 0: there are none
    n_values: int
    places: int  # (size, n_values) float32, address: added to weights; 0: nothing is
    size: int  # positions of a block
    kept: Any = cpu.nested(cpu.CachedRows)  # values, then weights


@cpu.kernel(record=KeepToPool)
def keep_to_pool(record, state, thread, n_threads):
    """Keep values, and weights to which the row of a place is added."""
    n, places = record.n_values, record.places
    first, end = cpu.share(state.n_tokens, thread, n_threads, 0)
    for t in range(first, end):
        position, cell = cpu.get_i64(state.positions + 8 * t), cpu.get_i64(state.cells + 8 * t)
        to, x = cpu.cached_row(record.kept, cpu.get_i64(state.slots + 8 * t), cell), cpu.row_of(record.values, t)
        for i in range(0, n, 16):
            cpu.store_part(to + 4 * i, cpu.load_part(x + 4 * i, n - i), n - i)
        if record.weights.address == 0:
            continue
        x = cpu.row_of(record.weights, t)
        for i in range(0, n, 16):
            value = cpu.load_part(x + 4 * i, n - i)
            if places != 0:
                value = cpu.add(value, cpu.load_part(places + 4 * (position % record.size * n + i), n - i))
            cpu.store_part(to + 4 * (n + i), value, n - i)


@cpu.struct
class Pool(cpu.Record):
    kept: Any = cpu.nested(cpu.CachedRows)  # values, then weights
    out: Any = cpu.nested(cpu.StridedRows)  # (n, width) float32
    width: int
    size: int  # positions of a block
    has_weights: bool
    overlaps: bool


def scratch_bytes(size: int) -> int:
    """Bytes that a thread needs for itself: the addresses of the rows that are pooled."""
    return 8 * 2 * size


@cpu.helper
def _pool(record, rows, n, n_before, out):
    """Pool n rows, the first `n_before` of which belong to the block before."""
    width, n_values = record.width, record.width
    if record.overlaps:
        n_values = 2 * width
    own = n_values - width  # where values of a row's own block begin
    for i in range(0, width, 16):
        top, total, value = cpu.splat_f32(f32(-3e38)), cpu.zero_f32(), cpu.zero_f32()
        if record.has_weights:
            for j in range(n):
                at = cpu.get_i64(rows + 8 * j) + 4 * (n_values + i + (0 if j < n_before else own))
                top = cpu.maximum(cpu.load_f32(at), top)
        for j in range(n):
            at = cpu.get_i64(rows + 8 * j) + 4 * (i + (0 if j < n_before else own))
            weight = cpu.splat_f32(f32(1))
            if record.has_weights:
                weight = cpu.exponential(cpu.sub(cpu.load_f32(at + 4 * n_values), top))
            total, value = cpu.add(total, weight), cpu.fma(cpu.load_f32(at), weight, value)
        cpu.store_f32(out + 4 * i, cpu.div(value, total))


@cpu.kernel(record=Pool)
def pool(record, state, thread, n_threads):
    """Pool the blocks that tokens of the pass end."""
    rows, size, t = cpu.scratch_of(state, thread), record.size, 0
    for segment in range(state.n_segments):
        place = state.segments[segment]
        positions = state.positions + 8 * place.first
        for node in range(place.n):
            t += 1
            if t % n_threads != thread:
                continue
            end, out, n_before = cpu.get_i64(positions + 8 * node) + 1, cpu.row_of(record.out, place.first + node), 0
            if end % size != 0:
                for i in range(0, record.width, 16):
                    cpu.store_f32(out + 4 * i, cpu.zero_f32())
                continue
            if record.overlaps and end > size:
                n_before = size
            n = size + n_before
            for j in range(n):
                cpu.put_i64(
                    rows + 8 * j, cpu.cached_row(record.kept, place.slot, cpu.cell_of(place, positions, node, end - n + j))
                )
            _pool(record, rows, n, n_before, out)
