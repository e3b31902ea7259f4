"""The tokens that a model writes ahead, one after another, and the branches at places where it was unsure."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import attrs
import numpy as np
from attrs import Factory, define, frozen

from augury.engine.sampler import Sampler, random_stream
from augury.errors import OptionError
from augury.log import DRAFT_LOGGER
from augury.passes import Pass
from augury.types import Draft

if TYPE_CHECKING:
    from augury.sampling import SamplingParams

N_JUDGED = 10
"""The number of heads' best tokens, among which the probability of one counts, as in llama.cpp."""
_LEAST_SHARE = 1e-9  # of all tokens but the best
_FIRST_CHAIN = 2  # passes that are begun before it is known whether a draft ends early


class DraftSampler:
    """Draws one request's drafts as the request draws its tokens: the nearer the two distributions are, the more is accepted.

    Whether a token is drawn must not depend on which one it would be, or the target's draws instead would have another
    distribution; so tokens that the target lacks are left out before.
    """

    def __init__(self, params: SamplingParams, *, n_drawn: int, n_vocab: int) -> None:
        """Prepare to draw from V = `n_drawn` tokens of the draft model, for a target with `n_vocab`."""
        known = {token: bias for token, bias in params.logit_bias.items() if token < n_drawn}
        self._sampler = Sampler(attrs.evolve(params, logit_bias=known), n_vocab=n_drawn)
        self._n_vocab = n_vocab
        # the streams that follow the seed's belong to the target: one to draw by, one to accept by
        self._stream = random_stream(self._sampler.params.seed, 2)

    def draw(self, logits: Pass, row: int, text: np.ndarray) -> tuple[int, np.ndarray] | None:
        """The token after `text` (t,) int32 and its distribution, (V,) float32; None if the target has none."""
        ids, probabilities = self._sampler.distribution(logits, row, text, len(text))
        is_known = (ids >= 0) & (ids < self._n_vocab)
        if not is_known.any():
            return None
        weights = np.zeros(self._n_vocab, np.float32)
        weights[ids[is_known]] = probabilities[is_known] / probabilities[is_known].sum()
        sums = np.cumsum(weights[ids[is_known]], dtype=np.float64)
        place = int(np.searchsorted(sums, self._stream.random() * sums[-1], side="right"))
        return int(ids[is_known][min(place, len(sums) - 1)]), weights


@frozen(eq=False)
class DraftRequest:
    """A slot's request for a draft."""

    slot: int
    history: np.ndarray  # (h,) int32
    limit: int
    p_min: float
    n_candidates: int = 1  # for each place
    sampler: DraftSampler | None = None  # None: the best token is taken
    guess: Sequence[int] = ()  # tokens that may follow the history; the draft follows them
    min_path_probability: float = 0.0  # see `Pace`


@define(eq=False)
class WrittenDraft:
    """The tokens that a draft model wrote."""

    tokens: list[int] = Factory(list)  # in order
    # the distribution of each draw, (V,) float32; empty unless a sampler was given
    probabilities: list[np.ndarray] = Factory(list)
    # how probable the best token in the place of each is, drawn or not; empty unless that was computed
    confidence: list[float] = Factory(list)
    # `candidates`: for each place the best tokens and their probabilities, best first; empty unless more than one is wanted
    candidates: list[list[tuple[int, float]]] = Factory(list)
    reach: float = 1.0  # how probable all of them are
    lattice_reach: float | None = None  # paths as probable as this go on after an alternative; None: nothing follows one
    # `lattice`: the candidates for a place after a token, by both; None: those of the place, after any token
    lattice: dict[tuple[int, int], list[tuple[int, float]]] | None = None

    def add(
        self,
        request: DraftRequest,
        logits: Pass,
        row: int,
        best: int,
        *,
        n_vocab: int,
        n_judged: int | None = None,
        confidence: float | None = None,
    ) -> bool:
        """Write one token more, unless the model is too unsure of its best one, has none, or the target none like it.

        Args:
            request: The request for a draft.
            logits: The logits of a pass.
            row: The row of the place.
            best: Its best token; below 0 where it has none.
            n_vocab: A token from this on is never proposed.
            n_judged: A token's probability is that among so many of the best; None: among all.
            confidence: The probability of the best one, if that is known; the others share the rest.

        Returns:
            Whether one more is wanted after it.
        """
        if best < 0:
            return False
        ids, likely = np.array([best], np.int32), np.empty(0)
        if request.n_candidates > 1 or n_judged is not None:
            (ids,), (likely,) = logits.top_k(np.array([row], np.int32), n_judged or request.n_candidates)
        is_judged = request.p_min > 0 or request.min_path_probability > 0 or request.n_candidates > 1
        probabilities: list[float] = []
        if is_judged or n_judged is not None or DRAFT_LOGGER.isEnabledFor(logging.DEBUG):
            probabilities = _probabilities(logits, row, ids) if n_judged is None else _shares(likely.tolist())
            if confidence is not None and probabilities:
                rest = (1.0 - confidence) / max(1.0 - probabilities[0], _LEAST_SHARE)
                probabilities = [confidence, *(p * rest for p in probabilities[1:])]
            if probabilities and probabilities[0] < request.p_min:
                return False
        if request.sampler is not None:
            text = np.concatenate([request.history, np.array(self.tokens, np.int32)])
            if (drawn := request.sampler.draw(logits, row, text)) is None:
                return False
            self.tokens.append(drawn[0])
            self.probabilities.append(drawn[1])
        elif best >= n_vocab:
            return False
        else:
            self.tokens.append(best)
        self.confidence += probabilities[:1]
        if request.n_candidates > 1:
            likeliest = zip(ids.tolist()[: request.n_candidates], probabilities, strict=False)
            self.candidates.append([each for each in likeliest if each[0] < n_vocab])
        self.reach *= probabilities[0] if probabilities else 1.0
        return len(self.tokens) < request.limit and self.reach >= request.min_path_probability


def add_best(
    written: Sequence[WrittenDraft],
    requests: Sequence[DraftRequest],
    writing: Sequence[int],
    logits: Pass,
    *,
    n_vocab: int,
    n_judged: int | None = None,
) -> list[int]:
    """Write the best token of each row of passes, in turns to the drafts of the numbers `writing`; see `WrittenDraft.add`.

    Returns:
        The numbers of the drafts that want one more.
    """
    going_on = dict.fromkeys(writing)
    for row, best in enumerate(logits.argmax().tolist()):
        i = writing[row % len(writing)]
        if i in going_on and not written[i].add(requests[i], logits, row, best, n_vocab=n_vocab, n_judged=n_judged):
            del going_on[i]
    return list(going_on)


def n_chained(requests: Sequence[DraftRequest], n_written: int, n_most: int, *, is_elsewhere: bool = False) -> int:
    """How many passes more are begun together with the next one, whose tokens a model chooses itself; `n_most` in all.

    As many as the longest draft wants. Where drafts may end before, at `p_min` or `min_path_probability`, as many in all as
    were looked at so far, `n_written`: of the passes after an end there are fewer than tokens before it, or one. Where another
    machine computes them one trip is worth more.
    """
    if any(request.sampler is not None for request in requests):
        return 0
    if not is_elsewhere and any(request.p_min > 0 or request.min_path_probability > 0 for request in requests):
        n_most = min(n_most, max(n_written, _FIRST_CHAIN))
    return max(n_most - 1, 0)


def _probabilities(logits: Pass, row: int, ids: np.ndarray) -> list[float]:
    """The probabilities of tokens (m,) int32 by the model's own distribution."""
    logarithms = logits.gather(row, ids).astype(np.float64) - logits.log_normalizer(row)
    return np.exp(np.minimum(logarithms, 0.0)).tolist()  # above 0 by rounding alone


def _shares(likely: Sequence[float]) -> list[float]:
    """The probabilities of tokens among themselves, by their logits, the largest first."""
    weights = [math.exp(logit - likely[0]) for logit in likely]  # NumPy takes longer for ten
    total = sum(weights)
    return [weight / total for weight in weights]


@frozen
class TreeShape:
    """How many candidates for each place at most, and how many places."""

    width: int
    depth: int

    @classmethod
    def of(cls, text: str) -> TreeShape:
        """Read a shape.

        >>> TreeShape.of("2x5")
        TreeShape(width=2, depth=5)

        Raises:
            OptionError: The text is no shape.
        """
        width, _, depth = text.partition("x")
        if not (width.isdecimal() and depth.isdecimal() and int(width) and int(depth)):
            raise OptionError(f"draft-model: tree is {text!r}, expected WIDTHxDEPTH, both at least 1, such as 2x5")
        return cls(int(width), int(depth))

    def check(self, n_ctx: int) -> None:
        """Refuse a tree that is larger than a slot of `n_ctx` positions, which hold its tokens while they are verified.

        Raises:
            OptionError: It is.
        """
        if (n := self.width * self.depth) > n_ctx:
            raise OptionError(
                f"draft-model: tree is {self.width}x{self.depth}, up to {n} tokens, expected at most the {n_ctx} that a "
                "sequence may use (-c); choose a smaller one, such as 2x5"
            )


def branched(written: WrittenDraft, limit: int, p_min: float) -> Draft:
    """The draft and the most probable alternatives to its tokens, at most `limit` tokens in all.

    Each alternative is a leaf in its token's place, so writing costs no more than without them::

        written        the (0.9)  cat (0.5)  sat (0.8)
        alternatives              dog (0.4)  is (0.1)
        draft          the ─┬─ cat ─┬─ sat
                            │       └─ is  0.9·0.5·0.1
                            └─ dog         0.9·0.4

    In a lattice, whose author knows the successors of an alternative, these follow it as well: here `dog ── sat`, of
    0.9·0.4·0.8, if a place's tokens are as probable after any token.

    The chain comes first and the others by falling probability, so that a cut leaves the best. The probabilities of the tokens
    alone are the draft's confidence. The alternatives to a drawn token are certain.

    Args:
        written: With candidates.
        limit: At least the length of the chain.
        p_min: An alternative is left out if its path is less probable than this.

    Source: Li et al. 2024, "EAGLE-2", for trees by the drafter's own probabilities.
    """
    n, places = len(written.tokens), written.candidates
    thoughts: list[tuple[float, int, int, float, int]] = []  # less the path's probability, place, token, its own one, parent
    reached = 1.0
    for place, (token, candidates) in enumerate(zip(written.tokens, places, strict=True)):
        thoughts += [(-reached * p, place, other, p, place - 1) for other, p in candidates if other != token]
        reached *= written.confidence[place]
    heapify(thoughts)
    tokens, parents, confidence = list(written.tokens), list(range(-1, n - 1)), list(written.confidence)
    while thoughts and len(tokens) < limit and -thoughts[0][0] >= p_min:
        path, place, token, p, parent = heappop(thoughts)
        if written.lattice_reach is not None and -path >= written.lattice_reach and place + 1 < n:
            following = places[place + 1] if written.lattice is None else written.lattice.get((place + 1, token), ())
            for other, its in following:
                heappush(thoughts, (path * its, place + 1, other, its, len(tokens)))
        tokens.append(token)
        parents.append(parent)
        confidence.append(p)
    probabilities = None
    if written.probabilities:
        probabilities = np.zeros((len(tokens), len(written.probabilities[0])), np.float32)
        probabilities[:n] = written.probabilities
    return Draft(tokens, parents=parents, probabilities=probabilities, confidence=np.array(confidence, np.float32))
