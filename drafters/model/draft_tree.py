"""Lets a written-ahead draft branch where its author was unsure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from augury.errors import OptionError
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.draft_runner import WrittenDraft

__all__ = ["TreeShape", "branched"]


@frozen
class TreeShape:
    """How many candidates for each place at most, and how many places."""

    width: int
    depth: int

    @classmethod
    def of(cls, text: str, n_ctx: int) -> TreeShape:
        """Read a shape.

        >>> TreeShape.of("2x5", 4096)
        TreeShape(width=2, depth=5)

        Args:
            text: Of the option.
            n_ctx: Positions of a slot, which holds a tree's tokens while they are verified.

        Raises:
            OptionError: The text is no shape, or no slot would hold a tree of it.
        """
        width, _, depth = text.partition("x")
        if not (width.isdecimal() and depth.isdecimal() and int(width) and int(depth)):
            raise OptionError(f"draft-model: tree is {text!r}, expected WIDTHxDEPTH, both at least 1, such as 2x5")
        shape = cls(int(width), int(depth))
        if (n := shape.width * shape.depth) > n_ctx:
            raise OptionError(
                f"draft-model: tree is {text!r}, up to {n} tokens, expected at most the {n_ctx} that a sequence may use (-c); "
                "choose a smaller one, such as 2x5"
            )
        return shape


def branched(written: WrittenDraft, limit: int, p_min: float) -> Draft:
    """The draft and the most probable alternatives to its tokens, at most `limit` tokens in all.

    Each alternative is a leaf in its token's place, so writing costs no more than without them::

        written        the (0.9)  cat (0.5)  sat (0.8)
        alternatives              dog (0.4)  is (0.1)
        draft          the ─┬─ cat ─┬─ sat
                            │       └─ is  0.9·0.5·0.1
                            └─ dog         0.9·0.4

    The chain comes first and the others by falling probability, so that a cut leaves the best. The probabilities of the tokens
    alone are the draft's confidence. The alternatives to a drawn token are certain.

    Args:
        written: With candidates.
        limit: At least the length of the chain.
        p_min: An alternative is left out if its path is less probable than this.
    """
    n = len(written.tokens)
    thoughts: list[tuple[float, int, int, float]] = []
    confidence = list(written.confidence)
    reached = 1.0
    for place, (token, candidates) in enumerate(zip(written.tokens, written.candidates, strict=True)):
        thoughts += [(-reached * p, place, other, p) for other, p in candidates if other != token]
        reached *= confidence[place]
    likely = [(place, token, p) for path, place, token, p in sorted(thoughts)[: limit - n] if -path >= p_min]
    probabilities = None
    if written.probabilities:
        probabilities = np.zeros((n + len(likely), len(written.probabilities[0])), np.float32)
        probabilities[:n] = written.probabilities
    return Draft(
        written.tokens + [token for _, token, _ in likely],
        parents=[*range(-1, n - 1), *(place - 1 for place, _, _ in likely)],
        probabilities=probabilities,
        confidence=np.array(confidence + [p for _, _, p in likely], np.float32),
    )
