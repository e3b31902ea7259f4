"""Byte-level byte-pair encoding, by the `tokenizers` library built from a model file's tokens and merges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from augury.errors import CapacityError, ModelFileError
from augury.text.pre_tokenizer import pre_tokenizer

if TYPE_CHECKING:
    import tokenizers

    from augury.text.pre_tokenizer import PreTokenizer
    from augury.text.vocabulary import Vocabulary

__all__ = ["ByteLevelCodec"]


def _byte_characters() -> list[str]:
    """The character that stands for each byte in token texts: itself if it prints in Latin-1, else one from U+0100 on.

    Source: GPT-2's `bytes_to_unicode`.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(spare)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}
_SURROGATE = re.compile("[\ud800-\udfff]")


class ByteLevelCodec:
    """Encodes text without special tokens, and spells tokens, for vocabularies of kind gpt2.

    Args:
        vocabulary: the tokens.
        merges: pairs of token texts, separated by a space, the first to be merged first.

    Raises:
        ModelFileError: a merge is malformed or refers to a token that does not exist.
        UnsupportedError: the vocabulary names an unknown pre-tokenizer.
    """

    adds_space_prefix = False

    def __init__(self, vocabulary: Vocabulary, merges: list[str]) -> None:
        pre = pre_tokenizer(vocabulary.pre)
        self.adds_bos = pre.adds_bos
        self._n_vocab = len(vocabulary.tokens)
        # A byte without a token must stay where it is while its neighbours are merged; its number tells it from tokens.
        missing = [character for character in _CHARACTERS if character not in vocabulary.ids]
        self._has_all_bytes = not missing
        ids = vocabulary.ids | {character: self._n_vocab + index for index, character in enumerate(missing)}
        if _SURROGATE.search("".join(ids)):  # bytes that are not text: no text holds them, and the library does not take them
            ids = {text: token for text, token in ids.items() if not _SURROGATE.search(text)}
        self._tokenizer = _build(ids, merges, pre)

    def encode(self, text: str) -> list[int]:
        """Encode text; a byte that the vocabulary has no token for is left out."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library, such as for ten million spaces in a row, is no Exception
            if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                raise
            raise CapacityError(f"the tokenizers library gives up on {len(text)} characters of text: {error}") from error
        return ids if self._has_all_bytes else [token for token in ids if token < self._n_vocab]

    def spell(self, text: str) -> bytes:
        """The bytes that a normal token's text stands for."""
        try:
            return bytes([_BYTES[character] for character in text])
        except KeyError:  # not byte-level: the text itself is meant
            return text.encode("utf-8", "surrogateescape")


def _build(ids: dict[str, int], merges: list[str], pre: PreTokenizer) -> tokenizers.Tokenizer:
    """Build the library's tokenizer."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    pairs = [(merge[:at], merge[at + 1 :]) for merge in merges if (at := merge.find(" ", 1)) > 0]
    if len(pairs) < len(merges):
        malformed = next(merge for merge in merges if merge.find(" ", 1) < 0)
        raise ModelFileError(f"tokenizer.ggml.merges holds {malformed!r}, expected two token texts separated by a space")
    try:
        model = models.BPE(ids, pairs, ignore_merges=pre.takes_whole_words)
    except Exception as error:  # the library raises nothing narrower
        said = ascii(" ".join(str(error).split()))[1:-1]  # it may be several lines, with any characters of a damaged file
        raise ModelFileError(f"tokenizer.ggml.merges does not fit the tokens: {said}; convert the model again") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer
