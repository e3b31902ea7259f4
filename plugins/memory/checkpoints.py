"""Memory manager `checkpoints`: slots with a recurrent state, which cannot be cut, and copies of it to go back to.

A rejected draft is undone in one of two ways. Where the backend can, drafted tokens are kept aside, and the next pass takes in
the accepted ones. Otherwise they are taken in; after a rejection the state saved before them is restored, and the accepted
tokens are computed again, in front of the next pass::

    text a b c     draft x y     accepted x     sampled z
    pass           a b c | x y                  the state is saved where | stands
    next pass      x z | ...                    after it was restored: x is replayed

A text that leaves the slot's, as an edited chat does, goes on from the nearest *checkpoint*, a copy of the state along the
text. Copies are made every `checkpoint_min_step` tokens; shortly before a prompt's end, because the next prompt of a
conversation may leave out the rest; and where a new request continues a slot's text. If there is no room for one more, the copy
whose loss costs least is dropped: the tokens since the copy before it, as often as a text leaves the slot's before the copy
after it.

Source: llama.cpp's `--ctx-checkpoints` (b11434, `common/arg.cpp`), of which these are the flags and defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import Factory, define, frozen

from augury.batch import Reservation
from augury.errors import UnsupportedError
from augury.interfaces import Opened
from augury.log import get_logger
from augury.options import option
from augury.plugins.memory.contiguous import Contiguous
from augury.slot_states import SlotStates, join_parts, split_parts
from augury.types import Allocation, StateSpec

if TYPE_CHECKING:
    import numpy as np

_MIB = 2**20
_TAIL = 4  # tokens between a prompt's last checkpoint and its end: a template's opening of the answer
_SHORTEST = 16  # tokens of a prompt that is worth a checkpoint, and a pass more


@frozen
class CheckpointOptions:
    """Options of `checkpoints`."""

    ctx_checkpoints: int = option(
        32,
        help="copies of a slot's recurrent state along its text, at most; 0: none",
        ge=0,
        aliases=("ctx-checkpoints", "swa-checkpoints"),
    )
    checkpoint_min_step: int = option(
        8192,
        help="tokens from one copy to the next, but for those at a prompt's end; 0: one after every pass",
        ge=0,
        aliases=("cms", "checkpoint-min-step"),
    )
    mem_budget: int = option(1024, help="MiB for the copies of all slots together", ge=0, aliases=("mem-budget",))
    use_checkpoints: str = option(
        "auto",
        help="undo drafts by restoring a state; auto: where nothing else can; off: nowhere, so that there are no drafts there",
        choices=("on", "off", "auto"),
        aliases=("spec-use-checkpoints",),
    )
    ckpt_num_tries: int = option(
        0,
        help="after so many restored drafts in a row a slot goes one token without; 0: any number",
        ge=0,
        aliases=("spec-ckpt-num-tries",),
    )


@define(eq=False)
class _Slot:
    """One slot's state: copies by how many tokens of its text they have taken in, rising, and what its passes save."""

    copies: dict[int, bytes] = Factory(dict)
    tail: int = 0  # where in the text a copy is wanted at any distance; 0: nowhere
    saved: int | None = None  # tokens that the state has taken in which a pass saved last; None: there is none
    n_fed: int = 0  # tokens of the pass that goes on
    is_behind: bool = False  # the state has taken in other tokens than the slot keeps
    n_restored: int = 0  # drafts in a row that were restored


class Checkpoints(Contiguous):
    """Slots whose texts share a recurrent state, and go back where a draft was rejected or another text begins."""

    name = "checkpoints"
    options_class = CheckpointOptions
    options: CheckpointOptions

    def __init__(self, options: CheckpointOptions, spec: StateSpec, states: SlotStates) -> None:
        super().__init__(options, spec, states)
        self._at = [_Slot() for _ in range(spec.n_slots)]
        self._keeps_aside = spec.can_keep_aside and options.use_checkpoints != "on"
        self.replays_accepted = not self._keeps_aside
        self._may_draft = self._keeps_aside or options.use_checkpoints != "off"
        self._n_copies = options.ctx_checkpoints
        self._log = get_logger("augury.plugins.memory.checkpoints")
        if not self._may_draft:
            self._log.warning("nothing is drafted: the backend cannot undo drafts, and use_checkpoints is off")

    @classmethod
    def suitable(cls, spec: StateSpec) -> str | None:
        return None if spec.n_bytes_per_sequence else "the model has no recurrent state to go back to; take contiguous"

    def open(self, tokens: np.ndarray, *, may_reuse: bool, slot: int | None = None, variant: str = "") -> Opened | None:
        opened = super().open(tokens, may_reuse=may_reuse, slot=slot, variant=variant)
        if opened is not None:
            at = self._at[opened.slot]
            at.tail = at.n_restored = 0
            try:
                self._copy(opened.slot, is_wanted=True)
            except BaseException:
                self._slots[opened.slot].is_free = True
                raise
        return opened

    def chunk(self, slot: int, n: int, n_left: int) -> int:
        state, at = self._slots[slot], self._at[slot]
        if n_left >= _SHORTEST and self._n_copies:
            at.tail = state.n + n_left - _TAIL
        return min(n, at.tail - state.n) if state.n < at.tail else n

    def draft_room(self, slot: int) -> int:
        tries = self.options.ckpt_num_tries
        may_draft = self._may_draft and not (tries and self._at[slot].n_restored >= tries)
        return super().draft_room(slot) if may_draft else 0

    def prepare(self, slot: int, n_certain: int, n_drafted: int) -> Reservation:
        reservation, state, at = super().prepare(slot, n_certain, n_drafted), self._slots[slot], self._at[slot]
        if self._keeps_aside:
            return Reservation(reservation.mark, accepted=reservation.accepted, keeps_aside=True)
        mark, replay = reservation.mark, ()
        restore = at.is_behind and mark > 0  # a pass that starts at 0 starts from an empty state
        if restore:
            assert at.saved is not None
            mark, replay = at.saved, tuple(state.tokens[at.saved : state.n].tolist())
        at.n_fed = len(replay) + n_certain + n_drafted
        return Reservation(mark, replay=replay, restore=restore, save=len(replay) + n_certain if n_drafted else None)

    def commit(self, slot: int, reservation: Reservation, tokens: np.ndarray, path: np.ndarray | None = None) -> None:
        state, at = self._slots[slot], self._at[slot]
        n_certain = state.n_certain or 0
        super().commit(slot, reservation, tokens, path)
        if self._keeps_aside:
            cells = range(n_certain, len(tokens)) if path is None else path[n_certain:].tolist()
            state.accepted = tuple((reservation.mark + cell, reservation.mark + i) for i, cell in enumerate(cells, n_certain))
        else:
            state.accepted = ()
            at.is_behind = len(tokens) < at.n_fed
            if reservation.save is not None:
                at.saved = reservation.mark + reservation.save
            if n_certain:  # or it was a drafter's own pass
                at.n_restored = at.n_restored + 1 if at.is_behind else 0
        self._copy(slot)

    def save(self, slot: int) -> bytes:
        """See `MemoryManager.save`; copies along the text are saved, too."""
        copies = self._at[slot].copies
        return super().save(slot) + join_parts(part for n, data in copies.items() for part in (n.to_bytes(8), data))

    def restore(self, slot: int, data: bytes) -> int:
        n = super().restore(slot, data)
        parts = split_parts(data)[3:]
        self._at[slot] = _Slot()
        for at, states in zip(parts[::2], parts[1::2], strict=True):
            self._keep(slot, int.from_bytes(at), states)
        return n

    def copies(self, slot: int) -> Mapping[int, bytes]:
        """See `MemoryManager.copies`: the state as it stands is one."""
        n, found = self._taken_in(slot), dict(self._at[slot].copies)
        if n and n not in found and self._n_copies:
            found[n] = self.states.save(slot, 0)
        return found

    def adopt(self, slot: int, tokens: np.ndarray, copies: Mapping[int, bytes]) -> None:
        super().adopt(slot, tokens, copies)
        self._at[slot] = _Slot(_up_to(self._at[slot].copies, min(copies, default=0) - 1))
        for n, data in sorted(copies.items()):
            self._keep(slot, n, data)

    def _n_in_place(self, slot: int) -> int:
        if (n := self._taken_in(slot)) is None:
            raise UnsupportedError(f"the state of slot {slot} is not that of its text before a next pass; save it after one")
        return n

    def _taken_in(self, slot: int) -> int | None:
        """How many tokens of its text a slot's state has taken in; None where it has taken in others."""
        state = self._slots[slot]
        return None if self._at[slot].is_behind else state.n - len(state.accepted)

    def _reusable(self, slot: int, n: int) -> int:
        state, at, taken_in = self._slots[slot], self._at[slot], self._taken_in(slot)
        if n >= state.n or (taken_in is not None and n >= taken_in):
            return min(n, state.n)
        return max((each for each in (at.saved or 0, *at.copies) if each <= n), default=0)

    def _shareable(self, slot: int, n: int) -> int:
        return max(_up_to(self._at[slot].copies, n), default=0)

    def _share(self, source: int, target: int, n: int) -> int:
        data = self._at[source].copies[n]
        if n := super()._share(source, target, n):
            self.states.restore(target, data)
            self._keep(target, n, data)
        return n

    def _cut(self, slot: int, n: int) -> None:
        taken_in = self._taken_in(slot)
        if n < self._slots[slot].n and (taken_in is None or n < taken_in):
            self._go_back(slot, n)
        super()._cut(slot, n)

    def _go_back(self, slot: int, n: int) -> None:
        """Roll a slot's state back to the first n tokens, of which there is a copy; later copies are forgotten."""
        at = self._at[slot]
        at.copies = _up_to(at.copies, n)
        if at.saved is not None and at.saved > n:
            at.saved = None
        at.is_behind = False
        if n in at.copies:
            self.states.restore(slot, at.copies[n])
        elif n:
            assert at.saved == n
            at.is_behind = True

    def _after_failure(self, slot: int) -> None:
        """The state is unknown, like the one that the pass saved."""
        at = self._at[slot]
        at.saved = None
        n = max(at.copies, default=0)
        self._go_back(slot, n)
        super()._cut(slot, n)

    # Copies

    def _copy(self, slot: int, *, is_wanted: bool = False) -> None:
        """Copy a slot's state, if it stands where a copy is wanted, and the last one is far enough."""
        at, n = self._at[slot], self._taken_in(slot)
        last = max(at.copies, default=0)
        if n is None or n <= last or not self._n_copies:
            return
        if is_wanted or n == at.tail or n - last >= self.options.checkpoint_min_step:
            try:
                data = self.states.save(slot, 0)
            except UnsupportedError as error:
                self._n_copies = 0
                self._log.warning("no checkpoints are kept along texts, which are recomputed instead", reason=str(error))
                return
            self._keep(slot, n, data)

    def _keep(self, slot: int, n: int, data: bytes) -> None:
        if self._n_copies and self._make_room(slot, n, len(data)):
            self._at[slot].copies[n] = data

    def _make_room(self, slot: int, n: int, n_bytes: int) -> bool:
        """Let copies go until one of a slot's first n tokens fits; false where it is too large by itself."""
        budget = self.options.mem_budget * _MIB
        if n_bytes > budget:
            self._n_copies = 0
            facts = {"n_bytes": n_bytes, "mem_budget": self.options.mem_budget}
            self._log.warning("no checkpoints are kept along texts: one is larger than mem_budget, in MiB", **facts)
            return False
        while len(self._at[slot].copies) >= self._n_copies:
            self._evict([slot], n, "ctx_checkpoints")
        while self._n_copied + n_bytes > budget:
            self._evict(range(self.spec.n_slots), n, "mem_budget")
        return True

    def _evict(self, slots: Iterable[int], n: int, limit: str) -> None:
        """Let that copy go, of some slots, that saves least recomputing."""

        def saves(slot: int, i: int) -> float:
            places = [0, *self._at[slot].copies, max(n, self._slots[slot].n)]
            return (places[i + 1] - places[i]) * (places[i + 2] - places[i + 1]) / places[-1]

        slot, i = min(((slot, i) for slot in slots for i in range(len(self._at[slot].copies))), key=lambda at: saves(*at))
        position = [*self._at[slot].copies][i]
        n_bytes = len(self._at[slot].copies.pop(position))
        self._log.info("a checkpoint gives way", slot=slot, position=position, n_bytes=n_bytes, limit=limit)

    @property
    def _n_copied(self) -> int:
        return sum(len(data) for at in self._at for data in at.copies.values())

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self.spec.n_slots * self.spec.n_bytes_per_sequence + self._n_copied

    def memory_table(self) -> Sequence[Allocation]:
        most = self.spec.n_slots * self._n_copies * self.spec.n_bytes_per_sequence
        return [Allocation("checkpoints, at most", min(most, self.options.mem_budget * _MIB))]


def _up_to(copies: Mapping[int, bytes], n: int) -> dict[int, bytes]:
    """The copies of the first n tokens at most."""
    return {each: data for each, data in copies.items() if each <= n}
