"""Drives a memory manager as the engine's loop does, on a model whose logits show every slip of memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field, frozen

from augury.batch import Batch
from augury.errors import AuguryError, CapacityError
from augury.testing.memory import contract
from augury.testing.toy_model import ToyModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from augury.batch import Step
    from augury.interfaces import MemoryManager
    from augury.testing.contract import Contract, ContractError

__all__ = ["DrivenMemory", "Guess"]


@frozen
class Guess:
    """One slot's draft in a round, and what becomes of it.

    Attributes:
        tokens: Proposed ones.
        parents: Of a tree, see `Draft`; None for a chain.
        n_right: How many of a path's are accepted; a tree's path takes the last branch each time.
        own: The token that the target chooses itself.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None
    n_right: int
    own: int

    @property
    def path(self) -> list[int]:
        """Which of the tokens are accepted, rising."""
        if self.parents is None:
            return list(range(min(self.n_right, len(self.tokens))))
        path: list[int] = []
        while len(path) < self.n_right:
            children = [i for i, parent in enumerate(self.parents) if parent == (path[-1] if path else -1)]
            if not children:
                break
            path.append(children[-1])
        return path


@define(eq=False)
class Share:
    """One slot's part of a pass: tokens after what is replayed, each with the place of its parent among them."""

    slot: int
    step: Step
    tokens: list[int]
    parents: list[int]
    texts: list[list[int]] = field(factory=list)  # that the logits must be of


class DrivenMemory:
    """A memory manager, its model, and what its slots ought to hold."""

    def __init__(self, make: Callable[[Any, Any], MemoryManager], *, n_slots: int, n_ctx: int, name: str) -> None:
        self.model = ToyModel(n_slots=n_slots, n_ctx=n_ctx)
        self.texts: dict[int, list[int]] = {}  # of open slots; the last token is not in memory yet
        self.past: list[list[int]] = [[]]
        self._name = name
        self._journal: deque[str] = deque(maxlen=10)
        self._memory = self._call("construction", make, self.model.state_spec, self.model)

    def open(self, prompt: Sequence[int], *, may_reuse: bool, chunk: int) -> None:
        """Begin a request: take a slot, and process the prompt in chunks."""
        told = f"open of {list(prompt)}{'' if may_reuse else ', no reuse'}"
        n_ctx, n_slots = self.model.state_spec.n_ctx, self.model.state_spec.n_slots
        tokens = np.array(prompt, np.int32)
        if len(prompt) > n_ctx and len(self.texts) < n_slots:
            self._refused(told, lambda: self._memory.open(tokens, may_reuse=may_reuse))
            return
        opened = self._call(told, lambda: self._memory.open(tokens, may_reuse=may_reuse))
        if opened is None or opened.slot in self.texts or not 0 <= opened.slot < n_slots:
            if opened is None and len(self.texts) == n_slots:
                return
            seen = f"{opened} with slots {sorted(self.texts)} of {n_slots} taken"
            raise self._broken(contract.OPEN, seen)
        if not 0 <= opened.n_reused < len(prompt) or (opened.n_reused and not may_reuse):
            raise self._broken(contract.REUSE, f"{opened.n_reused} of {len(prompt)} tokens")
        for start in range(opened.n_reused, len(prompt), chunk):
            part = list(prompt[start : start + chunk])
            share = self._share(opened.slot, list(prompt[:start]), part, list(range(-1, len(part) - 1)))
            self._pass([share])
            self._commit(share, part, None)
        self.texts[opened.slot] = [*prompt, 1]

    def round(self, guesses: dict[int, Guess]) -> None:
        """One pass over several slots, each with its draft; slots without room end."""
        shares = {}
        for slot, guess in guesses.items():
            room = self._room(slot)
            if room < 1:
                self.end(slot)
                continue
            n = min(len(guess.tokens), room - 1)
            text = self.texts[slot]
            parents = [-1, *(parent + 1 for parent in (guess.parents or range(-1, n - 1))[:n])]
            shares[slot] = self._share(slot, text[:-1], [text[-1], *guess.tokens[:n]], parents)
        self._pass(list(shares.values()))
        for slot, share in shares.items():
            guess = guesses[slot]
            path = [place for place in guess.path if place + 1 < len(share.tokens)]
            places = [0, *(place + 1 for place in path)]
            kept = [share.tokens[place] for place in places]
            n_replayed = len(share.step.replay)
            whole = [*range(n_replayed), *(n_replayed + place for place in places)]
            self._commit(share, kept, None if guess.parents is None else whole)
            self.texts[slot] += [*kept[1:], guess.own]

    def fail(self, slot: int) -> None:
        """A pass that is not committed, as where a backend raises; the request ends."""
        if self._room(slot) >= 1:
            self._pass([self._share(slot, self.texts[slot][:-1], self.texts[slot][-1:], [-1])])
        self.end(slot)

    def end(self, slot: int) -> None:
        """End a request."""
        self._call(f"end of slot {slot}", lambda: self._memory.end(slot))
        self.past.append(self.texts.pop(slot))

    def _room(self, slot: int) -> int:
        n_kept, n_ctx = len(self.texts[slot]) - 1, self.model.state_spec.n_ctx
        room = int(self._call(f"room of slot {slot}", lambda: self._memory.room(slot)))
        if not 0 <= room <= n_ctx - n_kept:
            raise self._broken(contract.ROOM, f"{room} with {n_kept} of {n_ctx} positions taken")
        self._refused(f"prepare of {room + 1}", lambda: self._memory.prepare(slot, room + 1, 0))
        if self._memory.n_bytes < n_kept * self.model.state_spec.n_bytes_per_position:
            raise self._broken(contract.BYTES, f"{self._memory.n_bytes} bytes for {n_kept} tokens")
        return room

    def _share(self, slot: int, kept: list[int], tokens: list[int], parents: list[int]) -> Share:
        told = f"prepare of {len(tokens)} in slot {slot}"
        step = self._call(told, lambda: self._memory.prepare(slot, len(tokens), 0))
        if not 0 <= step.mark <= len(kept) or list(step.replay) != kept[step.mark :]:
            raise self._broken(contract.STEP, f"{step} where {kept} is kept")
        share = Share(slot, step, tokens, parents)
        for token, parent in zip(tokens, parents, strict=True):
            share.texts.append([*(share.texts[parent] if parent >= 0 else kept), token])
        return share

    def _pass(self, shares: list[Share]) -> None:
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        rows: list[int] = []
        accepted: list[tuple[int, int, int]] = []
        for share in shares:
            first, n_replayed = len(tokens), len(share.step.replay)
            tokens += [*share.step.replay, *share.tokens]
            slots += [share.slot] * (n_replayed + len(share.tokens))
            positions += [*range(share.step.mark, share.step.mark + n_replayed), *(len(text) - 1 for text in share.texts)]
            chain = [first + i - 1 if i else -1 for i in range(n_replayed)]
            root = first + n_replayed - 1 if n_replayed else -1
            parents += [*chain, *(first + n_replayed + parent if parent >= 0 else root for parent in share.parents)]
            rows += range(first + n_replayed, len(tokens))
            accepted += [(share.slot, *pair) for pair in share.step.accepted]
        if not shares:
            return
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            slots=np.array(slots, np.int32),
            positions=np.array(positions, np.int32),
            rows=np.array(rows, np.int32),
            parents=np.array(parents, np.int32),
            accepted=np.array(accepted, np.int32) if accepted else None,
        )
        try:
            logits = self.model.forward(batch).rows()
        except (AuguryError, IndexError) as error:
            raise self._broken(contract.STATE, str(error)) from error
        expected = [self.model.logits(np.array(text)).astype(np.float32) for share in shares for text in share.texts]
        for row, right, text in zip(logits, expected, (text for share in shares for text in share.texts), strict=True):
            if not np.array_equal(row, right):
                raise self._broken(contract.STATE, f"other states than those of {text}")

    def _commit(self, share: Share, kept: list[int], path: list[int] | None) -> None:
        tokens = np.array([*share.step.replay, *kept], np.int32)
        places = None if path is None else np.array(path, np.int32)
        told = f"commit of {tokens.tolist()} to slot {share.slot}{'' if path is None else f', path {path}'}"
        self._call(told, lambda: self._memory.commit(share.slot, share.step, tokens, places))

    def _refused(self, told: str, call: Callable[[], Any]) -> None:
        self._journal.append(told)
        try:
            result = call()
        except CapacityError:
            return
        except Exception as error:
            raise self._broken(contract.ERROR, f"{type(error).__name__}: {error}") from error
        raise self._broken(contract.CAPACITY, f"{result}")

    def _call(self, told: str, call: Callable[..., Any], *args: Any) -> Any:
        self._journal.append(told)
        try:
            return call(*args)
        except Exception as error:
            raise self._broken(contract.ERROR, f"{type(error).__name__}: {error}") from error

    def _broken(self, promise: Contract, seen: str) -> ContractError:
        return promise.broken(self._name, f"{seen}, after: {'; '.join(self._journal)}")
