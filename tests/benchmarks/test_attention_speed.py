"""How fast two threads attend to 4096 positions of a layer, and of so many layers that no cache holds them."""

import numpy as np
import pytest

from augury.backends.numba_cpu.kernels import attention_tile, team
from augury.backends.numba_cpu.kernels.attention import attend_kernel
from augury.backends.numba_cpu.kernels.cache_type import BYTES
from augury.backends.numba_cpu.operations.attention import NO_LISTS
from augury.backends.numba_cpu.packing import aligned
from augury.backends.numba_cpu.tape import ThreadRows
from augury.backends.numba_cpu.team import PassMemory, Team
from augury.types import CACHE_TYPES

pytestmark = pytest.mark.bench

SHAPES = {"SmolLM2-135M": (9, 3, 64), "Qwen 1.5B": (12, 2, 128), "Qwen 0.5B": (14, 2, 64)}  # H, G, D
DEPTH, N_THREADS = 4096, 2
N_BYTES = 60_000_000  # of keys and values, beyond the last level of cache


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_attention(benchmark, kind, shape, n):
    n_heads, n_groups, d = SHAPES[shape]
    rng = np.random.default_rng(1)
    # 16 bits that are a small number in every type, scales included
    part = (rng.standard_normal(4096) / 4).astype(np.float16).view(np.uint8)
    size = DEPTH * n_groups * d * BYTES[kind] // 16
    n_layers = -(-N_BYTES // (2 * size))
    memory, scratch_bytes = aligned(2 * n_layers * size), -(-attention_tile.scratch_bytes(d, d) // 64) * 64 + 64
    memory[:] = np.resize(part, memory.size)
    scratch, counts = aligned(N_THREADS * scratch_bytes), aligned(attention_tile.counts_bytes(N_THREADS))
    parts = aligned(attention_tile.parts_bytes(d, DEPTH, N_THREADS))
    scratch[:] = counts[:] = 0
    q, out = rng.standard_normal((n, n_heads * d), dtype=np.float32), np.zeros((n, n_heads * d), np.float32)
    positions, run = np.arange(DEPTH - n, DEPTH), np.array([0, n, 0, 0])

    layers = [
        attention_tile.AttentionLayer(
            q=ThreadRows(q.ctypes.data, n_heads * d),
            out=out.ctypes.data,
            d=d,
            dv=d,
            value_row=d,
            n_heads=n_heads,
            n_kv_heads=n_groups,
            keys=memory.ctypes.data + 2 * size * i,
            values=memory.ctypes.data + 2 * size * i + size,
            n_rows=DEPTH,
            scale=d**-0.5,
            window=1 << 40,
            **dict.fromkeys(("chunk", "sees_run", "sinks", "adjust_scores", "slopes"), 0),
            cap=0.0,
            parts=parts.ctypes.data,
            counts=counts.ctypes.data,
            lists=NO_LISTS,
        )
        for i in range(n_layers)
    ]
    records = [team.record_of(attend_kernel(kind, kind), layer=layer) for layer in layers]
    tape = np.concatenate(records)
    threads, memory = Team(N_THREADS), PassMemory()
    state = {
        "positions": positions.ctypes.data,
        "cells": positions.ctypes.data,
        "segments": run.ctypes.data,
        "scratch": scratch.ctypes.data,
        "scratch_bytes": scratch_bytes,
        "n_tokens": n,
        "n_segments": 1,
    }
    for field, value in state.items():
        memory.fields[field] = value

    benchmark.pedantic(threads.run, (tape, memory), rounds=9, warmup_rounds=2)
    threads.close()

    seconds = benchmark.stats.stats.median / n_layers
    benchmark.extra_info["us per layer"] = round(seconds * 1e6, 1)
    benchmark.extra_info["GB/s"] = round(2 * size / seconds / 1e9, 1)
    benchmark.extra_info["GMAC/s"] = round(2 * n_heads * d * DEPTH * n / seconds / 1e9, 1)
    assert np.isfinite(out).all()
