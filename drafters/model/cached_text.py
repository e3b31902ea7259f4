"""The text of a draft model's slot."""

from __future__ import annotations

import numpy as np
from attrs import define


@define(eq=False)
class CachedText:
    """The cached text of one request.

    A stretch that was missed for long may be left out: the text after it moves up into its positions.

    Attributes:
        slot: The slot of the draft model.
        tokens: (n_ctx,) int32; the slot holds the first `n`.
        n: See there.
        n_before: How many tokens come before the omitted ones.
        n_left_out: How many are.
        is_parked: The text has gone beyond the draft model's context.
    """

    slot: int
    tokens: np.ndarray
    n: int = 0
    n_before: int = 0
    n_left_out: int = 0
    is_parked: bool = False

    def text(self, history: np.ndarray) -> np.ndarray:
        """The part of `history` (h,) int32 that is not left out."""
        if not self.n_left_out:
            return history
        return np.concatenate([history[: self.n_before], history[self.n_before + self.n_left_out :]])

    def n_agreed(self, text: np.ndarray) -> int:
        """How many tokens of `text` (t,) int32 are cached."""
        return n_common(self.tokens[: self.n], text)

    def leave_out(self, history: np.ndarray, n_kept: int) -> None:
        """Keep the cached beginning of `history`, and the last `n_kept` tokens."""
        n_agreed = self.n_agreed(self.text(history))
        self.n_before = min(n_agreed, self.n_before) if self.n_left_out else n_agreed
        self.n_left_out = len(history) - n_kept - self.n_before


def n_common(tokens: np.ndarray, text: np.ndarray) -> int:
    """How many first tokens two texts (n,) and (t,) int32 have in common."""
    n = min(len(tokens), len(text))
    differs = tokens[:n] != text[:n]
    return int(differs.argmax()) if differs.any() else n
