"""`ngram-map-k4v`: the most frequent continuation of the last n tokens, if one clearly leads.

The last n tokens, the key, are looked up in the text before them, and the different m-grams after them are counted, the first
four that turn up. One that was seen at least twice as often as the others together is the draft, up to as many tokens as the
target accepted of it the last time::

    key   counted m-grams              draft
    a b   c d e f: 6, c d g h: 2       c d e f
    a b   c d e f: 3, c d g h: 2       none, neither leads

Source: llama.cpp, `common/ngram-map.cpp`, whose drafts these are to the token. Its conditions are those of `ngram-map-k`, and
its ways of counting: a key is counted each time that it is looked up and found, and nothing is drafted before `min_hits` of
that; its m-grams are counted up to where the table has the key, that place again with every look-up; and the tokens after that
place are drafted, even if another m-gram leads.
"""

from __future__ import annotations

import numpy as np
from attrs import Factory, define, frozen

from augury.drafters.ngram.map import Continuation, NgramMap
from augury.drafters.ngram.sizes import size_option
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session
from augury.options import option

_MAX_CONTINUATIONS = 4
_MAX_COUNT = 16380  # llama.cpp's counts are 16 bits wide and stop here
_LEAD = 2  # times the others together


@frozen
class NgramMapK4vOptions:
    """Options of `ngram-map-k4v`."""

    n: int = size_option(12, "ngram-map-k4v", "n", "length of the key that is looked up")
    m: int = size_option(48, "ngram-map-k4v", "m", "length of a draft at most")
    min_hits: int = option(
        1,
        help="how often a key must have been found for a draft",
        ge=1,
        le=_MAX_COUNT,
        aliases=("spec-ngram-min-hits",),
    )


@define
class _Key:
    n_found: int = 0
    counted_to: int = 0
    continuations: dict[bytes, Continuation] = Factory(dict)


class NgramMapK4v(NgramMap):
    """Keeps for every key its continuations, how often they were seen and how far their last draft was right."""

    name = "ngram-map-k4v"
    options_class = NgramMapK4vOptions

    def __init__(self, options: NgramMapK4vOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.occurrences import NgramOccurrences

        self._occurrences = NgramOccurrences(options.n)
        self._keys: dict[bytes, _Key] = {}

    def begin(self, history: np.ndarray, n_reused: int) -> None:
        """Index the prompt."""
        super().begin(history, n_reused)
        self._occurrences.extend(history[:-1])

    def _forget(self) -> None:
        self._occurrences.clear()
        self._keys.clear()

    def _continuation(self, text: np.ndarray, key: bytes, start: int) -> Continuation | None:
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
        """Count the m-grams after the key's occurrences up to `start`."""
        n, m = self.options.n, self.options.m
        for occurrence in self._occurrences.between(text, key.counted_to, start):
            tokens = text[occurrence + n : occurrence + n + m].tobytes()
            if tokens not in key.continuations:
                if len(key.continuations) == _MAX_CONTINUATIONS:
                    continue
                key.continuations[tokens] = Continuation(bound=m)
            continuation = key.continuations[tokens]
            continuation.n_counted = min(continuation.n_counted + 1, _MAX_COUNT)
        key.counted_to = start


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `ngram-map-k4v`."""
    return [NgramMapK4v]
