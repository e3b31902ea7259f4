"""Plugins at their worst: drafters that raise, return what is no draft and write where they must not; observers that fail."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
from attrs import frozen

from augury import Draft, Drafter, hookimpl
from augury.interfaces import DrafterTraits
from augury.options import option

ERRORS = (RuntimeError, ValueError, MemoryError, RecursionError, StopIteration, AssertionError, SystemExit, KeyboardInterrupt)


NONSENSE = (
    lambda *_: None,
    lambda *_: [1, 2],
    lambda *_: "a draft",
    lambda *_: Draft([0.5, 1.5]),
    lambda *_: Draft([-1]),
    lambda *_: Draft([1, -5, 1]),
    lambda _history, _limit, n_vocab: Draft([n_vocab]),
    lambda _history, _limit, n_vocab: Draft([1, n_vocab, 1]),
    lambda *_: Draft([2**31 - 1]),
    lambda _history, limit, _n_vocab: Draft([1] * (5 * limit + 3)),
    lambda *_: Draft([1, 2, 3], parents=[2, 0, 1]),
    lambda *_: Draft([1, 2], parents=[0, 1]),
    lambda *_: Draft([1, 2], parents=[-2, -1]),
    lambda *_: Draft([1, 2], parents=[-1]),
    lambda _history, _limit, n_vocab: Draft([1], probabilities=np.full((1, n_vocab), np.nan, np.float32)),
    lambda *_: Draft([1], probabilities=np.zeros((3, 2))),
    lambda *_: object(),
)


@frozen
class HostileOptions:
    """How a hostile drafter fails."""

    seed: int = option(0, help="of what it does")
    rate: float = option(0.02, help="chance of a fault at each call", ge=0, le=1)


class Hostile(Drafter):
    """Drafts what followed the text's last token before, and at random moments does what no drafter may."""

    name = "hostile"
    options_class = HostileOptions
    n_faults = 0  # of all together

    def __init__(self, options, session):
        super().__init__(options, session)
        self._rng = random.Random(options.seed * 1009 + session.slot)
        self._drafts = []

    def _fails(self, where):
        if self._rng.random() >= self.options.rate:
            return False
        Hostile.n_faults += 1
        if self._rng.random() < 0.5:
            raise self._rng.choice(ERRORS)(f"planted in {where}")
        return True

    def begin(self, history, n_reused):
        self._write(history)
        if self._fails("begin"):
            return self._rng.choice([3, self._steps()])
        return None

    def _steps(self):
        yield
        raise RuntimeError("planted in a step of begin")

    def draft(self, history, limit):
        self._write(history)
        if self._fails("draft"):
            if self._rng.random() < 0.3:
                self._pass(len(history))
            return self._rng.choice(NONSENSE)(history, limit, self.session.model.n_vocab)
        before = np.flatnonzero(history[:-1] == history[-1])
        if not len(before):
            return Draft()
        draft = Draft(history[before[-1] + 1 :][:limit])
        if self.options.rate and self._rng.random() < 0.2:
            self._drafts.append(draft)
            threading.Timer(self._rng.random() * 1e-3, self._change, (draft,)).start()
        return draft

    @classmethod
    def draft_together(cls, asks):
        asks[0].drafter._fails("draft_together")
        return super().draft_together(asks)

    def teacher_forced(self, history, n):
        return (
            self._rng.choice([[1] * n, "n", np.full(n + 1, 1)]) if self._fails("teacher_forced") else np.full(n, -1, np.int32)
        )

    def accept(self, history, verdict):
        self._write(history)
        if self._fails("accept"):
            time.sleep(self._rng.random() * 0.02)

    def end(self):
        self._fails("end")

    def _pass(self, n):
        """A pass of which everything is wrong in some way."""
        bad = self._rng.choice([-1, 2**31 - 1, n, 10**6])
        slot, token = (self._rng.choice([bad, 0, n]) for _ in range(2))
        self.session.target.forward({slot: np.array([token])}, self._rng.choice([None, 0, 1, -1, 99]))

    def _write(self, history):
        if self.options.rate:
            for write in (lambda: history.setflags(write=True), lambda: history.base.setflags(write=True)):
                try:
                    write()
                    history[:] = 0
                except (ValueError, AttributeError):
                    pass

    def _change(self, draft):
        for array in (draft.tokens, draft.tokens.base):
            try:
                array.setflags(write=True)
                array[:] = 0
            except (ValueError, AttributeError):
                pass


class HostileModel(Hostile):
    """The same as something that a planner counts as costly."""

    name = "hostile-model"
    traits = DrafterTraits(is_costly=True)


class Plugins:
    """The plugin that offers them; its observers fail, too."""

    @hookimpl
    def augury_drafters(self):
        return [Hostile, HostileModel]

    @hookimpl
    def augury_round_done(self, round):  # noqa: A002 - the hook's word
        if round.n_tokens % 17 == 0:
            raise RuntimeError("planted in augury_round_done")
