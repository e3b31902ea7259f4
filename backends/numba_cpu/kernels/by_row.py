"""Operations that packages bring: a function of one row, called for all rows of a pass."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64
from augury.backends.numba_cpu.kernels.simd import get_i64
from augury.backends.numba_cpu.kernels.team import N_TOKENS

OPERAND_BYTES = 24


@intrinsic
def as_pointer(_: Any, address: Any) -> Any:
    """An address as what `carray` wants."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(address), generate


@helper
def get_row(operand, t):
    """A row of rows. An operand is an address, how many floats a row has, and how many lie from one to the next."""
    return carray(as_pointer(get_i64(operand) + 4 * t * get_i64(operand + 16)), get_i64(operand + 8), np.float32)


@helper
def get_number(operand, t):
    """A number that is the same for all rows."""
    return get_f64(operand)


@helper
def get_count(operand, t):
    """A whole number."""
    return get_i64(operand)


@cache
def _operands(kinds: tuple[type, ...]) -> Any:
    """Make what gives all operands for a row, (address of the first, row) to a tuple, by their kinds: ndarray, float or int."""
    if not kinds:

        @helper
        def none(operands: int, t: int) -> Any:
            return ()

        return none
    first = {np.ndarray: get_row, float: get_number, int: get_count}[kinds[0]]
    rest = _operands(kinds[1:])

    @helper
    def some(operands: int, t: int) -> Any:
        return (first(operands, t), *rest(operands + OPERAND_BYTES, t))

    return some


def by_row_kernel(function: Any, kinds: tuple[type, ...], name: str) -> Any:
    """Make the kernel that calls a function for each row, under a name that no other kernel has. Operand: the operands."""
    row, operands = numba.njit(nogil=True, error_model="numpy")(function), _operands(kinds)

    def by_row(record: int, state: int, thread: int, n_threads: int) -> None:
        n = get_i64(state + N_TOKENS)
        for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            row(*operands(get_i64(record + 16), t))

    by_row.__name__ = by_row.__qualname__ = name
    return kernel(by_row)
