"""PLaMo 2's vocabularies: a text takes those tokens that have the highest sum of scores, and bytes where there are none.

The search is the `tokenizers` library's for Unigram vocabularies. llama.cpp's (`llm_tokenizer_plamo2` in its
src/llama-vocab.cpp) goes through the text from its end, and of several ways with one sum it takes that whose first token is
longest; so the library gets all texts backwards.
"""

from __future__ import annotations

import re

import numpy as np

from augury.errors import ModelFileError
from augury.text.bpe import SURROGATE, call_library
from augury.text.special_token import TokenType
from augury.text.vocabulary import Codec, Vocabulary

_UNKNOWN_PENALTY = 10.0  # of the library: the score of an unknown character below the worst token


def _unreachable(token: int) -> str:
    """A text that stands in for a token which no text is read as; noncharacters are in no one's text."""
    return f"\U0010ffff{token}\U0010ffff"


class PlamoCodec(Codec):
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind plamo2.

    Raises:
        ModelFileError: scores or tokens for single bytes are missing.
    """

    _UNKNOWN = -10_000_000  # the score of a character that is in no token, in ten thousandths

    def __init__(self, vocabulary: Vocabulary) -> None:
        from tokenizers import Tokenizer, models

        numbers = vocabulary.of_type(TokenType.BYTE)
        found = {int(vocabulary.tokens[token][3:5], 16): token for token in numbers}
        if missing := [byte for byte in range(256) if byte not in found]:
            raise ModelFileError(f"the vocabulary has no token <0x{missing[0]:02X}>, expected one for each byte")
        self._bytes = [found[byte] for byte in range(256)]
        scaled = vocabulary.scores() * 1e4
        scaled = np.where(np.isfinite(scaled), np.sign(scaled) * np.floor(np.abs(scaled) + 0.5), -np.inf)
        unread = {
            *numbers,
            *(token for token, text in enumerate(vocabulary.tokens) if SURROGATE.search(text)),
        }  # no text holds them
        pieces = [
            (text[::-1], score) if score > self._UNKNOWN and token not in unread else (_unreachable(token), 0.0)
            for token, (text, score) in enumerate(zip(vocabulary.tokens, scaled.tolist(), strict=True))
        ]
        self._unk = len(pieces)
        pieces.append((_unreachable(self._unk), self._UNKNOWN + _UNKNOWN_PENALTY))
        self._tokenizer = Tokenizer(models.Unigram(pieces, self._unk))
        # Padding scores as an unknown character does, which llama.cpp takes for the end of a list of tokens: wherever its text
        # is read no other token is, nor for the character before it.
        self._padding = {vocabulary.tokens[token][::-1]: token for token in np.flatnonzero(scaled == self._UNKNOWN).tolist()}
        self._find_padding = re.compile("|".join(map(re.escape, self._padding)) or "(?!)").search

    def encode(self, text: str) -> list[int]:
        """Encode text; characters that are in no token become their bytes."""
        backwards = text.removeprefix("\ufeff")[::-1]
        ids, at = [], 0
        while (padding := self._find_padding(backwards, at)) is not None:
            ids += [*self._encode_backwards(backwards[at : padding.start()]), self._padding[padding[0]]]
            at = padding.end() + 1
            ids += self._bytes_backwards(backwards[at - 1 : at])
        ids += self._encode_backwards(backwards[at:])
        return ids[::-1]

    def _encode_backwards(self, backwards: str) -> list[int]:
        """Encode text without padding, both from the end."""
        encoding = call_library(self._tokenizer, backwards)
        ids: list[int] = encoding.ids
        if self._unk not in ids:
            return ids
        return [
            known
            for token, (start, end) in zip(ids, encoding.offsets, strict=True)
            for known in ([token] if token != self._unk else self._bytes_backwards(backwards[start:end]))
        ]

    def _bytes_backwards(self, backwards: str) -> list[int]:
        return [self._bytes[byte] for byte in reversed(backwards[::-1].encode())]

    def spell(self, text: str) -> bytes:
        return text.encode("utf-8", "surrogateescape")
