"""`MemoryManager`: the class of plugins that decide which tokens the slots of a model keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import Factory, field, frozen

from augury.batch import Reservation
from augury.errors import UnsupportedError
from augury.interfaces.plugin import Plugin
from augury.slot_states import SlotStates
from augury.types import Allocation, StateSpec


@frozen
class Opened:
    """A slot given to a request, and how many of its first tokens the slot already holds, its own or copied ones.

    `n_shared` is how many of them some slot has computed; tokens that are not reused are computed again.
    """

    slot: int
    n_reused: int
    n_shared: int = field(default=Factory(lambda self: self.n_reused, takes_self=True))


class MemoryManager(Plugin, ABC):
    """Decides which tokens the slots of a model keep; the backend owns the bytes.

    It knows the tokens of every slot, so that a request can reuse the longest prefix that a free slot still holds. If no
    `commit` follows `prepare`, the pass failed and the slot's state is undefined. A slot may be prepared again before there was
    a pass; then the last time counts.
    """

    replays_accepted: bool = False
    """Whether tokens that were accepted of a rejected draft are computed again in front of the next pass. Drafts are then
    chains, because a state that takes in drafted tokens cannot take in two branches."""

    def __init__(self, options: Any, spec: StateSpec, states: SlotStates) -> None:
        """Take over the slots of a model; `states` can save and restore their contents."""
        self.options = options
        self.spec = spec
        self.states = states

    @classmethod
    def suitable(cls, spec: StateSpec) -> str | None:  # noqa: ARG003 - for managers that do not suit everything
        """Why it cannot keep the states of such a model, and what to take instead; None if it can."""
        return None

    @abstractmethod
    def open(self, tokens: np.ndarray, *, may_reuse: bool, slot: int | None = None, variant: str = "") -> Opened | None:
        """Give a free slot to a request with the prompt `tokens` (n,), or None while all are taken. Raising gives no slot.

        `slot`, if one is named, is free, and the one to give. The reused part may be copied from a slot that is in use. At
        least one token of the prompt is never counted as reused, because its logits are needed. Without `may_reuse` nothing is
        reused, and no other request may reuse any of this one: `end` forgets it. Of states of equal tokens only those of this
        `variant`, which names the adapters in force, are reused; it is left out where it is empty.
        """

    @abstractmethod
    def room(self, slot: int) -> int:
        """How many more tokens the slot can take."""

    def draft_room(self, slot: int) -> int:
        """How many drafted tokens the slot's next pass can take after a certain one; below 1 none are wanted."""
        room, most = self.room(slot) - 1, self.spec.draft_max
        return room if most is None else min(room, most)

    def chunk(self, slot: int, n: int, n_left: int) -> int:  # noqa: ARG002 - for managers that want passes to end somewhere
        """How many of a prompt's next n tokens the next pass takes, 1 at least: where it ends the state can be copied.

        A pass takes no more than n; `n_left` tokens are left of the prompt, with these.
        """
        return n

    @abstractmethod
    def prepare(self, slot: int, n_certain: int, n_drafted: int) -> Reservation:
        """Make room for so many tokens that stay, then so many that may be undone. Raises CapacityError: they do not fit."""

    @abstractmethod
    def commit(self, slot: int, reservation: Reservation, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        """After verification: keep some tokens (m,) int32 of the pass, replayed ones included, and undo the rest.

        `reservation` is the result of `prepare` for the pass. `path` (m,) int32, rising, says where in the slot's share of the
        pass the tokens stood; None: at its beginning.
        """

    @abstractmethod
    def truncate(self, slot: int, n: int) -> int:
        """Keep at most the first n tokens of a slot; returns how many are kept, which may be fewer."""

    @abstractmethod
    def end(self, slot: int) -> None:
        """Free the slot; a later request may reuse its contents, if it was opened so."""

    def save(self, slot: int) -> bytes:  # noqa: ARG002 - for managers that can
        """All that a slot holds and a later request may reuse: its text, its states, and the manager's other data of it.

        Not to be called during a pass, like `restore`. Tokens that the next pass is to take in may be left out. Raises
        UnsupportedError: the manager or the backend cannot save slots.
        """
        raise UnsupportedError(f"memory manager {self.name} cannot save slots")

    def restore(self, slot: int, data: bytes) -> int:  # noqa: ARG002 - for managers that can
        """Restore saved contents, of any slot and process, to a free slot; returns how many tokens it holds then.

        Raises CapacityError: the slot is in use, or too small; then nothing is changed, as with the other errors.
        ModelFileError: the bytes are damaged, or of another model or other options. UnsupportedError: the manager or the
        backend cannot restore slots.
        """
        raise UnsupportedError(f"memory manager {self.name} cannot restore slots")

    def text(self, slot: int) -> np.ndarray:  # noqa: ARG002 - for managers that can
        """The first tokens (n,) int32 of a slot, as far as their states are in place. Not to be called during a pass.

        Raises UnsupportedError: the manager does not tell; then no prompt cache keeps anything.
        """
        raise UnsupportedError(f"memory manager {self.name} does not tell what its slots hold")

    def copies(self, slot: int) -> Mapping[int, bytes]:  # noqa: ARG002 - for managers of recurrent states
        """The states of a slot's sequence along its text, as saved of no positions, by how many tokens they have taken in."""
        return {}

    def adopt(self, slot: int, tokens: np.ndarray, copies: Mapping[int, bytes]) -> None:
        """The states of a taken slot's positions were restored, and that of its sequence: it holds these tokens (n,) int32 now.

        `copies` are states along them, as those of `copies`. Called for managers that tell their slots' texts.
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """The sizes of the slots' states."""

    def memory_table(self) -> Sequence[Allocation]:
        """The memory that it may come to hold beside the slots' states, line by line."""
        return ()
