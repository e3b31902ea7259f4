"""`ngram-map-k` and `ngram-map-k4v`: a continuation of the last n tokens, as far as it was right the last time.

The last n tokens, the key, are looked up in the text before them. The draft of `ngram-map-k` is the m tokens after the first
occurrence. How many of them the target accepted bounds the next draft of the same key::

    key   draft        accepted   next draft
    a b   c d e f      c d        c d
    a b   c d          c          c

`ngram-map-k4v` counts the different m-grams after the key, the first four that turn up. One that was seen at least twice as
often as the others together is the draft, with the same bound::

    key   counted m-grams              draft
    a b   c d e f: 6, c d g h: 2       c d e f
    a b   c d e f: 3, c d g h: 2       none, neither leads

Source: llama.cpp, `common/ngram-map.cpp`, whose drafts these are to the token. Its conditions: the history is longer than
2n + m; the m tokens after the occurrence end before the token that precedes the one just sampled; and a key is looked up where
the table of `augury.drafters.ngram.index` has it. (`min_hits`, which llama.cpp accepts for `ngram-map-k`, has no effect
there.) Its ways of counting for `ngram-map-k4v`: a key is counted each time that it is looked up and found, and nothing is
drafted before `min_hits` of that; its m-grams are counted up to where the table has the key, that place again with every
look-up; and the tokens after that place are drafted, even if another m-gram leads.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from attrs import Factory, define, frozen

from augury.drafters.ngram.index import size_option
from augury.interfaces import Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft, Verdict

_MAX_CONTINUATIONS = 4
_MAX_COUNT = 16380  # llama.cpp's counts are 16 bits wide and stop here
_LEAD = 2  # times the others together


@frozen
class NgramMapKOptions:
    """Options of `ngram-map-k`."""

    n: int = size_option(12, "ngram-map-k", "n", "length of the key that is looked up")
    m: int = size_option(48, "ngram-map-k", "m", "length of a draft at most")


@frozen
class NgramMapK4vOptions:
    """Options of `ngram-map-k4v`."""

    n: int = size_option(12, "ngram-map-k4v", "n", "length of the key that is looked up")
    m: int = size_option(48, "ngram-map-k4v", "m", "length of a draft at most")
    min_hits: int = option(
        1, help="how often a key must have been found for a draft", ge=1, le=_MAX_COUNT, aliases=("spec-ngram-min-hits",)
    )


@define
class _Continuation:
    """The continuation of a key."""

    bound: int  # tokens of it that were accepted when it was last drafted; m before
    n_counted: int = 0


@define
class _Key:
    n_found: int = 0
    counted_to: int = 0
    continuations: dict[bytes, _Continuation] = Factory(dict)


class NgramMapK(Drafter):
    """Keeps for every key how far its last draft was right. Its knowledge lives as long as the request."""

    name = "ngram-map-k"
    traits = DrafterTraits(scope="request")
    options_class: ClassVar[type[Any]] = NgramMapKOptions
    options: NgramMapKOptions | NgramMapK4vOptions

    def __init__(self, options: NgramMapKOptions | NgramMapK4vOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.index import NgramFirstTable

        self._table = NgramFirstTable(options.n, options.m)
        self._bounds: dict[bytes, _Continuation] = {}  # by key
        self._drafted: _Continuation | None = None

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Index the prompt. The slot's previous text may differ, so everything starts anew."""
        self._table.clear(history[:-1])
        self._bounds.clear()

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

    def _continuation(self, text: np.ndarray, key: bytes, start: int) -> _Continuation | None:  # noqa: ARG002 - as its child's
        """The continuation of `key` in `text`, found at `start`; None if that is not worth a draft."""
        return self._bounds.setdefault(key, _Continuation(bound=self.options.m))


class NgramMapK4v(NgramMapK):
    """Keeps for every key its continuations, how often they were seen and how far their last draft was right."""

    name = "ngram-map-k4v"
    options_class = NgramMapK4vOptions
    options: NgramMapK4vOptions

    def __init__(self, options: NgramMapK4vOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.index import NgramIndex

        self._occurrences = NgramIndex(options.n)
        self._keys: dict[bytes, _Key] = {}

    def begin(self, history: np.ndarray, n_reused: int) -> None:
        super().begin(history, n_reused)
        self._keys.clear()
        self._occurrences.clear()
        self._occurrences.extend(history[:-1])

    def _continuation(self, text: np.ndarray, key: bytes, start: int) -> _Continuation | None:
        self._occurrences.extend(text)
        known = self._keys.setdefault(key, _Key())
        known.n_found = min(known.n_found + 1, _MAX_COUNT)
        if known.n_found < self.options.min_hits:
            return None
        self._count(text, known, start)
        leader = max(known.continuations.values(), key=lambda each: each.n_counted)  # of equals the first
        n_others = sum(each.n_counted for each in known.continuations.values()) - leader.n_counted
        return leader if leader.n_counted >= _LEAD * n_others else None

    def _count(self, text: np.ndarray, key: _Key, start: int) -> None:
        n, m = self.options.n, self.options.m
        for occurrence in self._occurrences.between(text, key.counted_to, start):
            tokens = text[occurrence + n : occurrence + n + m].tobytes()
            if tokens not in key.continuations:
                if len(key.continuations) == _MAX_CONTINUATIONS:
                    continue
                key.continuations[tokens] = _Continuation(bound=m)
            continuation = key.continuations[tokens]
            continuation.n_counted = min(continuation.n_counted + 1, _MAX_COUNT)
        key.counted_to = start
