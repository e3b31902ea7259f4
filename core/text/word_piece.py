"""WordPiece: words are cut into the longest tokens that fit, from the left, as BERT and its like do.

Normalisation and its oddities are llama.cpp's (`llm_tokenizer_wpm_session` in its src/llama-vocab.cpp), because files are
converted with it in mind: a token that begins a word starts with "▁", and one that goes on has no mark.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from augury.errors import ModelFileError
from augury.text.pre_tokenizer import MARK, NEWER, PUNCTUATION
from augury.text.vocabulary import SPACE, Codec, Vocabulary

_IDEOGRAPHS = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}"
    r"\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_N_CACHED = 100_000  # words of at most _N_LETTERS letters
_N_LETTERS = 64


class WordPieceCodec(Codec):
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind bert.

    Raises:
        ModelFileError: the vocabulary has no unknown token, or none to begin or end a text with.
    """

    adds_bos = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        bos, sep, unk = map(vocabulary.token, ("bos", "seperator", "unknown"))
        if bos is None or sep is None or unk is None:
            raise ModelFileError(
                f"tokenizer.ggml.bos_token_id is {bos}, seperator_token_id {sep} and unknown_token_id {unk}; expected three "
                "tokens of the vocabulary"
            )
        lowercases, strips = vocabulary.flag("normalizer.lowercase") is not False, vocabulary.flag("normalizer.strip_accents")
        strips = lowercases if strips is None else strips
        self._characters = _Characters(lowercases=lowercases, strips_accents=strips)
        self._ids = vocabulary.ids
        self._unk = unk
        self._n_longest = max(map(len, vocabulary.tokens), default=0)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Encode text; a word that is not made of tokens is the unknown token."""
        ids: list[int] = []
        for word in text.translate(self._characters).split():
            if (found := self._cache.get(word)) is None:
                found = self._cut(SPACE + word) or [self._unk]
                if len(word) <= _N_LETTERS and len(self._cache) < _N_CACHED:
                    self._cache[word] = found
            ids += found
        return ids

    def _cut(self, word: str) -> list[int]:
        """The longest tokens from the left, or nothing if the rest begins with none."""
        ids, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + self._n_longest), start, -1):
                if (token := self._ids.get(word[start:end])) is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return []
        return ids


class _Characters(dict[int, str]):
    """The replacement of a character before text is cut into words, for `str.translate`; filled as characters come."""

    def __init__(self, *, lowercases: bool, strips_accents: bool) -> None:
        super().__init__()
        self._lowercases = lowercases
        self._strips_accents = strips_accents
        self._is_newer = _one_of(f"[{NEWER}]")
        self._is_space = _one_of(r"\s")
        self._is_dropped = _one_of(r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}]")
        self._is_accent = _one_of(MARK)
        self._stands_alone = _one_of(rf"[{PUNCTUATION}{_IDEOGRAPHS}$+<=>^`|~]")

    def __missing__(self, code: int) -> str:
        self[code] = text = self._normalised(chr(code))
        return text

    def _normalised(self, character: str) -> str:
        if self._is_newer(character):
            return character
        if self._strips_accents:
            character = unicodedata.normalize("NFD", character)[0]
        if self._is_space(character):
            return " "
        if self._is_dropped(character) or (self._strips_accents and self._is_accent(character)):
            return ""
        text = character.lower()[0] if self._lowercases else character
        return f" {text} " if self._stands_alone(character) else text


def _one_of(pattern: str) -> Callable[[str], bool]:
    """Whether a character matches a pattern of the `tokenizers` library, whose Unicode is the same for every Python."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return lambda character: not split.pre_tokenize_str(character)
