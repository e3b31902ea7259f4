"""What is learnt from at once: a part of a text."""

from __future__ import annotations

import hashlib

import numpy as np
from attrs import frozen


@frozen(eq=False)
class Piece:
    """Tokens of a text from `start` on.

    Attributes:
        text: (T,) int32, up to the piece's end. Hidden states are those of the piece in it, and of all tokens but the last: an
            answer ends before that is computed.
        start: Where the piece begins.
    """

    text: np.ndarray
    start: int = 0

    @property
    def tokens(self) -> np.ndarray:
        """Its own tokens."""
        return self.text[self.start :]

    @property
    def name(self) -> str:
        """Of the file of its hidden states."""
        return hashlib.sha256(f"{self.start} ".encode() + self.text.tobytes()).hexdigest()[:32]


def cut(text: np.ndarray, n: int, start: int = 0) -> list[Piece]:
    """A text (T,) int32 from `start` on as pieces of n tokens at most."""
    return [Piece(text[: at + n], at) for at in range(start, len(text), n)]
