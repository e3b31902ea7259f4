"""A block on a tape: the emitters of its operations, and the memory that these share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.device import Device, Launch, Part, Pointer
from augury.backends.numba_cuda.first_products import FirstProducts
from augury.backends.numba_cuda.operations import OPERATIONS
from augury.backends.numba_cuda.operations.emitter import Scope
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.operations.recurrence import GateEmitter, RecurEmitter
from augury.backends.numba_cuda.operations.rewrites import ReadEmbedded, rewritten
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Block
from augury.errors import UnsupportedError
from augury.lowering import Normalize
from augury.lowering.rewrites import check_norms, n_early
from augury.types import ModelOptions


class BlockEmitter:
    """Writes the launches of a block's operations, in their order.

    Attributes:
        caches: The memory of positions, in the order of `Block.cached`.
        norms: The norms of x that it begins with, if they may be made before it begins, with those of blocks beside it.
    """

    def __init__(self, block: Block, options: ModelOptions, n_embd: int, sources: Sequence[Sequence[Cache]]) -> None:
        build = block.lowered(n_embd)
        self.caches = [Cache(*cached, options) for cached in block.cached()]
        streams, n_first = (build.x, build.before), n_early(build.operations, build.before)
        check_norms(build.operations, streams)
        given = [ReadEmbedded(build.embedded)] if block.reads_embedding else []
        early, others = (
            rewritten(some, streams) for some in (build.operations[:n_first], [*given, *build.operations[n_first:]])
        )
        operations, n_first = [*early, *others], len(early)
        found = [OPERATIONS.get(type(each)) or each.kernel_for("numba-cuda") for each in operations]
        for unknown in (type(each).__name__ for each, emitter in zip(operations, found, strict=True) if emitter is None):
            raise UnsupportedError(
                f"block {type(block).__name__} has the operation {unknown}, which backend numba-cuda does not compute; use "
                "backend reference"
            )
        self._layout = Layout(operations, streams, n_first)
        scope = Scope(self._layout, options, self.caches, sources)
        emitters = [emitter(each, scope) for each, emitter in zip(operations, found, strict=True)]
        self._early, self._emitters = emitters[:n_first], emitters[n_first:]
        keepers = sorted((each for each in emitters if each.place is not None), key=lambda each: each.place or 0)
        self._states = [each.state for each in keepers]
        self.norms = [each.norm for each in operations if isinstance(each, Normalize) and each.x is build.x]
        recurrence = None
        for emitter in emitters:
            if isinstance(emitter, RecurEmitter):
                recurrence = emitter
            elif isinstance(emitter, GateEmitter):  # the first one after a recurrence, maybe after copies of its output
                emitter.recurrence, recurrence = recurrence, None

    @property
    def first_products(self) -> FirstProducts | None:
        """The products of norm(x) that it begins with, if it lets others share their launch; see `first_products.py`."""
        if (found := self._layout.first_products()) is None:
            return None
        multiply, name = found
        return FirstProducts((self._layout, name), name, self._layout.products(multiply), self._layout.width(name))

    def buffers(self) -> Mapping[str, int]:
        """Bytes of its work space, by name. Blocks share memory of one name; the largest counts."""
        needed = dict(self._layout.buffers)
        for emitter in (*self._early, *self._emitters):
            needed |= {name: max(n_bytes, needed.get(name, 0)) for name, n_bytes in emitter.buffers().items()}
        return needed

    def place(self, device: Device) -> None:
        """Allocate its state from pass to pass."""
        for cache in self.caches:
            cache.place(device)
        for state in self._states:
            state.place(device)

    def begin(self, tape: Tape) -> None:
        """Write the steps that come before all of its layer's."""
        for emitter in self._early:
            emitter.emit(tape)

    def emit(self, tape: Tape) -> None:
        """Write its steps. May be called for any number of tapes."""
        for emitter in self._emitters:
            emitter.emit(tape)

    def emit_states(self, tape: Tape) -> None:
        """Write only the steps that bring states of sequences up to date, for a pass over no tokens."""
        for emitter in self._emitters:
            emitter.emit_states(tape)

    def bytes_per_position(self) -> int:
        """Bytes of one position of one slot."""
        return sum(cache.bytes_per_position() for cache in self.caches)

    def bytes_per_sequence(self) -> int:
        """Bytes of a slot, however many positions it has."""
        return sum(state.n_bytes for state in self._states)

    def slot_memory(self, slot: int, n: int) -> Sequence[Part]:
        """The memory of a slot's first n positions, and of its states."""
        parts = [part for cache in self.caches for part in cache.slot_memory(slot, n)]
        return [*parts, *(state.slot_memory(slot) for state in self._states)]

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy its cells: n moves (n, 3) of slot, from, to."""
        return [launch for cache in self.caches for launch in cache.moving(moves, n)]
