"""Drives a memory manager through the engine's `Context`, on models whose logits show every slip of memory.

The contracts are those of every memory manager; `augury.plugin.MemoryManager` says the same at its methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
from attrs import frozen

from augury.batch import SlotInput
from augury.engine.context import EngineContext
from augury.errors import AuguryError, CapacityError, UnsupportedError
from augury.interfaces import MemoryManager
from augury.testing.contract import Contract, ContractError
from augury.testing.toy_model import ToyModel
from augury.types import Draft

OPEN = Contract(
    "`open` gives a free slot to a request, the one that is named if one is, or None while all are taken.",
    "augury.plugin.MemoryManager.open",
)
REUSE = Contract(
    "Reused are tokens that begin the prompt, never all of it, and none of or by a request that forbids it.",
    "augury.plugin.MemoryManager.open",
)
CAPACITY = Contract("What does not fit is a CapacityError and changes nothing.", "augury.plugin.MemoryManager.prepare")
ROOM = Contract(
    "`room` is what still fits after what a slot keeps, and `prepare` of as much works.", "augury.plugin.MemoryManager.room"
)
CHUNK = Contract("`chunk` takes some of a prompt's next tokens, 1 at least.", "augury.plugin.MemoryManager.chunk")
RESERVATION = Contract("A pass starts at `mark`, with what is kept after that in `replay`.", "augury.plugin.Reservation")
STATE = Contract(
    "Whatever was accepted, undone, moved or reused, a slot holds the text of its request and nothing else.",
    "augury.plugin.MemoryManager.commit",
)
TRUNCATE = Contract("`truncate` keeps at most what it is asked for, and says how much.", "augury.plugin.MemoryManager.truncate")
SUITABLE = Contract(
    "A memory manager suits some kind of state, and says of the others why not.", "augury.plugin.MemoryManager.suitable"
)
BYTES = Contract("`n_bytes` covers what the slots keep.", "augury.plugin.MemoryManager.n_bytes")
ERROR = Contract("A memory manager raises CapacityErrors alone.", "augury.plugin.MemoryManager")


@frozen(eq=False)
class Guess:
    """One slot's draft in a round, and its fate.

    Attributes:
        draft: A chain or a tree.
        n_right: How many of a path's are accepted; a tree's path takes the last branch each time.
        own: The token that the target chooses itself.
    """

    draft: Draft
    n_right: int
    own: int


class DrivenMemory:
    """A memory manager, its model, and the expected contents of its slots."""

    def __init__(self, make: Callable[[Any, Any], MemoryManager], model: ToyModel, name: str) -> None:
        self.texts: dict[int, list[int]] = {}  # of open slots; the last token is not in memory yet
        self.past: list[list[int]] = [[]]
        self._kept: dict[int, list[int]] = {}  # of slots in a pass
        self._saved: list[bytes] = []
        self._logits = cache(lambda text: model.logits(np.array(text)).astype(np.float32))
        self._name = name
        self._journal: deque[str] = deque(maxlen=10)
        self._memory = self._call("construction", make, model.state_spec, model)
        self._context = EngineContext(model, self._memory)

    def open(
        self, prompt: Sequence[int], *, may_reuse: bool, chunk: int, slot: int | None = None, n_known: int | None = None
    ) -> None:
        """Begin a request: take a slot, and process the prompt in chunks; at most `n_known` of its tokens may be reused."""
        event = f"open of {list(prompt)}{'' if may_reuse else ', no reuse'}{'' if slot is None else f', slot {slot}'}"
        n_ctx, n_slots = self._context.spec.n_ctx, self._context.spec.n_slots
        tokens = np.array(prompt, np.int32)
        if len(prompt) > n_ctx and len(self.texts) < n_slots:
            self._refused(event, lambda: self._context.open(tokens, may_reuse=may_reuse, slot=slot))
            return
        opened = self._call(event, lambda: self._context.open(tokens, may_reuse=may_reuse, slot=slot))
        if opened is None or opened.slot in self.texts or not 0 <= opened.slot < n_slots or slot not in (None, opened.slot):
            if opened is None and len(self.texts) == n_slots:
                return
            seen = f"{opened} with slots {sorted(self.texts)} of {n_slots} taken"
            raise self._broken(OPEN, seen)
        n_most = min(len(prompt) - 1, len(prompt) if n_known is None else n_known) if may_reuse else 0
        if not 0 <= opened.n_reused <= n_most:
            raise self._broken(REUSE, f"{opened.n_reused} of {len(prompt)} tokens")
        self._go_on(opened.slot, list(prompt), opened.n_reused, chunk)
        self.texts[opened.slot] = [*prompt, 1]

    @property
    def free_slots(self) -> list[int]:
        """The slots that no request has."""
        return [slot for slot in range(self._context.spec.n_slots) if slot not in self.texts]

    def round(self, guesses: dict[int, Guess]) -> None:
        """One pass over several slots, each with its draft; slots without room end."""
        feeds = {}
        for slot, guess in guesses.items():
            room = self._room(slot)
            if room < 1:
                self.end(slot)
                continue
            draft = (guess.draft if self._context.may_branch else guess.draft.trunk()[0]).cut(room - 1)
            feeds[slot] = self._feed(slot, self.texts[slot][:-1], self.texts[slot][-1:], draft)
        self._pass(list(feeds.values()))
        for slot, feed in feeds.items():
            path = _path(feed.draft)[: guesses[slot].n_right]
            self._commit(feed, path)
            self.texts[slot] += [*feed.draft.tokens[path].tolist(), guesses[slot].own]

    def ahead(self, slot: int) -> None:
        """Passes of a drafter's own, of which nothing is kept."""
        if (room := self._room(slot)) < 1:
            return
        written = [self.texts[slot][-1], 2, 3][:room]
        for n in range(1, len(written) + 1):
            tokens = np.array(written[:n], np.int32)
            event = f"passes ahead of slot {slot} over {written[:n]}"
            rows = self._call(event, lambda tokens=tokens: self._context.forward_drafts({slot: tokens}, 1).rows())
            self._compare(rows, [[*self.texts[slot][:-1], *written[:n]]])

    def truncate(self, slot: int) -> None:
        """Cut a slot's text to a half, and feed again the tokens that were cut too much."""
        text = self.texts[slot][: (len(self.texts[slot]) + 1) // 2]
        n = self._call(f"truncate of slot {slot} to {len(text)}", self._context.truncate, slot, len(text))
        if not (isinstance(n, int) and 0 <= n <= len(text)):
            raise self._broken(TRUNCATE, f"{n} of {len(text)} tokens")
        self._go_on(slot, text, n, len(text))
        self.texts[slot] = [*text, 1]

    def fail(self, slot: int) -> None:
        """A pass that is not committed, as where a backend raises; the request ends."""
        if self._room(slot) >= 1:
            self._pass([self._feed(slot, self.texts[slot][:-1], self.texts[slot][-1:])])
        self.end(slot)

    def save(self, slot: int) -> None:
        """End a request, and save its slot; a manager that cannot is not asked again."""
        self.end(slot)
        with suppress(UnsupportedError):
            self._saved.append(self._context.save(slot))

    def load(self) -> None:
        """Restore the last saved contents to a free slot, and to one that is in use, which is refused."""
        if not self._saved:
            return
        restore = partial(self._context.restore, data=self._saved[-1])
        for slot in self.texts:
            self._refused(f"restore of slot {slot}, in use", partial(restore, slot))
        for slot in self.free_slots[:1]:
            self._call(f"restore of slot {slot}", restore, slot)

    def end(self, slot: int) -> None:
        """End a request."""
        self._call(f"end of slot {slot}", self._context.end, slot)
        self.past.append(self.texts.pop(slot))

    def _go_on(self, slot: int, text: list[int], n_held: int, chunk: int) -> None:
        """Process a text from its held tokens on."""
        start = n_held
        while start < len(text):
            n_left = len(text) - start
            n = self._call(f"chunk of slot {slot}", self._memory.chunk, slot, min(chunk, n_left), n_left)
            if not (isinstance(n, int) and 1 <= n <= min(chunk, n_left)):
                raise self._broken(CHUNK, f"{n} of {min(chunk, n_left)} tokens")
            feed = self._feed(slot, text[:start], text[start : start + n])
            self._pass([feed])
            self._commit(feed)
            start += n

    def _room(self, slot: int) -> int:
        n_kept, spec = len(self.texts[slot]) - 1, self._context.spec
        room = int(self._call(f"room of slot {slot}", self._context.room, slot))
        if not 0 <= room <= spec.n_ctx - n_kept:
            raise self._broken(ROOM, f"{room} with {n_kept} of {spec.n_ctx} positions taken")
        self._refused(f"prepare of {room + 1}", lambda: self._memory.prepare(slot, room + 1, 0))
        if self._memory.n_bytes < (needed := n_kept * spec.n_bytes_per_position + spec.n_bytes_per_sequence):
            raise self._broken(BYTES, f"{self._memory.n_bytes} bytes for {n_kept} tokens that take {needed}")
        return room

    def _feed(self, slot: int, kept: list[int], tokens: list[int], draft: Draft | None = None) -> SlotInput:
        k = 0 if draft is None else len(draft)
        event = f"prepare of {len(tokens)} and {k} drafted in slot {slot}"
        feed = self._call(event, self._context.prepare, slot, np.array(tokens, np.int32), len(tokens) + k, draft)
        reservation = feed.reservation
        if not 0 <= reservation.mark <= len(kept) or list(reservation.replay) != kept[reservation.mark :]:
            raise self._broken(RESERVATION, f"{reservation} where {kept} is kept")
        self._kept[slot] = kept
        return feed

    def _pass(self, feeds: list[SlotInput]) -> None:
        if not feeds:
            return
        try:
            rows = self._context.forward(feeds).rows()
        except (AuguryError, LookupError) as error:  # the model has nothing where it is told that something is
            raise self._broken(STATE, str(error)) from error
        self._compare(rows, [text for feed in feeds for text in self._texts_of(feed)])

    def _texts_of(self, feed: SlotInput) -> list[list[int]]:
        """The text that each row of a feed must follow."""
        texts: list[list[int]] = []
        for token in feed.tokens.tolist():
            texts.append([*(texts[-1] if texts else self._kept[feed.slot]), token])
        n = len(texts)
        parents = range(-1, len(feed.draft) - 1) if feed.draft.parents is None else feed.draft.parents.tolist()
        for token, parent in zip(feed.draft.tokens.tolist(), parents, strict=True):
            texts.append([*texts[n + parent], token])
        return texts

    def _compare(self, rows: np.ndarray, texts: list[list[int]]) -> None:
        for row, text in zip(rows, texts, strict=True):
            if not np.array_equal(row, self._logits(tuple(text))):
                raise self._broken(STATE, f"other states than those of {text}")

    def _commit(self, feed: SlotInput, path: Sequence[int] = ()) -> None:
        event = f"commit of {feed.tokens.tolist()} and {list(path)} of the draft to slot {feed.slot}"
        self._call(event, self._context.commit, feed, path)

    def _refused(self, event: str, call: Callable[[], Any]) -> None:
        self._journal.append(event)
        with suppress(CapacityError), ERROR.kept(self._name, self._before, (CapacityError,)):
            raise self._broken(CAPACITY, f"{call()}")

    def _call(self, event: str, call: Callable[..., Any], *args: Any) -> Any:
        self._journal.append(event)
        with ERROR.kept(self._name, self._before):
            return call(*args)

    def _broken(self, promise: Contract, seen: str) -> ContractError:
        return promise.broken(self._name, f"{seen}{self._before}")

    @property
    def _before(self) -> str:
        return f", after: {'; '.join(self._journal)}"


def _path(draft: Draft) -> list[int]:
    """Which tokens of a draft the text may take, rising: of a tree the last branch each time."""
    if draft.parents is None:
        return list(range(len(draft)))
    path: list[int] = []
    while children := [i for i, parent in enumerate(draft.parents.tolist()) if parent == (path[-1] if path else -1)]:
        path.append(children[-1])
    return path
