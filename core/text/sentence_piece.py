"""SentencePiece byte-pair encoding by scores: the `sentencepiece` library fed with a model file's vocabulary.

llama.cpp's encoder and SentencePiece's are the same algorithm: of all neighbours that form a token, join those whose token
has the highest score, the leftmost first. They differ in which tokens may be formed; llama.cpp forms tokens of any type.
So all tokens but the bytes are handed over as normal ones, and normalisation is left to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.errors import ModelFileError
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
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind llama.

    Raises:
        ModelFileError: the vocabulary has no scores, or SentencePiece refuses it.
    """

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
    """One token."""
    return _field(_PIECES, _field(_TEXT, text) + _SCORE + score + _TYPE + kind)


def _field(tag: bytes, value: bytes) -> bytes:
    """A field of variable length."""
    size, n = bytearray(), len(value)
    while n > 0x7F:
        size.append(n & 0x7F | 0x80)
        n >>= 7
    size.append(n)
    return tag + size + value
