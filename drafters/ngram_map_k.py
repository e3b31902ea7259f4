"""`ngram-map-k`: the continuation of the last n tokens' first occurrence, as far as it was right the last time.

The last n tokens, the key, are looked up in the text before them; the m tokens after them are the draft. How many of them the
target accepted bounds the next draft of the same key::

    key   draft        accepted   next draft
    a b   c d e f      c d        c d
    a b   c d          c          c

Source: llama.cpp, `common/ngram-map.cpp`, whose drafts these are to the token. Its conditions: the history is longer than
2n + m; the m tokens after the occurrence end before the token that precedes the one just sampled; and a key is looked up where
the table of `augury.drafters.ngram.first_table` has it. (`min_hits`, which llama.cpp accepts for this drafter, has no effect
there.)
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.drafters.ngram.map import Continuation, NgramMap
from augury.drafters.ngram.sizes import size_option
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session


@frozen
class NgramMapKOptions:
    """Options of `ngram-map-k`."""

    n: int = size_option(12, "ngram-map-k", "n", "length of the key that is looked up")
    m: int = size_option(48, "ngram-map-k", "m", "length of a draft at most")


class NgramMapK(NgramMap):
    """Keeps for every key how far its last draft was right."""

    name = "ngram-map-k"
    options_class = NgramMapKOptions

    def __init__(self, options: NgramMapKOptions, session: Session) -> None:
        super().__init__(options, session)
        self._keys: dict[bytes, Continuation] = {}

    def _forget(self) -> None:
        self._keys.clear()

    def _continuation(self, text: np.ndarray, key: bytes, start: int) -> Continuation:  # noqa: ARG002 - the interface's
        if key not in self._keys:
            self._keys[key] = Continuation(bound=self.options.m)
        return self._keys[key]


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `ngram-map-k`."""
    return [NgramMapK]
