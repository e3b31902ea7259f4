"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backend import numba_cpu as cpu

_LEAST_SCORE = 1e-6


@cpu.struct
class LookUp(cpu.Record):
    embed: int  # address of a kernel, see `MatmulKernel.embed`
    table: int  # address of the packed matrix
    size: int  # floats of a row of it
    out: Any = cpu.nested(cpu.StridedRows)  # (n, n_heads * size) float32
    tokens: Any = cpu.nested(cpu.CachedRows)  # ids
    n_tokens: int  # of the longest n-gram
    n_heads: int
    numbers: int  # int64, address: multipliers, then the first rows of heads, then how many they have
    eos: int


@cpu.helper
def _row_of(record, place, positions, node, head):
    """The row of the table that a head of a token looks up."""
    n, n_heads, numbers, mixed, is_cut = record.n_tokens, record.n_heads, record.numbers, 0, False
    for i in range(head // (n_heads // (n - 1)) + 2):
        position, token = cpu.get_i64(positions + 8 * node) - i, -1
        if position >= 0:
            token = np.int64(
                cpu.get_f32(cpu.cached_row(record.tokens, place.slot, cpu.cell_of(place, positions, node, position)))
            )
        if i > 0 and (token < 0 or token == record.eos):
            is_cut = True
        if is_cut:
            token = record.eos
        mixed ^= token * cpu.get_i64(numbers + 8 * i)
    size = np.uint64(cpu.get_i64(numbers + 8 * (n + n_heads + head)))
    return cpu.get_i64(numbers + 8 * (n + head)) + np.int64(np.uint64(mixed) % size)


@cpu.kernel(record=LookUp)
def look_up(record, state, thread, n_threads):
    """Look up the rows of all heads of each token."""
    n_heads, item = record.n_heads, 0
    for segment in range(state.n_segments):
        place = state.segments[segment]
        positions = state.positions + 8 * place.first
        for node in range(place.n):
            for head in range(n_heads):
                item += 1
                if item % n_threads != thread:
                    continue
                row = _row_of(record, place, positions, node, head)
                out = cpu.row_of(record.out, place.first + node) + 4 * head * record.size
                cpu.invoke(record.embed, (record.table, row, record.size, out, cpu.scratch_of(state, thread)))


@cpu.struct
class Norms:
    """Addresses of the norms that `gate_streams` takes."""

    key: int
    query: int
    given: int


@cpu.struct
class GateStreams(cpu.Record):
    x: Any = cpu.nested(cpu.StridedRows)  # (n, n_streams * size) float32, like keys, given and normed
    keys: Any = cpu.nested(cpu.StridedRows)
    values: Any = cpu.nested(cpu.StridedRows)  # (n, size) float32
    given: Any = cpu.nested(cpu.StridedRows)
    normed: Any = cpu.nested(cpu.StridedRows)
    n_streams: int
    size: int
    norms: int = cpu.pointer_to(Norms)


@cpu.kernel(record=GateStreams)
def gate_streams(record, state, thread, n_threads):
    """Write the addition to each stream, gate * value, and its norm."""
    n, size, norms, key = record.n_streams, record.size, record.norms, cpu.scratch_of(state, thread)
    query, n_items = key + 4 * size, state.n_tokens * n
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t, stream, at = item // n, item % n, 4 * (item % n) * size
        cpu.normalise(cpu.row_of(record.keys, t) + at, norms.key, key, size, stream, 0)
        cpu.normalise(cpu.row_of(record.x, t) + at, norms.query, query, size, stream, 0)
        total = cpu.zero_f32()
        for i in range(0, size, 16):
            left = size - i
            total = cpu.add(
                total, cpu.part_of(cpu.mul(cpu.load_part(key + 4 * i, left), cpu.load_part(query + 4 * i, left)), left)
            )
        score = np.float64(cpu.sum_lanes(total)) / math.sqrt(np.float64(size))
        root = math.sqrt(max(abs(score), _LEAST_SCORE))
        if score < 0:
            root = -root
        if score == 0:
            root = 0.0
        gate, given = cpu.sigmoid(cpu.splat_f32(np.float32(root))), cpu.row_of(record.given, t) + at
        for i in range(0, size, 16):
            left = size - i
            cpu.store_part(given + 4 * i, cpu.mul(gate, cpu.load_part(cpu.row_of(record.values, t) + 4 * i, left)), left)
        cpu.normalise(given, norms.given, cpu.row_of(record.normed, t) + at, size, stream, 0)
