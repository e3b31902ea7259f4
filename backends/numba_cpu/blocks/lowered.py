"""A block that says itself how it is computed: the emitters of its operations, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.recurrent import RecurrentEmitter
from augury.backends.numba_cpu.operations import OPERATIONS
from augury.backends.numba_cpu.operations.emitter import Placed
from augury.backends.numba_cpu.operations.layout import Layout, with_copies
from augury.backends.numba_cpu.operations.rows import ResidualNormEmitter
from augury.errors import UnsupportedError
from augury.lowering import Builder, Multiply, Normalize, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.operations.emitter import OperationEmitter
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import Block
    from augury.lowering import Operation
    from augury.types import ModelOptions

__all__ = ["LoweredEmitter"]


class LoweredEmitter(RecurrentEmitter):
    """Writes the records of a block's operations, in their order."""

    def __init__(self, block: Block, options: ModelOptions, n_embd: int) -> None:
        super().__init__(block, options)
        build = Builder(n_embd)
        block.lower(build)
        operations = with_copies(build.operations)
        self._layout = Layout(operations, build.x)
        self._emitters = list(self._emitters_of(operations, build.x))

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return [kernel for emitter in self._emitters for kernel in emitter.kernels()]

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return self._layout.buffers

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        placed = Placed(weights, arena, self._layout, buffers, self.place_states(arena), self.n_aside)
        for emitter in self._emitters:
            emitter.place(placed)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        written, read = set[Value](), set[Value]()  # since the last barrier
        for emitter, following in zip(self._emitters, [*self._emitters[1:], None], strict=True):
            emitter.emit(tape)
            written.update(value.root for value in emitter.written)
            read.update(value.root for value in emitter.operation.read)
            if emitter.needs_no_barrier and following is not None and not _conflicts(following, written, read):
                tape.run_on()
            else:
                written, read = set(), set()

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        for emitter in self._emitters:
            emitter.emit_states(tape)

    def _emitters_of(self, operations: Sequence[Operation], x: Value) -> Iterator[OperationEmitter]:
        for operation, following in zip(operations, [*operations[1:], None], strict=True):
            if isinstance(operation, Normalize) and operation.x is x:
                # the product is written where what was left is read
                waits = isinstance(following, Multiply) and not self._layout.added.isdisjoint(following.out)
                yield ResidualNormEmitter(operation, waits=waits)
            elif type(operation) in OPERATIONS:
                yield OPERATIONS[type(operation)](operation)
            else:
                raise UnsupportedError(
                    f"block {type(self.block).__name__} has the operation {type(operation).__name__}, which backend numba-cpu "
                    "does not compute; use backend reference"
                )


def _conflicts(emitter: OperationEmitter, written: set[Value], read: set[Value]) -> bool:
    """Whether an operation reads what others write, or writes what others read or write."""
    reads = {value.root for value in emitter.operation.read}
    writes = {value.root for value in emitter.written}
    return not (reads.isdisjoint(written) and writes.isdisjoint(written) and writes.isdisjoint(read))
