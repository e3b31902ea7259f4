"""`ngram-mod`: a pool of the followers of n-grams in all texts, followed as far as it leads.

Every n_match tokens of every sequence put the token after them into one pool, under a hash. A draft starts at the last
n_match tokens and looks up token after token, so that it may run through several texts::

    pool     a b c → d, b c d → e, c d e → f          n_match = 3
    history  … a b c     draft  d e f

Drafts shorter than `n_min` are not made; the part that a limit cuts off counts, so that a short limit is no veto. The pool
lives as long as the engine and is shared by its slots: the pool is emptied when a prompt finds it more than a quarter full, and
after five drafts of one slot in a row of which less than a quarter was right (the slot's own text is then learnt anew).

Source: llama.cpp, `common/ngram-mod.cpp` and `common/speculative.cpp`, whose drafts these are to the token.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.interfaces import Drafter, DrafterTraits, Session
from augury.log import get_logger
from augury.options import option
from augury.types import Draft, Verdict

_CHUNK = 32  # a text this much longer than its learnt part is learnt up to its end
_MAX_FILL = 0.25
_POOR = 0.25  # accepted share of a draft
_MAX_POOR = 5
_PRESETS = {"long": {"n_match": 24, "n_min": 48}, "short": {"n_match": 16, "n_min": 4}}


@frozen
class NgramModOptions:
    """Options of `ngram-mod`."""

    preset: str = option(
        "long",
        help="lengths: long pays where a pass over many tokens costs little more than over one, short on dense models",
        choices=_PRESETS,
    )
    n_match: int | None = option(
        None, help="length of the n-gram that is looked up: 24, preset short 16", ge=1, le=1024, aliases=("spec-ngram-size-n",)
    )
    n_min: int | None = option(None, help="length of a draft at least: 48, preset short 4", ge=0, le=1024, per_request=True)
    n_max: int = option(64, help="length of a draft at most", ge=0, le=1024, per_request=True)

    def __attrs_post_init__(self) -> None:
        """Take omitted options from the preset."""
        for name, value in _PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


class NgramMod(Drafter):
    """Learns into the engine's pool and drafts from it."""

    name = "ngram-mod"
    traits = DrafterTraits(scope="process")
    options_class = NgramModOptions
    options: NgramModOptions

    def __init__(self, options: NgramModOptions, session: Session) -> None:
        super().__init__(options, session)
        from augury.drafters.ngram.index import NgramPool

        if options.n_min is not None and options.n_min > options.n_max:
            get_logger("augury.drafters.ngram_mod").warning(
                "n_min is more than n_max: as in llama.cpp, drafts of n_max are made", n_min=options.n_min, n_max=options.n_max
            )
        assert options.n_match is not None  # the preset's
        self._n = options.n_match
        self._pool: NgramPool = session.shared(("ngram-mod", self._n, session.model.n_vocab), lambda: NgramPool(self._n))
        self._request = object()
        self._n_learnt = 0  # n-grams of the text
        self._is_due = False  # new tokens are learnt with the next draft, however few
        self._n_poor = 0

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Learn the prompt, even parts that an earlier request taught: newer tokens overwrite older ones."""
        self._request = object()
        self._n_learnt = 0
        self._is_due = False
        prompt = history[:-1]
        if len(prompt) < self._n:
            return
        self._learn(prompt)
        if self._pool.fill > _MAX_FILL:
            self._pool.clear()

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the pool from the last n_match tokens on."""
        text = history[:-1]  # llama.cpp keeps the token just sampled apart, and counts without it
        if len(text) < self._n:
            return Draft()
        if self._is_due or self._n_learnt + _CHUNK < len(text):
            self._learn(text)
        assert self.options.n_min is not None  # the preset's
        n_min, n_max = min(self.options.n_min, self.options.n_max), self.options.n_max
        tokens = self._pool.follow(history[-self._n :], min(n_max, max(limit, n_min)))
        return Draft(tokens[:limit]) if len(tokens) >= n_min else Draft()

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:
        """Count poor drafts in a row; too many empty the pool."""
        if not verdict.is_used or not verdict.n_offered:
            return
        self._n_poor = self._n_poor + 1 if verdict.n_accepted < _POOR * verdict.n_offered else 0
        if self._n_poor < _MAX_POOR:
            return
        self._n_poor = 0
        if self.session.n_slots == 1 and self._pool.is_only_of(self._request) and len(history) - 1 > _CHUNK:
            self._is_due = True  # as if emptied and learnt anew before the next draft, without the work
        else:
            self._pool.clear()
            self._n_learnt = 0

    def _learn(self, text: np.ndarray) -> None:
        self._pool.add(self._request, text, self._n_learnt)
        self._n_learnt = len(text) - self._n
        self._is_due = False
