"""`recurrent-checkpoint(...)`: any drafter or chain, with its rejected drafts undone by restoring a recurrent state.

On a model with a recurrent state it asks the memory manager for llama.cpp's way: a copy of the state before the draft,
restored after a rejection, and the accepted tokens computed again in front of the next pass. A model without such a state
drafts as it does anyway. How often states were restored, and how many tokens computed again, is in a request's statistics.

Tokens that are computed again are the cost of a rejection: a draft of one token has none, a longer one has more the later it
fails. So drafts become shorter by half where lately more tokens were computed again than accepted for good, and longer by one
with every draft that is accepted to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, chain

import attrs
import numpy as np
from attrs import frozen

from augury.interfaces import Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft, Verdict

_MEMORY = 0.9  # of the accepted and recomputed tokens of earlier drafts, with every draft: some ten drafts count


@frozen
class RecurrentCheckpointOptions:
    """Options of `recurrent-checkpoint`."""

    inner: str = option("auto", help="who drafts, as in --spec-type; also in parentheses after the name")


class RecurrentCheckpoint(Drafter):
    """Drafts as the first of its drafters does that has something to propose."""

    name = "recurrent-checkpoint"
    options_class = RecurrentCheckpointOptions
    options: RecurrentCheckpointOptions
    traits = DrafterTraits(scope="process", memory_options={"use_checkpoints": "on"})

    def __init__(self, options: RecurrentCheckpointOptions, session: Session) -> None:
        super().__init__(options, session)
        self._inner = session.drafters(options.inner)
        inner = [each.traits for each in self._inner]
        self.traits = attrs.evolve(
            self.traits,
            is_costly=any(each.is_costly for each in inner),
            n_top=max((each.n_top for each in inner), default=0),
            evidence_chances=tuple(chain.from_iterable(each.evidence_chances for each in inner)),
            features=tuple(dict.fromkeys(name for each in inner for name in each.features)),
        )
        self._first_buckets = [0, *accumulate(len(each.evidence_chances) for each in inner)]  # by drafter
        self._proposed: dict[int, int] = {}  # by drafter: tokens proposed in this round
        self._longest: int | None = None  # None: as long as is allowed
        self._kept = self._replayed = 0.0  # tokens of late, accepted for good and computed again

    @classmethod
    def wrapped(cls, options: RecurrentCheckpointOptions) -> str:
        return options.inner

    @classmethod
    def wrapping(cls, drafters: str) -> Mapping[str, str]:
        return {"inner": drafters}

    def n_held(self, history: np.ndarray) -> int:
        """As many as the most demanding one can do without."""
        return min((each.n_held(history) for each in self._inner), default=len(history))

    def begin(self, history: np.ndarray, n_reused: int) -> Iterator[None]:
        """Let one after another begin."""
        self._longest, self._kept, self._replayed = None, 0.0, 0.0
        self._proposed = {}
        return chain.from_iterable(each.begin(history, n_reused) or () for each in self._inner)

    def feed(self, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Feed the drafters that want it."""
        for each in self._inner:
            if names := each.traits.features:
                each.feed(start, tokens, {name: features[name] for name in names})

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """The first draft that is not empty, as long as replays have left it."""
        for i, each in enumerate(self._inner):
            draft = each.draft(history, limit if self._longest is None else min(limit, self._longest))
            self._proposed[i] = len(draft)
            if draft.evidence is not None:
                draft = attrs.evolve(draft, evidence=draft.evidence + np.int32(self._first_buckets[i]))
            if len(draft):
                return draft
        return Draft()

    def teacher_forced(self, history: np.ndarray, n: int) -> np.ndarray | None:
        """The tokens that a single drafter would have drafted; of several it is not known which one would have."""
        return self._inner[0].teacher_forced(history, n) if len(self._inner) == 1 else None

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:
        """Give everyone its verdict on the round, and settle how long the next draft may be."""
        used = next((i for i, n in self._proposed.items() if n), None)
        for i, each in enumerate(self._inner):
            own = verdict if i == used else Verdict(0, 0, verdict.n_emitted, is_used=False)
            own = attrs.evolve(own, n_proposed=self._proposed.get(i, 0))
            if (n_top := each.traits.n_top) and verdict.top_ids is not None and verdict.top_logits is not None:
                ids, logits = verdict.top_ids[:, :n_top], verdict.top_logits[:, :n_top]
                after, parents = verdict.top_after, verdict.top_parents
                own = attrs.evolve(own, top_after=after, top_parents=parents, top_ids=ids, top_logits=logits)
            each.accept(history, own)
        self._proposed = {}
        if verdict.is_used:
            self._settle(verdict)

    def _settle(self, verdict: Verdict) -> None:
        is_whole = verdict.n_accepted == verdict.n_offered
        self._kept = _MEMORY * self._kept + verdict.n_accepted * is_whole
        self._replayed = _MEMORY * self._replayed + verdict.n_accepted * (not is_whole)
        if is_whole and self._longest is not None:
            self._longest += 1
        elif not is_whole and self._replayed > self._kept:
            self._longest = max(min(verdict.n_offered, self._longest or verdict.n_offered) // 2, 1)

    def end(self) -> None:
        """Tell everyone."""
        for each in self._inner:
            each.end()

    def close(self) -> None:
        """Close everyone."""
        for each in self._inner:
            each.close()
