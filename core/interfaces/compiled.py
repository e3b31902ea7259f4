"""Functions by which compiled rounds draft and verify without Python in between; see `augury.speculation.compiled_rounds`.

A function is known by its address, and takes int64 alone; see `augury.compiled.address_of`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class CompiledPass(ABC):
    """Passes over tokens of one slot, such as a text's last one and a tree after it, with the best tokens of each row.

    Attributes:
        function: A function of `argument`, which moves cells, and then computes the pass unless it has no tokens.
        argument: Its argument.
        sizes: (4,) int64, which it reads: tokens n, the position of the first one, moves m, and how many of the last tokens
            have rows; 0: all.
        tokens: (room,) int32, which it reads.
        parents: (room,) int32, by token its parent among these, -1 of the first.
        hidden: (room, E) float32, which it reads, of a model that is given hidden states.
        moves: (room, 2) int32, from which cell to which, each after those before it.
        ids: (room, k) int32, which it writes: the best tokens of each row, best first; first -1 where none can be chosen.
        scores: (room, k) float32, which it writes: their logits.
        rows: (room, V) float32 at least, where it leaves the rows of logits.
        features: (room, F) float32 by name, where it leaves the features of its tokens.
        times: (2,) int64, which it writes: when the pass began and ended, in nanoseconds.
        keep: A function that copies features of the last pass to where `keep_features` said, after those before: of its first
            token, and of those after that whose numbers are written, (m,) int64, at the address that comes after `argument`,
            with m. 0: nothing is to be kept.
    """

    function: int
    argument: int
    hidden: np.ndarray | None = None
    rows: np.ndarray
    features: Mapping[str, np.ndarray] = MappingProxyType({})
    keep: int = 0

    def __init__(self, room: int, k: int) -> None:
        """Make room for passes of so many tokens, and for the k best tokens of each row."""
        self.sizes, self.times = np.zeros(4, np.int64), np.zeros(2, np.int64)
        self.tokens, self.parents = np.zeros((2, room), np.int32)
        self.moves, self.ids = np.zeros((room, 2), np.int32), np.zeros((room, k), np.int32)
        self.scores = np.zeros((room, k), np.float32)

    def move_first(self, moves: Sequence[tuple[int, int]]) -> None:
        """Let the next pass begin with moves, from which cell to which."""
        self.sizes[2] = len(moves)
        self.moves[: len(moves)] = np.array(moves, np.int32).reshape(-1, 2)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All of these, in their order."""
        arrays = self.sizes, self.tokens, self.parents, self.moves, self.ids, self.times
        return self.function, self.argument, *arrays, self.keep

    @abstractmethod
    def keep_features(self, n: int) -> dict[str, np.ndarray]:
        """Make room for features of n tokens, which the next passes keep; returns it, (n, F) float32 by name."""

    @abstractmethod
    def begin(self) -> None:
        """Make ready for calls of the function, after other passes of the model; `run` does that by itself."""

    @abstractmethod
    def run(self, rounds: Callable[..., int], *arguments: Any) -> int:
        """Call what makes passes by the function."""


class CompiledDraft(NamedTuple):
    """A drafter's functions, for some rounds of its slot.

    Attributes:
        draft: A function of `state`, the text's address, (h,) int32, its tokens h, the most tokens of a draft, and the address
            of a table (4, room) int32 with its room: it writes tokens, parents and evidence there, or in the fourth row the
            bits of float32 confidences where it is costly, and returns how many.
        learn: A function of `state`, and what a pass verified: the addresses of its tokens (n,) int32 and of the best tokens
            after each, (n, k) int32, n and k. 0: nothing is learnt.
        state: The address of what they work on.
        end: Called with the text (h,) int32, once the rounds are over and their features are fed.
    """

    draft: int
    learn: int
    state: int
    end: Callable[[np.ndarray], object] = lambda _: None
