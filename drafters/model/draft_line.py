"""What one slot of a draft model holds of its text."""

from __future__ import annotations

import numpy as np
from attrs import define

__all__ = ["Line"]


@define(eq=False)
class Line:
    """What one slot of the draft model holds.

    What was long not followed of the text may be left out: what stands behind it moves up into its positions.

    Attributes:
        tokens: (n_ctx,) int32; the states of the first `n_held` are in the KV cache.
        n_held: See there. What lies behind was rejected or never computed, and is overwritten.
        n_agreed: So many of them are known to be the request's own, and stay so until its text is said to have changed.
        n_before: How many tokens stand before those that are left out.
        n_left_out: How many are.
        is_parked: The request's text has left what the draft model can follow.
    """

    tokens: np.ndarray
    n_held: int = 0
    n_agreed: int = 0
    n_before: int = 0
    n_left_out: int = 0
    is_parked: bool = False

    def begin(self) -> None:
        """Another request's text follows."""
        self.n_agreed = self.n_before = self.n_left_out = 0
        self.is_parked = False

    def text(self, history: np.ndarray) -> np.ndarray:
        """Of `history` (h,) int32 what is not left out."""
        if not self.n_left_out:
            return history
        return np.concatenate([history[: self.n_before], history[self.n_before + self.n_left_out :]])

    def agree(self, text: np.ndarray, n_same: int | None = None) -> int:
        """How many tokens of `text` (t,) int32 are held; `n_same` of its tokens are as in the call before, None: all."""
        if n_same is not None:
            self.n_agreed = min(self.n_agreed, n_same)
        n = min(self.n_held, len(text))
        is_same = self.tokens[self.n_agreed : n] == text[self.n_agreed : n]
        self.n_agreed = n if is_same.all() else self.n_agreed + int(is_same.argmin())
        return self.n_agreed

    def leave_out(self, n_history: int, n_kept: int) -> None:
        """Of a history of `n_history` tokens keep what was held before anything was left out, and the last `n_kept`."""
        self.n_before = self.n_agreed = min(self.n_agreed, self.n_before) if self.n_left_out else self.n_agreed
        self.n_left_out = n_history - n_kept - self.n_before
