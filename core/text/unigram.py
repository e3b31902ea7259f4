"""Unigram vocabularies (T5, XLM-R): a text takes those tokens that have the highest sum of scores.

The search is the `tokenizers` library's, which is llama.cpp's to the order in which ties are broken (`llm_tokenizer_ugm` in its
src/llama-vocab.cpp). The steps before it, and the choice of tokens, are the same as there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from augury.errors import ModelFileError
from augury.text.bpe import SURROGATE, call_library
from augury.text.character_map import CharacterMap
from augury.text.special_token import TokenType
from augury.text.vocabulary import SPACE, Codec, Vocabulary

if TYPE_CHECKING:
    import tokenizers

UNKNOWN_PENALTY = 10.0  # of the library, and of llama.cpp: the score of an unknown character below the worst token


class UnigramCodec(Codec):
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind t5.

    Raises:
        ModelFileError: scores or the unknown token are missing, or the map of characters is damaged.
    """

    adds_eos = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        if (unk := vocabulary.token("unknown")) is None:
            raise ModelFileError("tokenizer.ggml.unknown_token_id is missing, expected a token of the vocabulary")
        self._prefix = SPACE if vocabulary.flag("add_space_prefix") else ""
        self._merges_spaces = bool(vocabulary.flag("remove_extra_whitespaces"))
        user_defined = vocabulary.of_type(TokenType.USER_DEFINED, is_stated=True)
        self._normaliser = _Normaliser(vocabulary.charsmap, [vocabulary.tokens[token] for token in user_defined])
        scores = vocabulary.scores()
        normal = vocabulary.of_type(TokenType.NORMAL, is_stated=True)
        worst = float(scores[normal].min()) if normal else 0.0
        scores[user_defined] = 0.0
        known = {*normal, *user_defined, *vocabulary.of_type(TokenType.UNUSED, is_stated=True)}
        pieces = [
            (text, float(scores[token])) if token in known else (unreachable(token), worst)
            for token, text in enumerate(vocabulary.tokens)
        ]
        self._tokenizer = unigram_tokenizer(pieces, unk)

    def encode(self, text: str) -> list[int]:
        """Encode text; characters in a row that are in no token are one unknown token."""
        text = self._normaliser.normalise(text)
        if self._merges_spaces:
            text = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            words = text.lstrip(" ")
            text = (text[: len(text) - len(words)] + (self._prefix + words if words else "")).replace(" ", SPACE)
        return call_library(self._tokenizer, text).ids if text else []


class _Normaliser:
    """Replaces characters as a precompiled map says, wherever text is not the beginning of a user-defined token.

    Args:
        charsmap: as SentencePiece stores it, or nothing.
        user_defined: texts that stay as they are.
    """

    def __init__(self, charsmap: bytes, user_defined: list[str]) -> None:
        self._map = CharacterMap(charsmap) if charsmap else None
        self._kept = {text[:n] for text in user_defined for n in range(1, len(text) + 1)}
        choices = [f"[{_escaped(text[0] for text in self._kept)}]"] if self._kept else []
        if self._map is not None and self._map.heads:
            choices.append(f"[{_escaped(self._map.heads)}](?=[{_escaped(self._map.followers)}])")
        self._special = re.compile("|".join(choices)) if choices else None

    def normalise(self, text: str) -> str:
        """The text that is looked up in the vocabulary."""
        single = self._map.single if self._map is not None else {}
        parts, start, at = [], 0, 0
        while self._special is not None and (match := self._special.search(text, at)) is not None:
            at = match.start()
            n, replacement = self._kept_at(text, at) or (self._map.longest(text, at) if self._map is not None else (0, ""))
            if n:
                parts += [text[start:at].translate(single), replacement]
                start = at + n
            at += n or 1
        return "".join([*parts, text[start:].translate(single)])

    def _kept_at(self, text: str, at: int) -> tuple[int, str] | None:
        """How much of the text from here on is the beginning of a user-defined token."""
        n = 0
        while at + n < len(text) and text[at : at + n + 1] in self._kept:
            n += 1
        return (n, text[at : at + n]) if n else None


def _escaped(characters: Iterable[str]) -> str:
    """Characters for a class of a regular expression."""
    return "".join(map(re.escape, sorted(set(characters))))


def unreachable(token: int) -> str:
    """A text that stands in for a token which no text is read as; noncharacters are in no one's text."""
    return f"\U0010ffff{token}\U0010ffff"


def unigram_tokenizer(pieces: list[tuple[str, float]], unk: int) -> tokenizers.Tokenizer:
    """Build the library's tokenizer of texts and scores by token id; texts that are not Unicode are never read."""
    from tokenizers import Tokenizer, models

    if SURROGATE.search("".join(text for text, _ in pieces)):
        pieces = [
            (unreachable(token), score) if SURROGATE.search(text) else (text, score)
            for token, (text, score) in enumerate(pieces)
        ]
    return Tokenizer(models.Unigram(pieces, unk))
