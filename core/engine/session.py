"""What the engine offers its drafters: second models, shared state, facts about the target, and its first layers.

Backends compute what they are given, and kernels do not look: every batch that a drafter makes is checked here first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from augury.engine.guard import guarded
from augury.errors import CapacityError, OptionError
from augury.interfaces import Model, Session, Target
from augury.tree import Tree, check_moves
from augury.types import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from augury.interfaces import Logits, MemoryManager
    from augury.loader import Loader
    from augury.text.tokenizer import Tokenizer
    from augury.types import Allocation, ModelInfo, ModelOptions

__all__ = ["EngineSession", "EngineTarget", "SecondModel", "Shared", "checked_batch"]


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
        self.target = model.target
        self._model = model

    def forward(self, batch: Batch) -> Logits:
        """See `Model.forward`.

        Raises:
            OptionError: The batch is none, or names what the model does not have.
            CapacityError: A position does not fit into a slot.
        """
        return self._model.forward(checked_batch(batch, self._model))

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

    def forward(self, batch: Batch) -> Logits:
        """See `Target.forward`."""
        batch = checked_batch(batch, self._model)
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


def checked_batch(batch: Batch, model: Model) -> Batch:
    """A copy of a plugin's batch, which kernels can read without a look at it.

    Raises:
        OptionError: It is no batch, or names what the model does not have.
        CapacityError: A position does not fit into a slot.
    """
    if not isinstance(batch, Batch):
        raise OptionError(f"a pass over a {type(batch).__name__}, expected a Batch")
    spec, n_layers = model.state_spec, batch.n_layers
    if n_layers is not None and not (isinstance(n_layers, int | np.integer) and 1 <= n_layers <= model.info.n_layers):
        raise OptionError(f"a pass through {n_layers!r} layers, expected 1 to {model.info.n_layers}")
    tokens = _row("tokens", batch.tokens, model.info.n_vocab)
    if not (n := len(tokens)):
        raise OptionError("a pass over no tokens, expected some")
    slots = _row("slots", batch.slots, spec.n_slots, n=n)
    positions = _row("positions", batch.positions, spec.n_ctx, n=n, too_large=CapacityError)
    rows = _row("rows", batch.rows, n)
    parents = None if batch.parents is None else _row("parents", batch.parents, n, n=n, least=-1)
    moves = None if batch.moves is None else _row("moves", batch.moves, 2**31, columns=3)
    copy = Batch(tokens, slots, positions, rows, parents, moves, n_layers)
    if (rows[1:] <= rows[:-1]).any():
        raise OptionError(f"a pass with rows {rows.tolist()}, expected rising ones")
    if moves is not None:
        check_moves(moves, spec)
    if parents is not None:
        Tree(copy, spec.n_ctx)
    elif n > 1:
        order = np.argsort(slots, kind="stable")
        in_order, places = slots[order], positions[order]
        if ((in_order[1:] == in_order[:-1]) & (places[1:] <= places[:-1])).any():
            raise OptionError("a pass with positions that do not rise within a slot, expected each behind the one before")
    return copy


def _row(
    name: str,
    values: Any,
    n_known: int,
    *,
    n: int | None = None,
    columns: int | None = None,
    least: int = 0,
    too_large: type[Exception] = OptionError,
) -> np.ndarray:
    """A copy of numbers from `least` to `n_known` - 1 as int32: n if that is given, and so many columns of them, if not one."""
    try:
        given = np.array(values)
    except (TypeError, ValueError) as error:  # such as lists of unequal length
        raise OptionError(f"a pass with {name} that are no array: {error}") from None
    has_shape = given.ndim == 1 if columns is None else given.shape[1:] == (columns,)
    if not has_shape or (given.dtype.kind not in "iu" and given.size) or (n is not None and len(given) != n):
        expected = f"({'n' if n is None else n},{'' if columns is None else f' {columns}'})"
        raise OptionError(f"a pass with {name} of {given.dtype} in shape {given.shape}, expected {expected} int32")
    if given.size:
        smallest, largest = (given.item(), given.item()) if given.size == 1 else (int(given.min()), int(given.max()))
        if smallest < least or largest >= n_known:
            refusal = OptionError if smallest < least else too_large
            raise refusal(f"a pass with {name} from {smallest} to {largest}, expected {least} to {n_known - 1}")
    return given.astype(np.int32, copy=False)
