"""The way into caches of positions, and from cell to cell in them; `cache_type.py` says how rows lie."""

from __future__ import annotations

from functools import cache
from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, copy_key, store_key, store_value
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record


@struct
class CachedRows:
    """A cache whose cells have one row each."""

    address: int
    row_bytes: int
    n_rows: int  # of a slot


@helper
def cached_row(rows, slot, cell):
    """The address of the row in a cell."""
    return rows.address + rows.row_bytes * (slot * rows.n_rows + cell)


@helper
def cell_of(place, positions, node, position):
    """The cell of a position that a token of the run at `place` sees; `positions` are the run's."""
    parents, mark = place.parents, get_i64(positions)
    if parents == 0 or position < mark:
        return position
    at = get_i64(positions + 8 * node)
    while at > position:
        node = get_i64(parents + 8 * node)
        at -= 1
    return mark + node


@struct
class MovedCache:
    """A cache whose cells move."""

    address: int
    size: int  # bytes of a row, or numbers of a key
    n_heads: int
    n_rows: int  # from one head of a slot to the next
    first: int  # the row of cell 0


@struct
class CellMove:
    """A row that is copied."""

    slot: int
    source: int  # cell
    target: int


@struct
class Move(Record):
    """Operands of kernels that copy rows from cell to cell."""

    caches: Any = pointer_to(MovedCache)
    n_caches: int
    moves: Any = pointer_to(CellMove)
    n_moves: int


@cache
def put_key_kernel(kind: str) -> Any:
    """Make the kernel that keeps a key of keys that lie 16 by 16."""
    put, n_bytes = store_key(kind), BYTES[kind]

    def put_key(x, kept, row, size, scratch):
        put(x, kept + n_bytes * size * (row // LANES), row % LANES, size, scratch)

    return kernel(put_key, f"put_key_{kind}")


@cache
def put_row_kernel(kind: str) -> Any:
    """Make the kernel that keeps a row of rows that lie one after the other."""
    put, n_bytes = store_value(kind), BYTES[kind]

    def put_row(x, kept, row, size, scratch):
        put(x, kept + n_bytes * ((size + LANES - 1) // LANES) * row, size, scratch)

    return kernel(put_row, f"put_row_{kind}")


def _move_kernel(copy: Any, name: str) -> Any:
    def move(record, state, thread, n_threads):
        n = record.n_caches
        for index in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            cached = record.caches[index]
            for number in range(record.n_moves):
                moved = record.moves[number]
                for run in range(moved.slot * cached.n_heads, (moved.slot + 1) * cached.n_heads):
                    start = run * cached.n_rows + cached.first
                    copy(cached.address, cached.size, start + moved.source, start + moved.target)

    move.__doc__ = "Copy rows from cell to cell."
    return kernel(move, name, record=Move)


@cache
def move_keys_kernel(kind: str) -> Any:
    """Make the kernel that moves keys that lie 16 by 16."""
    copy, n_bytes = copy_key(kind), BYTES[kind]

    @helper
    def copy_from(kept, size, source, target):
        here, there = kept + n_bytes * size * (source // LANES), kept + n_bytes * size * (target // LANES)
        copy(here, source % LANES, there, target % LANES, size)

    return _move_kernel(copy_from, f"move_keys_{kind}")


@cache
def move_rows_kernel() -> Any:
    """Make the kernel that moves rows that lie one after the other."""

    @helper
    def copy_row(kept, size, source, target):
        for i in range(size):
            simd.put_u8(kept + size * target + i, simd.get_u8(kept + size * source + i))

    return _move_kernel(copy_row, "move_rows")
