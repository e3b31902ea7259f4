"""`check_memory_manager`: the conformance suite of memory managers.

A manager is driven through the engine's `Context`, on models whose logits show every slip of memory. The contracts are those of
every memory manager; `augury.plugin.MemoryManager` says the same at its methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.batch import SlotInput
from augury.engine.context import EngineContext
from augury.errors import AuguryError, CapacityError, UnsupportedError
from augury.interfaces import MemoryManager
from augury.options import build
from augury.registry import Registry
from augury.testing.contract import Check, Checks, Contract, ContractError, require_hypothesis, try_examples
from augury.testing.toy_model import ToyModel, ToyRecurrentModel
from augury.testing.toys import registry_with_toys
from augury.types import Draft

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

_MANAGER = "augury.plugin.MemoryManager"
OPEN = Contract(
    "`open` gives a free slot to a request, the one that is named if one is, or None while all are taken.", f"{_MANAGER}.open"
)
REUSE = Contract(
    "Reused are tokens that begin the prompt, never all of it, and none of or by a request that forbids it.", f"{_MANAGER}.open"
)
CAPACITY = Contract("What does not fit is a CapacityError and changes nothing.", f"{_MANAGER}.prepare")
ROOM = Contract("`room` is what still fits after what a slot keeps, and `prepare` of as much works.", f"{_MANAGER}.room")
CHUNK = Contract("`chunk` takes some of a prompt's next tokens, 1 at least.", f"{_MANAGER}.chunk")
RESERVATION = Contract("A pass starts at `mark`, with what is kept after that in `replay`.", "augury.plugin.Reservation")
STATE = Contract(
    "Whatever was accepted, undone, moved or reused, a slot holds the text of its request and nothing else.",
    f"{_MANAGER}.commit",
)
TRUNCATE = Contract("`truncate` keeps at most what it is asked for, and says how much.", f"{_MANAGER}.truncate")
SUITABLE = Contract("A memory manager suits some kind of state, and says of the others why not.", f"{_MANAGER}.suitable")
BYTES = Contract("`n_bytes` covers what the slots keep.", f"{_MANAGER}.n_bytes")
ERROR = Contract("A memory manager raises CapacityErrors alone.", _MANAGER)


@frozen(eq=False)
class Guess:
    """One slot's draft in a round, and its fate."""

    draft: Draft  # a chain or a tree
    n_right: int  # how many of a path's are accepted; a tree's path takes the last branch each time
    own: int  # the token that the target chooses itself


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


_N_CTX = 24
MEMORY_CHECKS = Checks()
_KINDS = ("open", "round", "round", "round", "ahead", "truncate", "end", "save", "load", "fail")  # of events
_MODELS: Mapping[str, Callable[..., ToyModel]] = {
    "a KV cache": ToyModel,
    "a recurrent state": ToyRecurrentModel,
    "both": partial(ToyRecurrentModel, is_hybrid=True),
    "both, with nothing kept aside": partial(ToyRecurrentModel, is_hybrid=True, can_keep_aside=False),
}


@frozen(eq=False)
class MemorySubject:
    """A memory manager with options."""

    manager: type[MemoryManager]
    options: Any

    @property
    def kinds(self) -> list[str]:
        """The states of models that it suits."""
        reasons = {kind: self.manager.suitable(model().state_spec) for kind, model in _MODELS.items()}
        if None not in reasons.values() or not all(reason is None or isinstance(reason, str) for reason in reasons.values()):
            raise SUITABLE.broken(self.manager.name, f"{reasons}")
        return [kind for kind, reason in reasons.items() if reason is None]

    def driven(self, n_slots: int, kind: str) -> DrivenMemory:
        """A new one, with a model."""
        make = partial(self.manager, self.options)
        return DrivenMemory(make, _MODELS[kind](n_slots=n_slots, n_ctx=_N_CTX), f"{self.manager.name} with {kind}")


@MEMORY_CHECKS.add
def full_slots(subject: MemorySubject) -> None:
    """Fills slots to the last position, and no further."""
    for kind in subject.kinds:
        memory = subject.driven(2, kind)
        memory.open([*range(16), *range(_N_CTX - 15)], may_reuse=True, chunk=8)
        memory.open([1] * _N_CTX, may_reuse=True, chunk=5)
        memory.open([2] * (_N_CTX - 6), may_reuse=True, chunk=99)
        memory.open([3], may_reuse=True, chunk=1)  # there is no slot for it
        for _ in range(8):
            memory.round({slot: Guess(Draft([1, 2, 3]), 1, 0) for slot in sorted(memory.texts)})
        for _ in range(2):
            memory.open([1] * _N_CTX, may_reuse=True, chunk=7)


@MEMORY_CHECKS.add
def tree_then_reuse(subject: MemorySubject) -> None:
    """Reuses what a tree left behind in its place."""
    tree = Guess(Draft([3, 4, 5, 6, 7], [-1, -1, 1, 1, 3]), n_right=9, own=8)  # its path is 4, 6, 7
    for kind, ends in product(subject.kinds, ("end", "fail")):
        memory = subject.driven(1, kind)
        memory.open([1, 2], may_reuse=True, chunk=8)
        memory.round({0: tree})
        getattr(memory, ends)(0)
        memory.open([*memory.past[-1], 9], may_reuse=True, chunk=8)
        memory.round({0: tree})
        memory.ahead(0)
        memory.round({0: tree})


@MEMORY_CHECKS.add
def private_texts(subject: MemorySubject) -> None:
    """Keeps private texts from other requests."""
    for kind, n_slots in product(subject.kinds, (1, 2)):
        memory, prompt = subject.driven(n_slots, kind), [*range(16)]
        memory.open(prompt, may_reuse=False, chunk=9)
        if n_slots == 1:
            memory.end(0)
        memory.open(prompt, may_reuse=True, chunk=8, n_known=0)


@MEMORY_CHECKS.add
def any_script(subject: MemorySubject) -> None:
    """Holds the texts of its slots under any script.

    Requests share prefixes, and rounds go over any slots, with chains and trees, failures and ends.
    """
    from hypothesis import strategies as st

    kinds = subject.kinds

    def run(data: DataObject) -> None:
        memory = subject.driven(data.draw(st.integers(1, 3)), data.draw(st.sampled_from(kinds)))
        for _ in range(data.draw(st.integers(1, 14))):
            kind = data.draw(st.sampled_from(_KINDS if memory.texts else ("open", "open", "load")))
            if kind == "open":
                _open(memory, data)
            elif kind == "load":
                memory.load()
            elif kind == "round":
                asked = data.draw(st.lists(st.sampled_from(sorted(memory.texts)), min_size=1, unique=True))
                memory.round({slot: data.draw(_guesses()) for slot in asked})
            else:
                getattr(memory, kind)(data.draw(st.sampled_from(sorted(memory.texts))))

    try_examples(80, run, data=st.data())


def _open(memory: DrivenMemory, data: DataObject) -> None:
    from hypothesis import strategies as st

    tails = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    known = data.draw(st.sampled_from(memory.past))
    prompt = [*known[: data.draw(st.integers(0, len(known)))], *data.draw(tails)]
    chunk, slot = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([None, *memory.free_slots]))
    memory.open(prompt, may_reuse=data.draw(st.booleans()), chunk=chunk, slot=slot)


def _guesses() -> SearchStrategy[Guess]:
    from hypothesis import strategies as st

    def drafts(tokens: list[int]) -> SearchStrategy[Draft]:
        tree = st.tuples(*(st.integers(-1, i - 1) for i in range(len(tokens)))).map(list)
        return st.builds(Draft, st.just(tokens), st.one_of(st.none(), tree))

    tokens = st.lists(st.integers(0, 3), max_size=5)
    return st.builds(Guess, tokens.flatmap(drafts), st.integers(0, 5), st.integers(0, 3))


def check_memory_manager(
    manager: type[MemoryManager] | str,
    options: Mapping[str, Any] | None = None,
    *,
    registry: Registry | None = None,
    checks: Iterable[Check] = MEMORY_CHECKS,
) -> None:
    """Prove that a memory manager keeps its contracts, by any script of requests, rounds, drafts, trees, failures and ends.

    It is tried with toy models of every kind of state that it suits. For the rest see `augury.testing`.

    >>> check_memory_manager("contiguous")
    """
    require_hypothesis()
    found = (registry or registry_with_toys()).find("memory", manager)
    subject = MemorySubject(found, build(found.options_class, options or {}, found.name))
    for check in checks:
        check.run(subject)
