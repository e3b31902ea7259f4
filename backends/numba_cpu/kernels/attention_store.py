"""The way into the cache of keys and values: heads are normed, turned and stored, and what is stored can be moved."""

from __future__ import annotations

from functools import cache
from typing import Any

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.attention_layer import (
    COMPARED,
    COMPARED_BYTES,
    DV,
    KEYS,
    LDK,
    LDQ,
    LDV,
    PREPARE_HEAD,
    VALUES,
    WAYS_K,
    WAYS_Q,
    WAYS_V,
    D,
    G,
    H,
    K,
    Q,
    T,
    V,
)
from augury.backends.numba_cpu.kernels.cache_type import BYTES, LANES, copy_key, store_key, store_value
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import invoke
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.step import scratch_of
from augury.backends.numba_cpu.kernels.team import CELLS, N_TOKENS, POSITIONS, SLOTS


@cache
def prepare_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that norms and turns queries and keys, and stores keys and values. Operand: the layer."""
    put_k, bytes_k = store_key(type_k), BYTES[type_k]
    put_v, bytes_v = store_value(type_v), BYTES[type_v]

    def prepare(record, state, thread, n_threads):
        layer = get_i64(record + 16)
        n, n_heads, n_groups = get_i64(state + N_TOKENS), get_i64(layer + H), get_i64(layer + G)
        d, dv, length = get_i64(layer + D), get_i64(layer + DV), get_i64(layer + T)
        scratch, bytes_of_value = scratch_of(state, thread), bytes_v * ((dv + LANES - 1) // LANES)
        prepare_head = get_i64(layer + PREPARE_HEAD)
        ways_q, ways_k, ways_v = get_i64(layer + WAYS_Q), get_i64(layer + WAYS_K), get_i64(layer + WAYS_V)
        n_items = n * (n_heads + n_groups)
        for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
            t = item // (n_heads + n_groups)
            head = item - t * (n_heads + n_groups)
            position = get_i64(get_i64(state + POSITIONS) + 8 * t)
            if head < n_heads:
                q = get_i64(layer + Q) + 4 * (t * get_i64(layer + LDQ) + head * d)
                if ways_q != 0:
                    invoke(prepare_head, (q, ways_q, head, position, d))
            else:
                head -= n_heads
                run = get_i64(get_i64(state + SLOTS) + 8 * t) * n_groups + head
                cell = get_i64(get_i64(state + CELLS) + 8 * t)
                k = get_i64(layer + K) + 4 * (t * get_i64(layer + LDK) + head * d)
                if ways_k != 0:
                    invoke(prepare_head, (k, ways_k, head, position, d))
                put_k(k, get_i64(layer + KEYS) + bytes_k * d * ((run * length + cell) // LANES), cell % LANES, d, scratch)
                v = get_i64(layer + V) + 4 * (t * get_i64(layer + LDV) + head * dv)
                if ways_v != 0:
                    invoke(prepare_head, (v, ways_v, head, position, dv))
                put_v(v, get_i64(layer + VALUES) + bytes_of_value * (run * length + cell), dv, scratch)

    prepare.__name__ = prepare.__qualname__ = f"prepare_{type_k}_{type_v}"
    return kernel(prepare)


@helper
def move_row(rows, size, layer, slot, source, target):
    """Copy a row of `size` bytes from cell to cell, of rows that lie cell by cell."""
    here = rows + size * slot * get_i64(layer + T)
    for i in range(size):
        simd.put_u8(here + size * target + i, simd.get_u8(here + size * source + i))


@cache
def move_kernel(type_k: str, type_v: str) -> Any:
    """Make the kernel that copies states from cell to cell. Operands: layers, how many, moves (slot, from, to), how many."""
    copy_k, bytes_k, bytes_v = copy_key(type_k), BYTES[type_k], BYTES[type_v]

    def move(record, state, thread, n_threads):
        layers, n_layers = get_i64(record + 16), get_i64(record + 24)
        for index in range(n_layers * thread // n_threads, n_layers * (thread + 1) // n_threads):
            layer = get_i64(layers + 8 * index)
            d, length, n_groups = get_i64(layer + D), get_i64(layer + T), get_i64(layer + G)
            n_bytes = bytes_v * ((get_i64(layer + DV) + LANES - 1) // LANES)
            for number in range(get_i64(record + 40)):
                place = get_i64(record + 32) + 24 * number
                slot, source, target = get_i64(place), get_i64(place + 8), get_i64(place + 16)
                for run in range(slot * n_groups, (slot + 1) * n_groups):
                    keys = get_i64(layer + KEYS) + bytes_k * d * (run * length // LANES)
                    here, there = keys + bytes_k * d * (source // LANES), keys + bytes_k * d * (target // LANES)
                    copy_k(here, source % LANES, there, target % LANES, d)
                    values = get_i64(layer + VALUES) + n_bytes * run * length
                    for i in range(n_bytes):
                        simd.put_u8(values + n_bytes * target + i, simd.get_u8(values + n_bytes * source + i))
                move_row(get_i64(layer + COMPARED), get_i64(layer + COMPARED_BYTES), layer, slot, source, target)

    move.__name__ = move.__qualname__ = f"move_{type_k}_{type_v}"
    return kernel(move)
