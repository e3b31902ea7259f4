"""Byte-pair encoding, by the `tokenizers` library built from a model file's tokens and merges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from augury.errors import CapacityError, ModelFileError
from augury.text.pre_tokenizer import Merged, PreTokenizer, pre_tokenizer
from augury.text.vocabulary import SPACE, Codec, Vocabulary

if TYPE_CHECKING:
    import tokenizers


def byte_characters() -> list[str]:
    """The character of each byte in token texts: itself if it prints in Latin-1, else one from U+0100 on, as in GPT-2."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(spare)) for byte in range(256)]


_CHARACTERS = byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}
_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
SURROGATE = re.compile("[\ud800-\udfff]")
_NEWLINES = re.compile("(\n+)")


class BytePairCodec(Codec):
    """For vocabularies of kind gpt2 and gemma4. Raises ModelFileError: merges are missing or wrong; and as `pre_tokenizer`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pre = pre_tokenizer(vocabulary.pre)
        merges = vocabulary.merges
        if merges is None and vocabulary.pre != "kimi-k2":
            raise ModelFileError("tokenizer.ggml.merges is missing, expected an array of strings; convert the model again")
        self.adds_bos = self._pre.adds_bos
        self._n_vocab = len(vocabulary.tokens)
        # A byte without a token must stay where it is while its neighbours are merged; its number tells it from tokens.
        alphabet = _CHARACTERS if self._pre.is_byte_level else _BYTE_TOKENS
        missing = [text for text in alphabet if text not in vocabulary.ids]
        self._has_all_bytes = not missing
        ids = vocabulary.ids | {text: self._n_vocab + index for index, text in enumerate(missing)}
        if SURROGATE.search("".join(ids)):  # bytes that are not text: no text holds them, and the library does not take them
            ids = {text: token for text, token in ids.items() if not SURROGATE.search(text)}
        self._newlines = {text: token for text, token in ids.items() if not text.strip("\n")}
        self._tokenizer = _build(ids, merges or [], self._pre)

    def encode(self, text: str) -> list[int]:
        """Encode text; a byte that the vocabulary has no token for is left out."""
        if not self._pre.is_byte_level:
            text = text.replace(" ", SPACE)
        if not self._pre.takes_newlines:
            return self._encode(text)
        ids: list[int] = []
        for piece in filter(None, _NEWLINES.split(text)):
            if (token := self._newlines.get(piece)) is not None:
                ids.append(token)
            else:
                ids += self._encode(piece)
        return ids

    def _encode(self, text: str) -> list[int]:
        ids = call_library(self._tokenizer, text).ids
        return ids if self._has_all_bytes else [token for token in ids if token < self._n_vocab]

    def spell(self, text: str) -> bytes:
        if not self._pre.is_byte_level:
            return super().spell(text)
        try:
            return bytes([_BYTES[character] for character in text])
        except KeyError:  # not byte-level: the text itself is meant
            return text.encode("utf-8", "surrogateescape")


class DnaCodec(BytePairCodec):
    """For vocabularies of kind hybriddna: text between `<dna>` and `</dna>` is read six letters at a time."""

    _MARK = "\ue000"  # ends the texts of such tokens, to tell them from words
    _N_LETTERS = 6

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._ids = vocabulary.ids
        self._knows_dna = {"<dna>", "</dna>", "<oov>"} <= vocabulary.ids.keys()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            before, tag, text = text.partition("<dna>") if self._knows_dna else (text, "", "")
            ids += super().encode(before) if before else []
            if tag:
                letters, end, text = text.partition("</dna>")
                ids += [self._ids["<dna>"], *self._read(letters)]
                ids += [self._ids["</dna>"]] if end else []
        return ids

    def _read(self, letters: str) -> list[int]:
        raw = letters.encode().upper()
        words = [raw[at : at + self._N_LETTERS].ljust(self._N_LETTERS, b"A") for at in range(0, len(raw), self._N_LETTERS)]
        return [self._ids.get(word.decode(errors="replace") + self._MARK, self._ids["<oov>"]) for word in words]

    def spell(self, text: str) -> bytes:
        return super().spell(text.removesuffix(self._MARK) or text)


def call_library(tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """Encode text with a tokenizer of the library. Raises CapacityError: the library gives up."""
    try:
        return tokenizer.encode_batch([text], add_special_tokens=False)[0]  # `encode` keeps other threads from running
    except BaseException as error:  # a panic of the library, such as for ten million spaces in a row, is no Exception
        if isinstance(error, Exception) or type(error).__name__ != "PanicException":
            raise
        raise CapacityError(f"the tokenizers library gives up on {len(text)} characters of text: {error}") from error


def _build(ids: dict[str, int], merges: list[str], pre: PreTokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    merges = list(dict.fromkeys(merges))  # of two that are alike the first counts, where the library takes the last
    pairs = [(merge[:at], merge[at + 1 :]) for merge in merges if (at := merge.find(" ", 1)) > 0]
    if len(pairs) < len(merges):
        malformed = next(merge for merge in merges if merge.find(" ", 1) < 0)
        raise ModelFileError(f"tokenizer.ggml.merges holds {malformed!r}, expected two token texts separated by a space")
    try:
        model = models.BPE(ids, pairs, ignore_merges=pre.takes_whole_words, byte_fallback=not pre.is_byte_level)
    except Exception as error:  # the library raises nothing narrower
        said = ascii(" ".join(str(error).split()))[1:-1]  # it may be several lines, with any characters of a damaged file
        raise ModelFileError(f"tokenizer.ggml.merges does not fit the tokens: {said}; convert the model again") from error
    tokenizer = Tokenizer(model)
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(each.pattern), f"merged_with_{each.neighbour}")
        if isinstance(each, Merged)
        else pre_tokenizers.Split(Regex(each), "isolated")
        for each in pre.patterns
    ]
    if pre.is_byte_level:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return tokenizer
