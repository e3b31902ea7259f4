"""Acceptance rules: pure functions from a draft and what the target chooses to what is emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["match"]


def match(draft: Sequence[int], choose: Callable[[int], int]) -> list[int]:
    """Accept the draft while it is what the target chooses itself.

    The target's choice at every position is made exactly as without a draft, so the emitted tokens are those of plain
    decoding, greedy or sampled, whatever was drafted.

    Args:
        draft: k proposed tokens.
        choose: choose(i) is the target's own token behind the first i draft tokens; called with i = 0, 1, … in order, only
            while the draft was right.

    Returns:
        The emitted tokens, 1 to k + 1: all but the last are accepted draft tokens, the last is the target's own.

    >>> match([5, 6, 7], [5, 6, 9, 0].__getitem__)
    [5, 6, 9]
    >>> match([5, 6], [5, 6, 7].__getitem__)
    [5, 6, 7]
    >>> match([], [4].__getitem__)
    [4]
    """
    emitted = []
    for i, token in enumerate(draft):
        emitted.append(choose(i))
        if emitted[-1] != token:
            return emitted
    emitted.append(choose(len(draft)))
    return emitted
