"""How the tokens of a batch are cut into runs and passes, and logits of some tokens alone are asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from augury.batch import check_vocabulary
from augury.errors import UnsupportedError


def runs_of(slots: Sequence[int], parents: Sequence[int] | None) -> list[tuple[int, int, int, bool]]:
    """The runs of one slot's tokens.

    Args:
        slots: Of each token, in rising order; some.
        parents: Of each token, see `Batch.parents`; None: all runs are chains.

    Returns:
        Of each run: first token, tokens, slot, whether it is a tree that is no chain.
    """
    if parents is None and slots[0] == slots[-1]:
        return [(0, len(slots), slots[0], False)]
    starts = [i for i, slot in enumerate(slots) if not i or slot != slots[i - 1]]
    return [
        # the first of a run follows the slot's text, or an earlier pass of the same chain
        (i, end - i, slots[i], parents is not None and parents[i + 1 : end] != [*range(i, end - 1)])
        for i, end in zip(starts, [*starts[1:], len(slots)], strict=True)
    ]


def passes(slots: np.ndarray, parents: np.ndarray | None, n_most: int, *, has_blocks: bool = False) -> Iterator[slice]:
    """Cut a batch into passes of up to `n_most` tokens; a tree stays in one pass.

    Args:
        slots: (n,) int32, n > 0, in rising order.
        parents: (n,) int, see `Batch.parents`; None: all runs are chains.
        n_most: Tokens of a pass.
        has_blocks: Whether each slot's tokens see each other, so that they stay in one pass, too.

    Raises:
        UnsupportedError: A tree or block is larger than a pass.
    """
    whole: list[tuple[int, int, int, bool]] = []
    if parents is not None or has_blocks:
        runs = runs_of(slots.tolist(), None if parents is None else parents.tolist())
        whole = [run for run in runs if run[3] or has_blocks]
    for _, size, slot, is_tree in whole:
        if size > n_most:
            raise UnsupportedError(
                f"a {'tree' if is_tree else 'block'} of {size} tokens in slot {slot}, expected at most {n_most} in one "
                "pass; draft fewer tokens"
            )
    start = 0
    while start < len(slots):
        end = min(start + n_most, len(slots))
        for first, size, _, _ in whole:
            if first < end < first + size:
                end = first
        yield slice(start, end)
        start = end


_Made = TypeVar("_Made")


def groups_of(vocabulary: np.ndarray, size: int) -> np.ndarray:
    """The groups of `size` tokens that a vocabulary (m,) int32, rising, has tokens of: (g,) int32, rising."""
    groups = vocabulary // size
    different: np.ndarray = groups[np.append(True, groups[1:] != groups[:-1])]
    return different


def tokens_of(groups: np.ndarray, size: int) -> np.ndarray:
    """All tokens of groups (g,): (g * size,) int32."""
    return (size * groups[:, None] + np.arange(size)).reshape(-1).astype(np.int32)


class LastVocabularies(Generic[_Made]):
    """What was made for the last vocabulary, by a key; another array is another vocabulary."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[np.ndarray, _Made]] = {}

    def of(self, key: Hashable, vocabulary: np.ndarray, n_vocab: int, make: Callable[[], _Made]) -> _Made:
        """Take what was made for a vocabulary (m,) int32, or make it.

        Raises:
            OptionError: It holds no tokens, others than the `n_vocab` of the model, or they do not rise.
        """
        kept = self._kept.get(key)
        if kept is None or kept[0] is not vocabulary:
            check_vocabulary(vocabulary, n_vocab)
            kept = self._kept[key] = vocabulary, make()
        return kept[1]
