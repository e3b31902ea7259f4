"""RWKV's vocabularies: the longest token that fits, byte by byte from the left."""

from __future__ import annotations

import re

from augury.errors import ModelFileError
from augury.text.vocabulary import Codec, Vocabulary

_ESCAPE = re.compile(rb"\\(x.{2}|.)", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class RwkvCodec(Codec):
    r"""Encodes text without special tokens, and spells tokens, for vocabularies of kind rwkv.

    Token texts are written with escapes, `\n` and `\xf0` for a byte, because tokens may hold parts of a character.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {self.spell(text): token for token, text in enumerate(vocabulary.tokens)}
        unk = vocabulary.token("unknown")
        self._unk = [] if unk is None else [unk]
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {start: sorted(known, reverse=True) for start, known in lengths.items()}  # of tokens by two first bytes

    def encode(self, text: str) -> list[int]:
        """Encode text; a byte that begins no token is the unknown token, or left out where there is none."""
        raw, ids, start = text.encode(), [], 0
        while start < len(raw):
            for n in (*self._lengths.get(raw[start : start + 2], ()), 1):
                if (token := self._ids.get(raw[start : start + n])) is not None:
                    ids.append(token)
                    start += n
                    break
            else:
                ids += self._unk
                start += 1
        return ids

    def spell(self, text: str) -> bytes:
        raw = text.encode("utf-8", "surrogateescape")
        try:
            return _ESCAPE.sub(_unescaped, raw)
        except ValueError as error:
            raise ModelFileError(f"tokenizer.ggml.tokens holds {text!r}, expected two hexadecimal digits after \\x") from error


def _unescaped(match: re.Match[bytes]) -> bytes:
    said = match[1]
    return bytes.fromhex(said[1:].decode()) if len(said) == 3 else _LETTERS.get(said, said)
