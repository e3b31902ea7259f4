"""The common part of `ngram-map-k` and `ngram-map-k4v`: keys, and how far their drafts were right."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from attrs import define

from augury.interfaces import Drafter, Session
from augury.types import Draft, Verdict


@define
class Continuation:
    """The continuation of a key."""

    bound: int  # tokens of it that were accepted when it was last drafted; m before
    n_counted: int = 0


class NgramMap(Drafter):
    """Looks up the last n tokens, the key, and drafts its continuation as far as it was right the last time.

    Its knowledge lives as long as the request.
    """

    scope = "request"

    def __init__(self, options: Any, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.first_table import NgramFirstTable

        self._table = NgramFirstTable(options.n, options.m)
        self._drafted: Continuation | None = None

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Index the prompt. The slot's previous text may differ, so everything starts anew."""
        self._table.clear(history[:-1])
        self._forget()

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Propose the key's continuation, as far as it is trusted."""
        n, m = self.options.n, self.options.m
        self._drafted = None
        text = history[:-1]  # llama.cpp keeps the token just sampled apart, and counts without it
        if len(text) < 2 * n + m:
            return Draft()
        key = history[-n:]
        start = self._table.find(text, key)
        if not start:
            return Draft()
        self._drafted = self._continuation(text, key.tobytes(), start)
        if self._drafted is None:
            return Draft()
        return Draft(text[start + n : start + n + min(self._drafted.bound, limit)])

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Remember how far the draft was right; one that was cut and right throughout says nothing new."""
        drafted, self._drafted = self._drafted, None
        if drafted is None or not verdict.is_used:
            return
        if verdict.n_accepted < verdict.n_offered or verdict.n_offered >= drafted.bound:
            drafted.bound = verdict.n_accepted

    @abstractmethod
    def _forget(self) -> None:
        """Drop the knowledge about keys."""

    @abstractmethod
    def _continuation(self, text: np.ndarray, key: bytes, start: int) -> Continuation | None:
        """The continuation of `key` in `text`, found at `start`; None if that is not worth a draft."""
