"""Norms, products and what else is done to rows, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.kernels import recurrent_ends
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows
from augury.blocks import Activation
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.lowering import Activate, Add, Constant, Multiply, Normalize

__all__ = ["ActivateEmitter", "AddEmitter", "ConstantEmitter", "MultiplyEmitter", "NormalizeEmitter"]


class NormalizeEmitter(OperationEmitter):
    """Norms rows, or copies them, from where they are to where the next operation wants them."""

    operation: Normalize
    needs_no_barrier = True

    def __init__(self, operation: Normalize) -> None:
        super().__init__(operation)
        norm = operation.norm
        if norm is not None and norm.size != operation.x.width:
            found = f"a norm of groups of {norm.size} of {operation.x.width} values"
            raise UnsupportedError(f"{found} outside of heads; use backend reference")

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.place_rows,)

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        operation = self.operation
        x, to = self.placed.at(operation.x), self.placed.at(operation.out)
        operands = (x.address, x.stride, to.address, to.stride, operation.x.width, tape.weights.norm(operation.norm))
        tape.add(Work("norm" if operation.norm else "copying rows"), recurrent_ends.place_rows, *operands)


class ResidualNormEmitter(OperationEmitter):
    """Norms the residual stream, once what blocks left is added to it."""

    operation: Normalize

    def __init__(self, operation: Normalize, *, waits: bool) -> None:
        super().__init__(operation)
        self._waits = waits

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        tape.normed[self.operation.out] = tape.norm(self.operation.norm, waits=self._waits)


class MultiplyEmitter(OperationEmitter):
    """Multiplies rows by several matrices in one record."""

    operation: Multiply

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        operation, placed = self.operation, self.placed
        x = tape.normed.get(operation.x) or Rows(placed.at(operation.x).address, 0, operation.x.width)
        to = [tape.y if value in placed.layout.added else placed.at(value).address for value in operation.out]
        tape.multiply(operation.purpose, x, list(zip(operation.linears, to, strict=True)))


class AddEmitter(OperationEmitter):
    """Leaves products to be added to the residual stream by the next norm."""

    operation: Add

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        y = self.operation.y
        tape.leave(self.operation.norm, None if y in self.placed.layout.added else self.placed.at(y).address)


class ActivateEmitter(OperationEmitter):
    """Sends rows through an activation."""

    operation: Activate
    needs_no_barrier = True

    def __init__(self, operation: Activate) -> None:
        super().__init__(operation)
        if operation.activation is not Activation.SILU:
            raise UnsupportedError(f"rows through {operation.activation.name}, expected SILU; use backend reference")

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.place_rows,)

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        x, to = (self.placed.at(value) for value in (self.operation.x, self.operation.out))
        operands = (x.address, x.stride, to.address, to.stride, self.operation.x.width, 0, 1)
        tape.add(Work("activation"), recurrent_ends.place_rows, *operands)


class ConstantEmitter(OperationEmitter):
    """Writes the same numbers into every row."""

    operation: Constant
    needs_no_barrier = True

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.place_rows,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        super().place(placed)
        self._numbers = placed.arena.keep(np.array(self.operation.numbers, np.float32), "weights")

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        to, width = self.placed.at(self.operation.out), self.operation.out.width
        tape.add(Work("constants"), recurrent_ends.place_rows, self._numbers, 0, to.address, to.stride, width, 0, 0)
