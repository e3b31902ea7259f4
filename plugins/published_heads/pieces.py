"""The texts of tokens in a `tokenizer.model`, SentencePiece's file, without SentencePiece.

It is a message of protocol buffers: field 1, repeated, is a token, whose field 1 is its text.

Source: google/sentencepiece, `sentencepiece_model.proto`; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from augury.errors import ModelFileError

_TEXT, _BYTES = 1, 2  # the number of both fields; the wire type of what has a length
_SIZES = {1: 8, 5: 4}  # bytes of values of other wire types, but for numbers of any length
_LIMIT = 1 << 28  # bytes of a file


def pieces(path: Path) -> list[str]:
    """The texts by id.

    Raises:
        ModelFileError: It is no such file.
    """
    try:
        if path.stat().st_size > _LIMIT:
            raise ValueError(f"{path.stat().st_size} bytes, expected {_LIMIT} at most")  # noqa: TRY301 - told below
        texts = [next(_fields(piece), b"").decode("utf-8") for piece in _fields(path.read_bytes())]
    except (OSError, ValueError, IndexError) as error:
        raise ModelFileError(
            f"{path}: no tokens by id ({error}); remove it, and they are not compared with the target's"
        ) from None
    return texts


def _fields(data: bytes) -> Iterator[bytes]:
    """The contents of a message's fields of number 1.

    Raises:
        IndexError: It is cut off.
        ValueError: It is no message.
    """
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        kind, n = key & 7, 0
        if kind == _BYTES:
            n, at = _number(data, at)
        elif kind == 0:
            _, at = _number(data, at)
        else:
            n = _SIZES.get(kind, len(data))
        if at + n > len(data):
            raise ValueError("it is cut off, or no message of protocol buffers")
        if (key >> 3, kind) == (_TEXT, _BYTES):
            yield data[at : at + n]
        at += n


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits in each byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:  # the highest bit says that more follow
            return value, at
