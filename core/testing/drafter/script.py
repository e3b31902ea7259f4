"""The nouns of scripts by which drafters are driven."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

__all__ = ["Request", "Round", "Way"]


class Way(Enum):
    """What the engine does with a drafter in a round."""

    VERIFIED = "its draft is verified"
    CUT = "the first half of its draft is verified"
    SCORED = "its draft is not used"
    SILENT = "it is not asked"
    OTHERS = "it is not asked, and another drafter's tokens are accepted"
    TEACHER_FORCED = "it is asked by teacher forcing, and for no draft"


@frozen
class Round:
    """One round of a script: how the drafter is asked, how much of its draft is right, and which token is the target's own."""

    way: Way
    limit: int
    n_right: int
    surprise: int  # 0: the token that came a period before; else a number to make another one from


@frozen(eq=False)
class Request:
    """A prompt and the rounds behind it."""

    prompt: tuple[int, ...]
    rounds: tuple[Round, ...]
