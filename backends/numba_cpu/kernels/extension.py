"""The primitives of packages' kernels; see docs/write-an-architecture.md."""
# ruff: noqa: F401 - packages take these names from here

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.kernels import jit
from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, silu
from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import invoke, load_part, part_of, store_part
from augury.backends.numba_cpu.kernels.norm import mean_of, normalise
from augury.backends.numba_cpu.kernels.simd import (
    add,
    div,
    fma,
    get_f32,
    get_i64,
    load_f32,
    maximum,
    mul,
    put_f32,
    put_i64,
    repeat_f32,
    splat_f32,
    store_f32,
    sub,
    sum_lanes,
    zero_f32,
)
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.store import CachedRows, cached_row, cell_of
from augury.backends.numba_cpu.kernels.struct import dtype, nested, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, own, row_of
from augury.lowering import source_key


def kernel(function: Callable[..., None] | None = None, **structs: type) -> Any:
    """Compile a package's function, whose name its file has once, again whenever that file changes; see `jit.kernel`."""
    if function is None:
        return partial(kernel, **structs)
    return jit.kernel(function, f"{function.__name__}_{source_key(function)}", **structs)
