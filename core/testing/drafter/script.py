"""Scripts that requests and their drafters are driven by: texts that repeat themselves, and how drafters are asked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from attrs import frozen

from augury.testing.tiny_model import PERIOD

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Way(Enum):
    """The engine's treatment of a drafter in a round."""

    VERIFIED = "its draft is verified"
    CUT = "the first half of its draft is verified"
    SCORED = "its draft is not used"
    SILENT = "it is not asked"
    OTHERS = "it is not asked, and another drafter's draft is verified"
    TEACHER_FORCED = "it is asked by teacher forcing, and for no draft"


@frozen
class ScriptedRound:
    """One round of a script: how the drafter is asked, and for how many tokens."""

    way: Way
    limit: int


@frozen(eq=False)
class ScriptedRequest:
    """A prompt, the rounds after it, and how surely the target repeats itself: the hotter, the less."""

    prompt: tuple[int, ...]
    rounds: tuple[ScriptedRound, ...]
    temperature: float = 0.8


_PHRASE = tuple(range(3 * PERIOD, 4 * PERIOD))  # one of the tiny models' circles
_WAYS = (
    *(Way.VERIFIED, Way.SILENT, Way.VERIFIED, Way.CUT, Way.VERIFIED),
    *(Way.SCORED, Way.VERIFIED, Way.OTHERS, Way.TEACHER_FORCED),
)

REPEATING = ScriptedRequest(
    prompt=_PHRASE * 16,
    rounds=tuple(ScriptedRound(_WAYS[i % 9], (64, 5, 1, 16, 9)[i % 5]) for i in range(24)),
)
"""One long enough for any n-gram, with everything that may become of a draft."""

LONG = ScriptedRequest(_PHRASE * 44, REPEATING.rounds)
"""One that takes a drafter with a model several steps to begin with."""

PROMPTS: list[Sequence[int]] = [_PHRASE * 16, (*range(60, 72), 9, *range(60, 72), 7) * 7, (5,), (200, *_PHRASE[:5])]
"""For engines: two that repeat themselves, and two that do not."""


def requests(*, max_rounds: int = 14) -> SearchStrategy[ScriptedRequest]:
    """Strategy for requests: prompts of one token up to some hundreds, most of which repeat a phrase."""
    from hypothesis import strategies as st

    prompts = st.builds(
        lambda head, phrase, n: (*head, *(phrase * n)),
        st.lists(st.integers(0, 255), min_size=1, max_size=4),
        st.one_of(st.just(list(_PHRASE)), st.lists(st.integers(0, 255), max_size=6)),
        st.integers(0, 20),
    )
    limits = st.one_of(st.integers(1, 6), st.integers(1, 20))
    rounds = st.lists(st.builds(ScriptedRound, way=st.sampled_from(_WAYS), limit=limits), max_size=max_rounds).map(tuple)
    return st.builds(ScriptedRequest, prompt=prompts, rounds=rounds, temperature=st.sampled_from((0.8, 0.0, 4.0)))
