"""Unigram vocabularies, of T5's kind and of PLaMo 2: a text takes those tokens that have the highest sum of scores.

The search is the `tokenizers` library's, which is llama.cpp's to the order in which ties are broken (`llm_tokenizer_ugm` in its
src/llama-vocab.cpp). The steps before it, and the choice of tokens, are the same as there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import ModelFileError
from augury.text.bpe import SURROGATE, call_library
from augury.text.special_token import TokenType
from augury.text.vocabulary import SPACE, Codec, Vocabulary

if TYPE_CHECKING:
    import tokenizers


_N_NODES = 1 << 15  # at once: maps of Unicode's normal forms have 5000, and a damaged one could have endlessly many
_DAMAGED = "tokenizer.ggml.precompiled_charsmap is damaged: {}; convert the model again"


class CharacterMap:
    """A map from texts to their replacements, as SentencePiece compiles it.

    It is the length of a double-array trie (4 bytes, little-endian), the trie, and the texts that its values point to. A unit
    of the trie holds the byte that leads to it (bits 0 to 7), whether a value follows (8), and where its children are, to be
    combined with their bytes by exclusive or (10 to 30, in steps of 256 if bit 9 is set); a value has bit 31 set.

    Attributes:
        single: replacements of single characters, for `str.translate`.
        heads: characters that begin a longer text that is replaced.
        followers: characters that are second in one.

    Raises:
        ModelFileError: it is damaged.
    """

    def __init__(self, charsmap: bytes) -> None:
        n_bytes = int.from_bytes(charsmap[:4], "little")
        if len(charsmap) <= 4 + n_bytes or n_bytes < 4:
            raise ModelFileError(_DAMAGED.format(f"it has {len(charsmap)} bytes, expected more than {4 + n_bytes}"))
        self._units = np.frombuffer(charsmap, "<u4", n_bytes // 4, 4)
        self._texts = charsmap[4 + n_bytes :]
        root = _children_of(self._units[:1])
        firsts = self._characters(root)
        self.single = {ord(character): self._text(node) for character, node, has_value in firsts if has_value}
        nodes = np.array([node for _, node, _ in firsts], np.uint32)
        goes_on = np.any(self._step(nodes)[1], axis=1).tolist()
        self.heads = {character for (character, _, _), more in zip(firsts, goes_on, strict=True) if more}
        self.followers = {character for character, _, _ in self._characters(np.unique(nodes))}

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters from here are replaced together, and by what; 0 if none."""
        node, found, end = int(_children_of(self._units[:1])[0]), (0, ""), at
        while end < len(text):
            for byte in text[end].encode():
                node ^= byte
                if byte == 0 or node >= len(self._units) or (unit := int(self._units[node])) & 0x800000FF != byte:
                    return found
                node ^= (unit >> 10) << ((unit & (1 << 9)) >> 6)
            end += 1
            if unit & (1 << 8):
                found = end - at, self._text(node)
        return found

    def _characters(self, nodes: np.ndarray) -> list[tuple[str, int, bool]]:
        """The characters that go on from these nodes, the nodes that they lead to, and whether these have a value."""
        found, starts = [], [b""] * len(nodes)
        for _ in range(4):
            children, leads = self._step(nodes)
            _check_width(int(np.count_nonzero(leads)))
            parents, steps = np.nonzero(leads)
            units = self._units[children[leads]]
            starts = [starts[parent] + bytes([step + 1]) for parent, step in zip(parents.tolist(), steps.tolist(), strict=True)]
            nodes = children[leads] ^ _children_of(units)
            is_whole = np.array([_is_character(start) for start in starts], bool)
            has_value = (units & (1 << 8)) != 0
            found += [
                (starts[which].decode(), int(nodes[which]), bool(has_value[which]))
                for which in np.flatnonzero(is_whole).tolist()
            ]
            starts = [start for start, whole in zip(starts, is_whole.tolist(), strict=True) if not whole]
            nodes = nodes[~is_whole]
        return found

    def _step(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the bytes 1 to 255 lead from nodes, (n, 255), and whether they are children."""
        _check_width(len(nodes))
        bytes_ = np.arange(1, 256, dtype=np.uint32)
        children = nodes[:, None] ^ bytes_
        is_inside = children < len(self._units)
        return children, is_inside & ((self._units[np.where(is_inside, children, 0)] & 0x800000FF) == bytes_)

    def _text(self, node: int) -> str:
        """The replacement that a node's value points to."""
        start = int(self._units[node]) & 0x7FFFFFFF if node < len(self._units) else len(self._texts)
        if (end := self._texts.find(b"\0", start)) < 0:
            raise ModelFileError(_DAMAGED.format("a replacement lies outside"))
        return self._texts[start:end].decode(errors="replace")


def _children_of(units: np.ndarray) -> np.ndarray:
    """Where the children of units are, relative to them."""
    return (units >> 10) << ((units & (1 << 9)) >> 6)


def _check_width(n: int) -> None:
    if n > _N_NODES:
        raise ModelFileError(_DAMAGED.format(f"its trie has more than {_N_NODES} branches"))


def _is_character(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False


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


class PlamoCodec(Codec):
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind plamo2.

    llama.cpp's search (`llm_tokenizer_plamo2`) goes through the text from its end, and of several ways with one sum it takes
    that whose first token is longest; so the library gets all texts backwards. Characters without a token are bytes.

    Raises:
        ModelFileError: scores or tokens for single bytes are missing.
    """

    _UNKNOWN = -10_000_000  # the score of a character that is in no token, in ten thousandths

    def __init__(self, vocabulary: Vocabulary) -> None:
        numbers = vocabulary.of_type(TokenType.BYTE)
        found = {int(vocabulary.tokens[token][3:5], 16): token for token in numbers}
        if missing := [byte for byte in range(256) if byte not in found]:
            raise ModelFileError(f"the vocabulary has no token <0x{missing[0]:02X}>, expected one for each byte")
        self._bytes = [found[byte] for byte in range(256)]
        scaled = vocabulary.scores() * 1e4
        scaled = np.where(np.isfinite(scaled), np.sign(scaled) * np.floor(np.abs(scaled) + 0.5), -np.inf)
        pieces = [
            (text[::-1], score) if score > self._UNKNOWN else (unreachable(token), 0.0)
            for token, (text, score) in enumerate(zip(vocabulary.tokens, scaled.tolist(), strict=True))
        ]
        for token in numbers:
            pieces[token] = (unreachable(token), 0.0)
        self._unk = len(pieces)
        pieces.append((unreachable(self._unk), self._UNKNOWN + UNKNOWN_PENALTY))
        self._tokenizer = unigram_tokenizer(pieces, self._unk)
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
