"""Operations that packages bring, by a function of one row."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core.serialize import dumps

from augury.backends.numba_cpu.kernels.by_row import by_row_kernel
from augury.backends.numba_cpu.memory import bits
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.profile import Work
from augury.blocks import Vector
from augury.errors import UnsupportedError
from augury.lowering import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.lowering import Operation

__all__ = ["ByRowEmitter"]


class ByRowEmitter(OperationEmitter):
    """Calls a function for each row; see `Operation.kernels`."""

    operation: Operation

    def __init__(self, operation: Operation, function: Callable[..., None]) -> None:
        super().__init__(operation)
        self._operands = (*operation.operands, *operation.made)
        kinds = tuple(_kind(operation, each) for each in self._operands)
        self._kernel = by_row_kernel(function, kinds, _name(function, kinds))

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (self._kernel,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        fields = [field for each in self._operands for field in _fields(each, placed)]
        self._record = placed.arena.keep(np.array(fields, np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        tape.add(Work(type(self.operation).__name__), self._kernel, self._record)


def _kind(operation: Operation, operand: Any) -> type:
    """What an operand is to a function that numba compiles."""
    for kind, types in ((np.ndarray, Value | Vector), (float, float), (int, int)):
        if isinstance(operand, types):
            return kind
    name, found = type(operation).__name__, type(operand).__name__
    raise UnsupportedError(f"operation {name} has a {found}; by rows numba-cpu takes values, vectors, and numbers")


def _fields(operand: Any, placed: Placed) -> tuple[int, int, int]:
    """What the kernel reads of an operand."""
    if isinstance(operand, Value):
        place = placed.at(operand)
        return place.address, operand.width, place.stride
    if isinstance(operand, Vector):
        numbers = placed.weights.values(operand.weight, operand.shapes[operand.weight])
        return placed.arena.keep(np.array(numbers, np.float32), "weights"), operand.size, 0
    return (bits(operand) if isinstance(operand, float) else int(operand)), 0, 0


def _name(function: Callable[..., None], kinds: tuple[type, ...]) -> str:
    """A name for compiled code, another one whenever the function's file, or what it encloses, is another."""
    code: Any = function.__code__
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    file = Path(code.co_filename)
    source = file.read_bytes() if file.is_file() else b""
    names = (function.__module__, function.__qualname__, *(kind.__name__ for kind in kinds))
    parts = (source, code.co_code, dumps((names, enclosed)))
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return f"{function.__name__}_{key.hexdigest()[:24]}"
