"""The slots of an engine: which are in use, by requests and by evaluations, and what the free ones hold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from attrs import define, evolve, field

from augury.engine.adapters import Scales
from augury.engine.context import EngineContext
from augury.engine.slot_files import SavedSlot
from augury.errors import CapacityError, LostDeviceError, OptionError, PluginError
from augury.guard import guarded
from augury.interfaces import Opened


@define(eq=False)
class Slots:
    """Opens slots and frees them. The engine's thread alone calls it."""

    _context: EngineContext
    # called before every request; its exception is the request's error
    _check: Callable[[], None] | None = None
    in_use: set[int] = field(factory=set, init=False)  # also those of evaluations
    evaluating: set[int] = field(factory=set, init=False)
    ended: dict[int, SavedSlot] = field(factory=dict, init=False)  # by slot, its last request's text and sampling
    _unfreed: set[int] = field(factory=set, init=False)  # slots whose memory manager failed to free them

    def open(
        self, tokens: np.ndarray, *, may_reuse: bool, slot: int | None = None, scales: Scales | None = None
    ) -> Opened | None:
        """A slot for a prompt, or None while all are taken."""
        for unfreed in tuple(self._unfreed):
            with suppress(BaseException):  # it was said the first time
                self._end(unfreed)
        if self._check is not None:
            self._check()
        opened = self._context.open(tokens, may_reuse=may_reuse, slot=slot, scales=scales)
        if opened is not None:
            self.in_use.add(opened.slot)
            self._unfreed.discard(opened.slot)
            self.ended.pop(opened.slot, None)
        elif not self.in_use:
            name = self._context.memory.name
            raise PluginError(f"memory manager {name} has no free slot, and none is in use; load the model again")
        return opened

    def free(self, slot: int) -> None:
        """Free a slot; where its manager fails in that, it is asked again before the next one is opened."""
        self.in_use.discard(slot)
        self._unfreed.add(slot)
        guarded(self._end, slot)

    def _end(self, slot: int) -> None:
        with suppress(LostDeviceError):  # it is ended again when the device is back
            self._context.end(slot)
            self._unfreed.discard(slot)

    def reserve(self, tokens: np.ndarray) -> int | None:
        """A slot for a text that is evaluated and not continued, or None while all are taken."""
        if (opened := self.open(tokens[:0], may_reuse=True)) is not None:
            self.evaluating.add(opened.slot)
        return None if opened is None else opened.slot

    def release(self, slot: int) -> None:
        """Free such a slot."""
        self.evaluating.discard(slot)
        self.free(slot)

    def save(self, slot: int, running: SavedSlot | None) -> SavedSlot:
        """The text of a slot, between two rounds of its request, if it has one that is running, or after it."""
        if (known := running or self.ended.get(slot)) is None:
            raise OptionError(f"slot {slot} holds no request's text: none came, it was erased, or an evaluation took its place")
        return evolve(known, held=self._context.save(slot))

    def load(self, slot: int, saved: SavedSlot) -> SavedSlot:
        """Restore saved contents to a free slot."""
        self._context.restore(slot, saved.held)
        self.ended[slot] = evolve(saved, held=b"")
        return self.ended[slot]

    def erase(self, slot: int) -> int:
        """Let a free slot forget its contents; returns how many tokens these were."""
        if slot in self.in_use:
            raise CapacityError(f"slot {slot} is in use; erase it when its request has ended")
        n_erased = self._context.spec.n_ctx - self._context.room(slot)
        if self.open(np.zeros(1, np.int32), may_reuse=False, slot=slot) is not None:
            self.free(slot)
        return n_erased
