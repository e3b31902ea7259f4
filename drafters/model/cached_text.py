"""The text of a draft model's slot, and hidden states of its target."""

from __future__ import annotations

import numpy as np
from attrs import Factory, define


@define(eq=False)
class CachedText:
    """The cached text of one request.

    A stretch that was missed for long may be left out: the text after it moves up into its positions.
    """

    slot: int  # the slot of the draft model
    tokens: np.ndarray  # (n_ctx,) int32; the slot holds the first `n`
    n: int = 0  # see there
    n_before: int = 0  # how many tokens come before the omitted ones
    n_left_out: int = 0  # how many are
    is_parked: bool = False  # the text has gone beyond the draft model's context

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


@define(eq=False)
class FedRows:
    """Hidden states of a text's last tokens that were fed."""

    n: int = 0  # how many of the text's first tokens were fed
    first: int = 0  # the first of them whose hidden state is kept
    rows: np.ndarray = Factory(lambda: np.empty((0, 0), np.float32))  # (c, F) float32, theirs from `first` on

    def add(self, start: int, rows: np.ndarray) -> None:
        """Take the rows (m, F) of tokens from `start` on, in place of those of an earlier text there."""
        if not self.first <= start <= self.n:
            self.first = start
        kept = start - self.first
        if kept + len(rows) > len(self.rows):
            grown = np.empty((2 * (kept + len(rows)), rows.shape[1]), np.float32)
            if kept:
                grown[:kept] = self.rows[:kept]
            self.rows = grown
        self.rows[kept : kept + len(rows)] = rows
        self.n = start + len(rows)

    def of(self, start: int, end: int) -> np.ndarray:
        """The hidden states (end - start, F) of tokens that are kept."""
        return self.rows[start - self.first : end - self.first]

    def forget(self, n_before: int) -> None:
        """Keep hidden states from the token `n_before` on, where no more are left than go: each is copied rarely."""
        if n_before - self.first > self.n - n_before:
            self.rows, self.first = self.of(n_before, self.n).copy(), n_before


def n_common(tokens: np.ndarray, text: np.ndarray) -> int:
    """How many first tokens two texts (n,) and (t,) int32 have in common."""
    n = min(len(tokens), len(text))
    differs = tokens[:n] != text[:n]
    return int(differs.argmax()) if differs.any() else n
