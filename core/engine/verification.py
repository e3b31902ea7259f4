"""Acceptance rules: pure functions from a draft and what the target says to what is emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen

__all__ = ["Accepted", "Distribution", "accept_by_chance", "match", "match_tree", "n_accepted_by_chance", "reject"]

Distribution = tuple[np.ndarray, np.ndarray]
"""Tokens (m,) and their probabilities (m,), which sum to 1; other tokens have none."""


@frozen
class Accepted:
    """What a round emits: the accepted draft tokens and one of the target's own after them.

    `path` says where in the draft the accepted ones stand; for a chain, at its beginning.
    """

    tokens: list[int]
    path: Sequence[int]


def match(draft: Sequence[int], choose: Callable[[int], int]) -> Accepted:
    """Accept the draft while it is what the target chooses itself.

    The target's choice at every position is made exactly as without a draft, so the emitted tokens are those of plain
    decoding, greedy or sampled, whatever was drafted.

    Args:
        draft: k proposed tokens.
        choose: choose(i) is the target's own token after the first i draft tokens; called with i = 0, 1, … in order, only
            while the draft was right.

    Returns:
        1 to k + 1 tokens.

    >>> match([5, 6, 7], [5, 6, 9, 0].__getitem__).tokens
    [5, 6, 9]
    >>> match([5, 6], [5, 6, 7].__getitem__).tokens
    [5, 6, 7]
    >>> match([], [4].__getitem__).tokens
    [4]
    """
    emitted = []
    for i, token in enumerate(draft):
        emitted.append(choose(i))
        if emitted[-1] != token:
            return Accepted(emitted, range(i))
    emitted.append(choose(len(draft)))
    return Accepted(emitted, range(len(draft)))


def match_tree(draft: Sequence[int], parents: Sequence[int], choose: Callable[[int, int], int]) -> Accepted:
    """The same for a tree: go down from the history for as long as one of the next tokens is what the target chooses.

    Args:
        draft: k proposed tokens.
        parents: (k,), parents[i] < i is what token i follows, -1 the history.
        choose: choose(i, d) is the target's own token after draft token i, -1 for the history, which has d tokens of the draft
            before and including it.

    >>> follows = {-1: 5, 0: 1, 1: 8, 2: 9}
    >>> match_tree([4, 5, 7, 8], [-1, -1, 1, 1], lambda i, d: follows.get(i, 0))
    Accepted(tokens=[5, 8, 0], path=[1, 3])
    """
    emitted: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        emitted.append(choose(node, len(path)))
        here = (i for i in range(node + 1, len(draft)) if parents[i] == node and draft[i] == emitted[-1])
        if (found := next(here, None)) is None:
            return Accepted(emitted, path)
        path.append(node := found)


def reject(
    draft: Sequence[int],
    parents: Sequence[int],
    probabilities: np.ndarray | None,
    target: Callable[[int, int], Distribution],
    uniform: Callable[[int], tuple[float, float]],
) -> Accepted:
    """Accept a drawn token with probability min(1, p/q); draw from what is left of p where it is refused.

    Where the token drawn from that is another one of the draft in the same place, it is accepted as well. What is emitted is
    distributed as by the target alone, but not token by token the same.

    Args:
        draft: k proposed tokens.
        parents: (k,), parents[i] < i is what token i follows, -1 the history. Of the tokens after one parent at most one was
            drawn.
        probabilities: (k, V), q: what each was drawn from; a row of zeros, or None for all, where it was certain. To leave a
            drawn token out because of what it is would be a bias.
        target: target(i, d) is p, the target's distribution after draft token i, -1 for the history, which has d tokens of the
            draft before and including it; called in order.
        uniform: uniform(d) gives two numbers in [0, 1) for depth d: one to accept by, one to draw by.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 2.3; of several
    candidates Miao et al. 2023, "SpecInfer" (arXiv 2305.09781), section 4.3, where only one was drawn.
    """
    emitted: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        ids, p = target(node, len(path))
        accept, draw = uniform(len(path))
        following = [i for i in range(node + 1, len(draft)) if parents[i] == node]
        drawn = next((i for i in following if probabilities is not None and probabilities[i].any()), None)
        if drawn is not None and probabilities is not None:
            p_token = float(p[ids == draft[drawn]].sum())
            if accept * float(probabilities[drawn, draft[drawn]]) < p_token:
                emitted.append(int(draft[drawn]))
                path.append(node := drawn)
                continue
            rest = np.maximum(p - probabilities[drawn, ids], 0.0)
            p = rest if rest.sum() > 0 else p  # nothing is left where rounding alone refused
        emitted.append(_drawn(ids, p, draw))
        if (found := next((i for i in following if i != drawn and draft[i] == emitted[-1]), None)) is None:
            return Accepted(emitted, path)
        path.append(node := found)


def accept_by_chance(
    draft: Sequence[int], rates: Sequence[float], uniform: Callable[[int], float], choose: Callable[[int], int]
) -> Accepted:
    """Accept each drafted token with a given chance, whatever the target says of it: for benchmarks.

    It costs what verification costs, but what is emitted is not the target's text.

    Args:
        draft: k proposed tokens.
        rates: rates[i] is the chance that token i is accepted where all before it were; the last holds for all after it.
        uniform: uniform(i) is a number in [0, 1) for position i.
        choose: choose(i) is the target's own token after the first i draft tokens; called once.

    >>> accept_by_chance([5, 6, 7], [0.9, 0.5], [0.8, 0.4, 0.6].__getitem__, lambda i: 0)
    Accepted(tokens=[5, 6, 0], path=range(0, 2))
    """
    n = n_accepted_by_chance(len(draft), rates, uniform)
    return Accepted([*draft[:n], choose(n)], range(n))


def n_accepted_by_chance(k: int, rates: Sequence[float], uniform: Callable[[int], float]) -> int:
    """How many of k drafted tokens `accept_by_chance` accepts."""
    return next((i for i in range(k) if uniform(i) >= rates[min(i, len(rates) - 1)]), k)


def _drawn(ids: np.ndarray, weights: np.ndarray, uniform: float) -> int:
    """The token that a number in [0, 1) falls on."""
    sums = np.cumsum(weights)
    return int(ids[min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(ids) - 1)])
