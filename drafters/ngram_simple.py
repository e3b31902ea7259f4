"""`ngram-simple`: the continuation of the latest earlier occurrence of the last n tokens.

The last n tokens are looked up in the text before them. Where they occurred, up to m tokens after their latest
occurrence are the draft::

    history  … the cat sat on a mat . Then the cat sat      n = 3, m = 4
                 └─key─┘ └── draft ─┘        └─key─┘

Source: llama.cpp, `common/ngram-map.cpp`, whose drafts these are to the token. Its conditions: the history is longer than n + m
+ 2; an occurrence neither starts with the first token nor touches the key itself; the copy ends before the token that was just
sampled, and fewer than n tokens are no draft. (`min_hits`, which llama.cpp accepts for this drafter, has no effect there.)
llama.cpp scans the text in every round; here an index grows with it.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.drafters.ngram.index import size_option
from augury.interfaces import Drafter, DrafterTraits, Session
from augury.log import get_logger
from augury.types import Draft


@frozen
class NgramSimpleOptions:
    """Options of `ngram-simple`."""

    n: int = size_option(12, "ngram-simple", "n", "length of the n-gram that is looked up")
    m: int = size_option(48, "ngram-simple", "m", "length of a draft at most; below n nothing is drafted")


class NgramSimple(Drafter):
    """Looks up the last n tokens in an index of the request's own text."""

    name = "ngram-simple"
    traits = DrafterTraits(scope="request")
    options_class = NgramSimpleOptions
    options: NgramSimpleOptions

    def __init__(self, options: NgramSimpleOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.index import NgramIndex

        if options.m < options.n:
            get_logger("augury.drafters.ngram_simple").warning(
                "drafts are shorter than what is looked up: as in llama.cpp, nothing will be drafted; let them be longer",
                looked_up=options.n,
                draft=options.m,
            )
        self._index = NgramIndex(options.n)

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Index the prompt. The slot's previous text may differ, so the index starts anew."""
        self._index.clear()
        self._index.extend(history[:-2])

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Propose the continuation of the latest earlier occurrence of the last n tokens."""
        n, m = self.options.n, self.options.m
        n_before = len(history) - 1  # tokens before the one just sampled
        if n_before <= n + m + 1 or m < n:
            return Draft()
        self._index.extend(history[:-2])  # an n-gram counts once a token comes between it and the one just sampled
        start = self._index.find(history[:-1], history[-n:])
        if start < 1 or n_before - (start + n) < n:
            return Draft()
        return Draft(history[start + n : min(start + n + min(m, limit), n_before)])
