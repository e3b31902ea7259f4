"""Vocabularies with scores: SentencePiece's, byte-pair encoded by the `sentencepiece` library, and PLaMo 2's.

llama.cpp's encoder and SentencePiece's are the same algorithm: of all neighbours that form a token, join those whose token
has the highest score, the leftmost first. They differ in which tokens may be formed; llama.cpp forms tokens of any type.
So all tokens but the bytes are handed over as normal ones, and normalisation is left to the caller.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import ModelFileError
from augury.text.bpe import SURROGATE, call_library
from augury.text.special_token import TokenType
from augury.text.vocabulary import SPACE, Codec, Vocabulary

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_UNKNOWN = "\U0010ffff"  # SentencePiece insists on a piece for unknown text; a noncharacter is in nobody's text

# Of sentencepiece_model.proto: fields as tag bytes, values of enums.
_PIECES, _TRAINER, _NORMALIZER = b"\x0a", b"\x12", b"\x1a"
_TEXT, _SCORE, _TYPE = b"\x0a", b"\x15", b"\x18"
_NORMAL_PIECE, _UNKNOWN_PIECE, _BYTE_PIECE = b"\x01", b"\x02", b"\x06"
_BPE = b"\x18\x02"  # model_type
_BYTE_FALLBACK = b"\x98\x02\x01"
_AS_IT_IS = b"\x0a\x08identity\x18\x00\x20\x00\x28\x00"  # no dummy prefix, extra spaces stay, spaces are not escaped


class SentencePieceCodec(Codec):
    """For vocabularies of kind llama. Raises ModelFileError: there are no scores, or SentencePiece refuses the vocabulary."""

    adds_bos = True
    adds_space_prefix = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._n_vocab = len(vocabulary.tokens)
        unk = vocabulary.token("unknown")
        self._unk = [] if unk is None else [unk]
        self._processor = _build(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Encode text; parts without a token become bytes, or the unknown token in vocabularies without bytes."""
        ids: list[int] = self._processor.EncodeAsIds(text.replace(" ", SPACE))
        if ids and max(ids) == self._n_vocab:
            return [known for token in ids for known in ([token] if token < self._n_vocab else self._unk)]
        return ids


def _build(vocabulary: Vocabulary) -> SentencePieceProcessor:
    """Hand the vocabulary to the library, as the protocol buffer that it reads."""
    from sentencepiece import SentencePieceProcessor

    types = [_NORMAL_PIECE] * len(vocabulary.tokens)
    has_all_bytes = len(numbers := vocabulary.of_type(TokenType.BYTE)) == 256
    for token in numbers if has_all_bytes else ():
        types[token] = _BYTE_PIECE
    scores = vocabulary.scores().astype("<f4").tobytes()
    proto = [
        _piece(text.encode("utf-8", "surrogateescape"), scores[4 * token : 4 * token + 4], types[token])
        for token, text in enumerate(vocabulary.tokens)
    ]
    proto += [
        _piece(_UNKNOWN.encode(), bytes(4), _UNKNOWN_PIECE),
        _field(_TRAINER, _BPE + (_BYTE_FALLBACK if has_all_bytes else b"")),
        _field(_NORMALIZER, _AS_IT_IS),
    ]
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(b"".join(proto))
    except RuntimeError as error:
        raise ModelFileError(f"the tokenizer's tokens are not a SentencePiece vocabulary: {error}") from error
    return processor


def _piece(text: bytes, score: bytes, kind: bytes) -> bytes:
    return _field(_PIECES, _field(_TEXT, text) + _SCORE + score + _TYPE + kind)


def _field(tag: bytes, value: bytes) -> bytes:
    size, n = bytearray(), len(value)
    while n > 0x7F:
        size.append(n & 0x7F | 0x80)
        n >>= 7
    size.append(n)
    return tag + size + value


_UNKNOWN_PENALTY = 10.0  # of the library: the score of an unknown character below the worst token


def _unreachable(token: int) -> str:
    """A text that stands in for a token which no text is read as; noncharacters are in no one's text."""
    return f"\U0010ffff{token}\U0010ffff"


class PlamoCodec(Codec):
    """For PLaMo 2: a text takes those tokens that have the highest sum of scores, and bytes where there are none.

    The search is the `tokenizers` library's for Unigram vocabularies. llama.cpp's (`llm_tokenizer_plamo2` in its
    src/llama-vocab.cpp) goes through the text from its end, and of several ways with one sum it takes that whose first token is
    longest; so the library gets all texts backwards. Raises ModelFileError: scores or tokens for single bytes are missing.
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
