"""The vocabulary of a model file: texts, types and scores of the tokens, and the roles of the special ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeVar, get_origin

import numpy as np
from attrs import field, frozen

from augury.errors import ModelFileError, UnsupportedError
from augury.log import get_logger
from augury.text.special_token import ROLE_KEYS, TokenType, assign_roles

Kind = TypeVar("Kind", str, int, bool, list[str])

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_PREFIX = "tokenizer.ggml."
_DEFAULTS = {  # special tokens where a file does not name them, by kind
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    "plamo2": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
}
_NO_TOKEN = (-1, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # how some converters write that there is none

SPACE = "▁"
"""The character that stands for a space in the tokens of most vocabularies."""


class Codec(ABC):
    """One kind of vocabulary: how text between special tokens is encoded, and the spelling of a normal token."""

    adds_bos = False  # whether texts begin with the bos token where the file does not say
    adds_space_prefix = False  # whether a space is put before text where the file does not say

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Encode text that holds no special tokens."""

    def spell(self, text: str) -> bytes:
        """The bytes that a normal token's text stands for."""
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


@frozen(eq=False)
class Vocabulary:
    """Tokens by id, V of them, and the roles of the special ones.

    Metadata that only some kinds use is read when it is asked for. So damage to what nothing uses harms nobody.
    """

    kind: str  # tokenizer.ggml.model
    tokens: list[str] = field(repr=False)  # bytes that are not UTF-8 are surrogate escapes
    ids: dict[str, int] = field(repr=False)  # token text → id
    types: np.ndarray = field(repr=False)  # (V,) int32, TokenType, put right where a text says more than the file
    eog: frozenset[int]
    fim: dict[str, int]  # tokens for filling in the middle, see `assign_roles`
    strips_right: frozenset[int]  # special tokens to which white space after them belongs
    _metadata: Mapping[str, object] = field(repr=False)

    @property
    def pre(self) -> str | None:
        """`tokenizer.ggml.pre`: how text is split before byte-level BPE."""
        return "gemma4" if self.kind == "gemma4" else _optional(self._metadata, "pre", str)

    def token(self, role: str) -> int | None:
        """The token that `tokenizer.ggml.<role>_token_id` names, or the one that it is in vocabularies of this kind."""
        return _token(self._metadata, self.kind, f"{role}_token_id", len(self.tokens))

    def flag(self, key: str) -> bool | None:
        """Whether `tokenizer.ggml.<key>` is so; None: the file does not say."""
        return _optional(self._metadata, key, bool)

    @property
    def merges(self) -> list[str] | None:
        """Pairs of token texts with a space between them, the first to be merged first."""
        return _optional(self._metadata, "merges", list[str])

    @property
    def suppressed(self) -> frozenset[int]:
        """Tokens that are never to be sampled."""
        found = _numbers(self._metadata, "suppress_tokens", "iu")
        return frozenset() if found is None else frozenset(found.tolist()) & frozenset(range(len(self.tokens)))

    def scores(self) -> np.ndarray:
        """The tokens' scores, (V,) float64. Raises ModelFileError: there are none, or one is no number."""
        scores = _numbers(self._metadata, "scores", "fiu", len(self.tokens))
        if scores is None:
            raise ModelFileError(f"{_PREFIX}scores is missing, expected an array of numbers; convert the model again")
        if np.isnan(scores).any():
            wrong = int(np.isnan(scores).argmax())
            raise ModelFileError(f"{_PREFIX}scores has no number for token {wrong}, expected one for each")
        return scores.astype(np.float32).astype(np.float64)

    def of_type(self, *types: TokenType) -> list[int]:
        """Ids of the tokens of these types, rising."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def read_vocabulary(metadata: Mapping[str, object], kinds: Iterable[str]) -> Vocabulary | None:
    """The vocabulary that a model file's metadata holds, or None. Raises UnsupportedError: it is none of these `kinds`.

    Raises ModelFileError: a part is missing, of a wrong type or length, or refers to tokens that do not exist.
    """
    kind = _optional(metadata, "model", str)
    if kind is None or kind in ("none", "no_vocab"):
        return None
    if kind not in kinds:
        raise UnsupportedError(
            f"tokenizer.ggml.model is {kind!r}, a kind of vocabulary that augury does not read; give token ids instead of "
            f"text, or name one that is the same, of {', '.join(kinds)}: --override-kv tokenizer.ggml.model=str:NAME"
        )
    if (texts := _optional(metadata, "tokens", list[str])) is None:
        raise ModelFileError(f"{_PREFIX}tokens is missing, expected an array of strings; convert the model again")
    tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(texts)]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        first = next(token for token, text in enumerate(tokens) if ids[text] != token)
        again = ids[tokens[first]]
        raise ModelFileError(
            f"{_PREFIX}tokens holds {tokens[first]!r} as token {first} and as {again}, expected each text once"
        )
    types = _numbers(metadata, "token_type", "iu", len(tokens))
    types = np.full(len(tokens), TokenType.NORMAL, np.int32) if types is None else types.astype(np.int32)
    for token in np.flatnonzero(types == TokenType.BYTE).tolist():
        if _BYTE.fullmatch(tokens[token]) is None:
            raise ModelFileError(f"token {token} is {tokens[token]!r}, expected a byte as <0x00> to <0xFF>, as its type says")
    named = {key: _token(metadata, kind, key, len(tokens)) for key in ROLE_KEYS}
    eog, fim = assign_roles(ids, types, {key: token for key, token in named.items() if token is not None})
    _warn_of_tokens(metadata, kind, len(tokens))
    return Vocabulary(kind, tokens, ids, types, eog, fim, _strips(metadata, ids, types), metadata)


def _strips(metadata: Mapping[str, object], ids: Mapping[str, int], types: np.ndarray) -> frozenset[int]:
    """The special tokens that take white space after them, as the end of llama.cpp's `llama_vocab::impl::load` says."""
    if not re.search("phi-?3", str(metadata.get("general.name")).lower()):
        return frozenset()
    special = np.flatnonzero(np.isin(types, (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN))).tolist()
    return frozenset(special) - {ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}


def _token(metadata: Mapping[str, object], kind: str, key: str, n_vocab: int) -> int | None:
    """The token that `tokenizer.ggml.<key>` names, or the kind's own. Raises ModelFileError: there is no such token."""
    if f"{_PREFIX}{key}" not in metadata:
        default = _DEFAULTS.get(kind, {}).get(key, n_vocab)
        return default if default < n_vocab else None
    token = _optional(metadata, key, int)
    if token is None or token in _NO_TOKEN:
        return None
    if not 0 <= token < n_vocab:
        raise ModelFileError(f"{_PREFIX}{key} is {token}, expected a token of the vocabulary, 0 to {n_vocab - 1}")
    return token


def _warn_of_tokens(metadata: Mapping[str, object], kind: str, n_vocab: int) -> None:
    """Tell of tokens that do not exist, whether or not something will ask for them."""
    for full in metadata:
        if full.startswith(_PREFIX) and full.endswith("_token_id"):
            try:
                _token(metadata, kind, full.removeprefix(_PREFIX), n_vocab)
            except ModelFileError as error:
                get_logger("augury.text.vocabulary").warning("a token is not there", reason=str(error))


def _optional(metadata: Mapping[str, object], key: str, kind: type[Kind]) -> Kind | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if type(value) is not (get_origin(kind) or kind) or (isinstance(value, list) and not set(map(type, value)) <= {str}):
        expected = {str: "a string", int: "an integer", bool: "true or false", list[str]: "an array of strings"}[kind]
        raise ModelFileError(f"{_PREFIX}{key} is {_described(value)}, expected {expected}")
    return value


def _numbers(metadata: Mapping[str, object], key: str, dtypes: str, n_vocab: int | None = None) -> np.ndarray | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    try:
        numbers = np.asarray(value) if isinstance(value, list | np.ndarray) else None
    except ValueError:  # a list of lists of several lengths
        numbers = None
    if numbers is None or numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in dtypes):
        raise ModelFileError(f"{_PREFIX}{key} is {_described(value)}, expected an array of numbers")
    if n_vocab is not None and numbers.size != n_vocab:
        raise ModelFileError(f"{_PREFIX}{key} has {numbers.size} entries, expected one for each of the {n_vocab} tokens")
    return numbers


def _described(value: object) -> str:
    if isinstance(value, list | np.ndarray):
        return f"an array of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
