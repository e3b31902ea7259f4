"""What the engine offers its drafters: second models, shared state, facts about the target, and its first layers.

Backends compute what they are given, and kernels do not look: every batch that a drafter makes is checked here first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from augury.batch import checked_batch
from augury.engine.guard import guarded
from augury.errors import OptionError
from augury.interfaces import Model, Session, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from augury.batch import Batch
    from augury.interfaces import MemoryManager
    from augury.loader import Loader
    from augury.passes import Pass
    from augury.text.tokenizer import Tokenizer
    from augury.types import Allocation, ModelInfo, ModelOptions

__all__ = ["EngineSession", "EngineTarget", "SecondModel", "Shared"]


class Shared:
    """What the sessions of one engine have in common, made once and closed with the engine."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value under `key`, made by the first that asks."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def values(self) -> list[Any]:
        """All values, in the order in which they were made."""
        with self._lock:
            return list(self._made.values())

    def close(self) -> None:
        """Close, last made first, what can be closed; where that fails the others are closed all the same."""
        for value in reversed(self.values()):
            if callable(close := getattr(value, "close", None)):
                guarded(close)
        self._made.clear()


class SecondModel(Model):
    """A model that a drafter loaded."""

    def __init__(self, model: Model) -> None:
        self.info = model.info
        self.state_spec = model.state_spec
        self.n_threads = model.n_threads
        self.isa = model.isa
        self._model = model

    def forward(self, batch: Batch) -> Pass:
        """See `Model.forward`.

        Raises:
            OptionError: The batch is none, or names what the model does not have.
            CapacityError: A position does not fit into a slot.
        """
        return self._model.forward(checked_batch(batch, self._model.state_spec, self._model.info))

    def memory_table(self) -> Sequence[Allocation]:
        """See `Model.memory_table`."""
        return self._model.memory_table()

    def close(self) -> None:
        """See `Model.close`."""
        self._model.close()


class EngineTarget(Target):
    """The loaded model behind a guard: nothing that a slot holds is written over."""

    def __init__(self, model: Model, memory: MemoryManager) -> None:
        self.n_layers = model.info.n_layers
        self._model = model
        self._memory = memory

    def forward(self, batch: Batch) -> Pass:
        """See `Target.forward`."""
        batch = checked_batch(batch, self._model.state_spec, self._model.info)
        if batch.n_layers is None:
            raise OptionError(f"a drafter's pass through all layers, expected n_layers from 1 to {self.n_layers}")
        if batch.moves is not None:
            raise OptionError("a drafter's pass moves what the target's slots hold, expected no moves")
        steps = {slot: self._memory.prepare(slot, 0) for slot in dict.fromkeys(batch.slots.tolist())}
        for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True):
            if position < steps[slot].mark:
                raise OptionError(f"slot {slot} holds position {position}; expected positions from {steps[slot].mark} on")
        moved = {slot: step for slot, step in steps.items() if step.moves}
        if moved:  # what the slots hold comes to its place first, for this pass might write over it where it lies
            moves = [(slot, *move) for slot, step in moved.items() for move in step.moves]
            batch = attrs.evolve(batch, moves=np.array(moves, np.int32))
        logits = self._model.forward(batch)
        for slot, step in moved.items():
            self._memory.commit(slot, step, np.empty(0, np.int32))
        return logits


class EngineSession(Session):
    """The session of one slot."""

    def __init__(
        self,
        slot: int,
        model: ModelInfo,
        options: ModelOptions,
        tokenizer: Tokenizer | None,
        loader: Loader,
        target: Target,
    ) -> None:
        self.slot = slot
        self.n_slots = options.n_slots
        self.model = model
        self.options = options
        self.tokenizer = tokenizer
        self.target = target
        self._loader = loader

    def load(self, reference: str, options: ModelOptions, backend: str | None = None) -> Model:
        """See `Session.load`."""
        return self._loader.load(reference, options, purpose="draft", backend=backend)

    def load_tokenizer(self, reference: str) -> Tokenizer | None:
        """See `Session.load_tokenizer`."""
        return self._loader.load_tokenizer(reference)

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """See `Session.shared`."""
        return self._loader.shared.get(key, make)
