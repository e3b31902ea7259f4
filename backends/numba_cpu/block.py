"""A block on a tape: the emitters of its operations, and the memory that these share."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from augury import lowering as op
from augury.backends.numba import lowering
from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.memory import Arena, Cache, State
from augury.backends.numba_cpu.operations import EMITTERS
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.operations.layout import Layout, with_copies
from augury.backends.numba_cpu.operations.rows import ByRowEmitter
from augury.backends.numba_cpu.tape import Tape
from augury.backends.numba_cpu.weights import Weights
from augury.blocks import Block
from augury.lowering.rewrites import ACTIVATE_PRODUCTS, ADD_SUMS, check_norms, n_early, rewritten
from augury.types import ModelOptions


class BlockEmitter(lowering.BlockEmitter):
    """Writes the records of a block's operations. Before, it tells their needs, which takes no memory."""

    caches: list[Cache]
    states: list[State]
    _early: list[OperationEmitter[Any]]
    _emitters: list[OperationEmitter[Any]]

    def __init__(self, block: Block, options: ModelOptions, n_embd: int, sources: Sequence[Sequence[Cache]]) -> None:
        self._name = type(block).__name__
        self._build = build = block.lowered(n_embd)
        self.caches = [Cache(*cached, options) for cached in block.cached()]
        self.states = [State(state, options) for state in block.states()]
        self._scope, kept = op.Scope(options, self.caches, sources), (build.x, build.before)
        for each in build.operations:
            if isinstance(each, op.Attend) and each.values is not None:
                self._scope.cache(each.keys, each.source).is_of_keys = True
        operations = rewritten(with_copies(build.operations, kept), (ACTIVATE_PRODUCTS, ADD_SUMS))
        n_first = n_early(operations, build.before)
        check_norms(operations, kept)
        self._layout = Layout(operations, kept, n_first)
        emitters = list(self._emitters_of(operations, kept))
        self._early, self._emitters = emitters[:n_first], emitters[n_first:]
        keeping = [i for i, each in enumerate(self._emitters, 1) if each.operation.cached() or each.operation.sequence_states()]
        self._n_keeping = max(keeping, default=0)

    def tables(self) -> Mapping[Hashable, int]:
        """Bytes of further tables, by a key: blocks share tables of the same key."""
        return {key: n_bytes for emitter in self._emitters for key, n_bytes in emitter.tables().items()}

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        """See `SlotStates.slot_memory`: positions head by head."""
        views = [
            cache.slot_memory(slot, head, n, start or 0)
            for n_heads, caches in groupby(self.caches, lambda cache: cache.n_heads)
            for kept in [list(caches)]
            for head in range(n_heads)
            for cache in kept
        ]
        return views if start is not None else [*views, *(state.slot_memory(slot) for state in self.states)]

    def kernels(self) -> Sequence[Any]:
        """Its kernels, those of each operation with the slowest to compile first."""
        return [kernel for emitter in (*self._early, *self._emitters) for kernel in emitter.kernels]

    def buffers(self, n_threads: int) -> Mapping[str, int]:
        """Bytes of its work space, by name. Blocks share memory of one name; the largest counts."""
        return lowering.largest(self._layout.buffers, *(emitter.buffers(n_threads) for emitter in self._emitters))

    def scratch_bytes(self) -> int:
        """Bytes that each thread needs for itself while it runs a kernel of the block."""
        needed = [emitter.scratch_bytes() for emitter in self._emitters]
        return max((*needed, *(state.scratch_bytes for state in self.states)), default=0)

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """Allocate its state from pass to pass; `buffers` has the addresses."""
        for cache in self.caches:
            cache.place(arena)
        for state in self.states:
            state.allocate(arena.zeros)
        placed = Placed(weights, arena, self._layout, buffers, self.states)
        for emitter in (*self._early, *self._emitters):
            emitter.placed = placed

    def emit(self, tape: Tape, *, is_read: bool = True) -> None:
        """Write its other records; if nobody reads the result, as far as something is kept of tokens."""
        emitters = self._emitters if is_read else self._emitters[: self._n_keeping]
        tape.kept[self._build.x] = tape.seen
        if (embedded := tape.space.embedded) is not None:
            tape.kept[self._build.embedded] = embedded
        written, read = set[op.Value](), set[op.Value]()  # since the last barrier, by records that have none
        for emitter, following in zip(emitters, [*emitters[1:], None], strict=False):
            emitter.emit(tape)
            if emitter.needs_no_barrier:
                tape.waits = False
                written.update(value.root for value in emitter.written)
                read.update(value.root for value in emitter.operation.read)
            elif tape.waits:
                written, read = set(), set()
            if written and (following is None or _conflicts(following, written, read)):
                tape.waits = True
                written, read = set(), set()

    def _emitters_of(self, operations: Sequence[op.Operation], kept: Container[op.Value]) -> Iterator[OperationEmitter[Any]]:
        for operation, following in zip(operations, [*operations[1:], None], strict=False):
            if isinstance(operation, op.Normalize) and operation.x in kept:
                # the product is written where the rest is read
                waits = isinstance(following, op.Multiply) and not self._layout.added.isdisjoint(following.out)
                yield ResidualNormEmitter(operation, self._scope, waits=waits)
            elif isinstance(operation, op.ReadInput | op.ReadHidden):
                continue  # its rows lie where the embedding left them, or where the pass begins with them
            elif isinstance(operation, op.InitStreams) and not self._layout.begun.isdisjoint(operation.y):
                continue  # x lies there
            elif not isinstance(operation, op.LookUp) and not self._layout.begun.isdisjoint(operation.made):
                yield InPlaceEmitter(operation, self._scope)
            else:
                found = EMITTERS.find(operation, self._name)
                yield found(operation, self._scope) if isinstance(found, type) else ByRowEmitter(operation, self._scope, found)


def _conflicts(emitter: OperationEmitter[Any], written: set[op.Value], read: set[op.Value]) -> bool:
    """Whether an operation reads values that others write, or writes values that others read or write."""
    reads = {value.root for value in emitter.operation.read}
    writes = {value.root for value in emitter.written}
    return not (reads.isdisjoint(written) and writes.isdisjoint(written) and writes.isdisjoint(read))


class ResidualNormEmitter(OperationEmitter[op.Normalize]):
    """Norms the residual stream, once pending rows are added to it."""

    def __init__(self, operation: op.Normalize, scope: op.Scope, *, waits: bool) -> None:
        super().__init__(operation, scope)
        self._waits = waits

    def emit(self, tape: Tape) -> None:
        tape.kept[self.operation.out] = tape.norm(self.operation.norm, waits=self._waits)


class InPlaceEmitter(OperationEmitter[op.Normalize | op.AddWeighed]):
    """Changes x where it lies, as it begins; see `Layout.begun`."""

    kernels = (step.add_rows,)

    def emit(self, tape: Tape) -> None:
        if isinstance(self.operation, op.Normalize):
            tape.norm_x(self.operation.norm)
        else:
            tape.add_rows(tape.space.x, self.placed.rows(self.operation.other, tape))
            tape.waits = True  # the next record may write these rows
