"""Scripts to drive drafters by: texts that repeat themselves, and what becomes of drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.testing.drafter.script import Request, Round, Way
from augury.testing.tiny_model import PERIOD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

__all__ = ["LONG", "PROMPTS", "REPEATING", "requests"]

_PHRASE = tuple(range(3 * PERIOD, 4 * PERIOD))  # one of the tiny models' circles
_WAYS = (
    *(Way.VERIFIED, Way.SILENT, Way.VERIFIED, Way.CUT, Way.VERIFIED),
    *(Way.SCORED, Way.VERIFIED, Way.OTHERS, Way.TEACHER_FORCED),
)

REPEATING = Request(
    prompt=_PHRASE * 16,
    rounds=tuple(Round(_WAYS[i % 9], (64, 5, 1, 16, 9)[i % 5], i % 4 * 3, int(i % 7 == 6)) for i in range(24)),
)
"""One long enough for any n-gram, with everything that may become of a draft."""

LONG = Request(_PHRASE * 44, REPEATING.rounds)
"""One that takes a drafter with a model several steps to begin with."""

PROMPTS: list[Sequence[int]] = [_PHRASE * 16, (*range(60, 72), 9, *range(60, 72), 7) * 7, (5,), (200, *_PHRASE[:5])]
"""For engines: two that repeat themselves, and two that do not."""


def requests(*, max_rounds: int = 14) -> SearchStrategy[Request]:
    """Strategy for requests: prompts of one token up to some hundreds, most of which repeat a phrase."""
    from hypothesis import strategies as st

    prompts = st.builds(
        lambda head, phrase, n: (*head, *(phrase * n)),
        st.lists(st.integers(0, 255), min_size=1, max_size=4),
        st.one_of(st.just(list(_PHRASE)), st.lists(st.integers(0, 255), max_size=6)),
        st.integers(0, 20),
    )
    rounds = st.builds(
        Round,
        way=st.sampled_from(_WAYS),
        limit=st.one_of(st.integers(1, 6), st.integers(1, 20)),
        n_right=st.one_of(st.integers(0, 3), st.just(99)),
        surprise=st.sampled_from((0, 0, 0, 1, 2)),
    )
    return st.builds(Request, prompt=prompts, rounds=st.lists(rounds, max_size=max_rounds).map(tuple))
