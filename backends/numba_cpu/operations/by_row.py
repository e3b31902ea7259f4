"""Operations that packages bring, by a function of one row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.serialize import dumps

from augury.backends.numba_cpu.kernels.by_row import Operand, by_row_kernel
from augury.backends.numba_cpu.kernels.struct import table
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Tape
from augury.blocks import Vector
from augury.errors import UnsupportedError
from augury.lowering import Operation, Scope, Value, source_key


class ByRowEmitter(OperationEmitter[Operation]):
    """Calls a function for each row; see `Operation.kernels`."""

    def __init__(self, operation: Operation, scope: Scope, function: Callable[..., None]) -> None:
        super().__init__(operation, scope)
        self._operands = (*operation.operands, *operation.made)
        kinds = tuple(_kind(operation, each) for each in self._operands)
        self._kernel = by_row_kernel(function, kinds, _name(function, kinds))
        self.kernels = (self._kernel,)

    def place(self, placed: Placed) -> None:
        self._table = placed.arena.keep(table([_operand(each, placed) for each in self._operands]), "scratch")

    def emit(self, tape: Tape) -> None:
        tape.add(Work(type(self.operation).__name__), self._kernel, operands=self._table)


def _kind(operation: Operation, operand: Any) -> type:
    """An operand's type for a function that numba compiles."""
    for kind, types in ((np.ndarray, Value | Vector), (float, float), (int, int)):
        if isinstance(operand, types):
            return kind
    name, found = type(operation).__name__, type(operand).__name__
    raise UnsupportedError(f"operation {name} has a {found}; by rows numba-cpu takes values, vectors, and numbers")


def _operand(given: Any, placed: Placed) -> Operand:
    """An operand as the kernel reads it."""
    address = width = stride = count = 0
    number = 0.0
    if isinstance(given, Value):
        place = placed.at(given)
        address, width, stride = place.address, given.width, place.width
    elif isinstance(given, Vector):
        numbers = np.array(placed.weights.values(given.weight, given.shapes[given.weight]), np.float32)
        address, width = placed.arena.keep(numbers, "weights"), given.size
    elif isinstance(given, float):
        number = given
    else:
        count = int(given)
    return Operand(address=address, width=width, stride=stride, number=number, count=count)


def _name(function: Callable[..., None], kinds: tuple[type, ...]) -> str:
    """A name for compiled code, which changes with the function, its file, and its closure."""
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = (source_key(function), [kind.__name__ for kind in kinds], enclosed)
    return f"{function.__name__}_{hashlib.sha256(dumps(parts)).hexdigest()[:24]}"
