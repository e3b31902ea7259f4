"""A block on a tape: the emitters of its operations, and the memory that these share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attrs import frozen

from augury import lowering as op
from augury.backends.numba import lowering
from augury.backends.numba_cuda.device import Device, Launch, Pointer, Region
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.operations import EMITTERS
from augury.backends.numba_cuda.operations.emitter import OperationEmitter, Scope
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.operations.recurrence import GateEmitter, RecurEmitter
from augury.backends.numba_cuda.operations.rewrites import REWRITES, ReadEmbedded
from augury.backends.numba_cuda.products import DeviceRows, Operand
from augury.backends.numba_cuda.slot_memory import Cache, State
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Block, Linear
from augury.lowering.rewrites import check_norms, n_early, rewritten
from augury.types import ModelOptions


@frozen(eq=False)
class FirstProducts:
    """Products that a mixer begins with: by themselves, or in one launch for mixers side by side that see the same rows.

    Matrices come with their columns; a row has `width` values, in a buffer of a name. The key finds them in `Tape.made` if
    they lie elsewhere.
    """

    key: Hashable
    name: str
    products: Sequence[tuple[Linear, int]]
    width: int


class BlockEmitter(lowering.BlockEmitter):
    """Writes the launches of a block's operations.

    Attributes:
        norms: The norms of x that it begins with, if they may be made before it begins, with those of blocks beside it.
    """

    caches: list[Cache]
    states: list[State]
    _early: list[OperationEmitter[Any]]
    _emitters: list[OperationEmitter[Any]]

    def __init__(self, block: Block, options: ModelOptions, n_embd: int, sources: Sequence[Sequence[Cache]]) -> None:
        build = block.lowered(n_embd)
        self.caches = [Cache(*cached, options) for cached in block.cached()]
        streams, n_first = (build.x, build.before), n_early(build.operations, build.before)
        check_norms(build.operations, streams)
        given = [ReadEmbedded(build.embedded)] if block.reads_embedding else []
        early, others = (
            rewritten(some, REWRITES, streams) for some in (build.operations[:n_first], [*given, *build.operations[n_first:]])
        )
        operations, n_first = [*early, *others], len(early)
        found = [EMITTERS.find(each, type(block).__name__) for each in operations]
        self._layout = Layout(operations, streams, n_first)
        scope = Scope(options, self.caches, sources, self._layout)
        emitters = [emitter(each, scope) for each, emitter in zip(operations, found, strict=True)]
        self._early, self._emitters = emitters[:n_first], emitters[n_first:]
        keepers = sorted((each for each in emitters if each.place is not None), key=lambda each: each.place or 0)
        self.states = [each.state for each in keepers]
        self.norms = [each.norm for each in operations if isinstance(each, op.Normalize) and each.x is build.x]
        recurrence = None
        for emitter in emitters:
            if isinstance(emitter, RecurEmitter):
                recurrence = emitter
            elif isinstance(emitter, GateEmitter):  # the first one after a recurrence, maybe after copies of its output
                emitter.recurrence, recurrence = recurrence, None

    @property
    def first_products(self) -> FirstProducts | None:
        """The products of norm(x) that it begins with, if it lets others share their launch; see `FirstProducts`."""
        if (found := self._layout.first_products()) is None:
            return None
        multiply, name = found
        return FirstProducts((self._layout, name), name, self._layout.products(multiply), self._layout.widths[name])

    def buffers(self) -> Mapping[str, int]:
        """Bytes of its work space, by name. Blocks share memory of one name; the largest counts."""
        return lowering.largest(self._layout.buffers, *(emitter.buffers() for emitter in (*self._early, *self._emitters)))

    def place(self, device: Device) -> None:
        """Allocate its state from pass to pass."""
        for cache in self.caches:
            cache.place(device)
        for state in self.states:
            state.allocate(device.allocate)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[Region]:
        """See `SlotStates.slot_memory`."""
        parts = [part for cache in self.caches for part in cache.slot_memory(slot, n, start or 0)]
        return parts if start is not None else [*parts, *(state.slot_memory(slot) for state in self.states)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy its cells: n moves (n, 3) of slot, from, to."""
        return [launch for cache in self.caches for launch in cache.moving(moves, n)]


def columns_of(blocks: Sequence[FirstProducts]) -> list[int]:
    """Where in one row the products of several blocks begin, each in whole tiles of matrices, and where they end."""
    return list(accumulate((-(-each.width // TILE_ROWS) * TILE_ROWS for each in blocks), initial=0))


def multiply_first(tape: Tape, x: Operand, blocks: Sequence[FirstProducts]) -> None:
    """Write the first products of several blocks, all in one row, until `Tape.go_on`."""
    columns = columns_of(blocks)
    rows, found = DeviceRows(tape.buffers["first products"], columns[-1]), []
    for each, first in zip(blocks, columns, strict=False):
        tape.made[each.key] = DeviceRows(rows.at.at(4 * first), rows.width)
        found += [(linear, first + column) for linear, column in each.products]
    tape.multiply(x, found, rows)
