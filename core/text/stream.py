"""Decode tokens while they come."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Decodes tokens one by one, never showing half a character: its bytes are held back until the rest has come.

    What `push` and `flush` return is, joined, what `Tokenizer.decode` returns for all tokens with the same settings; here
    `continues` is the default, since tokens stream where a model goes on from a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strips_space = tokenizer.add_space_prefix and not continues
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete now that this token has come; may be empty."""
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        piece = self._tokenizer.piece(token)
        if self._strips_space:
            self._strips_space = False
            if self._tokenizer.is_normal(token):
                piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The rest, after the last token: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
