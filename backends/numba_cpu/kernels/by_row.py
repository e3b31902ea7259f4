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
from augury.backends.numba_cpu.kernels.struct import pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record


@struct
class Operand:
    """An argument of a function: a row of rows, a number, or a whole number."""

    address: int  # of the first row
    width: int
    stride: int  # floats from one row to the next; 0: they are all the same
    number: float
    count: int


@struct
class CallByRow(Record):
    """Operands of the kernel that calls a function for each row."""

    operands: Any = pointer_to(Operand)


@intrinsic
def as_pointer(_: Any, address: Any) -> Any:
    """An address as a pointer, as `carray` wants it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(address), generate


@helper
def get_row(operand, t):
    """A row."""
    return carray(as_pointer(operand.address + 4 * t * operand.stride), operand.width, np.float32)


@helper
def get_number(operand, t):
    """A number."""
    return operand.number


@helper
def get_count(operand, t):
    """A whole number."""
    return operand.count


@cache
def _operands(kinds: tuple[type, ...]) -> Any:
    """Make the helper that collects a function's arguments for row t in a tuple, by kinds: ndarray, float or int."""
    if not kinds:

        @helper
        def none(operands: Any, t: int) -> Any:
            return ()

        return none
    first = {np.ndarray: get_row, float: get_number, int: get_count}[kinds[0]]
    rest = _operands(kinds[1:])

    @helper
    def some(operands: Any, t: int) -> Any:
        return (first(operands, t), *rest(operands[1], t))

    return some


def by_row_kernel(function: Any, kinds: tuple[type, ...], name: str) -> Any:
    """Make the kernel that calls a function for each row, under a name that no other kernel has."""
    row, operands = numba.njit(nogil=True, error_model="numpy")(function), _operands(kinds)

    def by_row(record: Any, state: int, thread: int, n_threads: int) -> None:
        n = state.n_tokens
        for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
            row(*operands(record.operands, t))

    return kernel(by_row, name, record=CallByRow)
