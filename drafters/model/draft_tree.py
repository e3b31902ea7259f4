"""Lets a written-ahead draft branch where its author was unsure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.errors import OptionError
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.draft_runner import WrittenDraft


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
