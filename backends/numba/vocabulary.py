"""Logits of some tokens alone: an output's rows lie in groups, of which those that hold tokens are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from augury.batch import check_vocabulary

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
