"""Text ↔ token ids, for the vocabularies that model files carry."""

from __future__ import annotations

import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property

from augury.errors import OptionError, PromptTooLongError
from augury.memory_limit import require_address_space
from augury.text.bpe import BytePairCodec, DnaCodec
from augury.text.sentence_piece import PlamoCodec, SentencePieceCodec
from augury.text.special_token import Partition, TokenType
from augury.text.vocabulary import Codec, Vocabulary, read_vocabulary

_NOT_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN)
_SILENT = (TokenType.UNUSED, TokenType.UNDEFINED)
_LARGE = 1 << 18  # characters
_WORD = 1024  # bytes that a word is taken to have which may be one unknown token
_CODECS: dict[str, Callable[[Vocabulary], Codec]] = {  # by tokenizer.ggml.model
    "llama": SentencePieceCodec,
    "gpt2": BytePairCodec,
    "gemma4": BytePairCodec,
    "hybriddna": DnaCodec,
    "plamo2": PlamoCodec,
}


class Tokenizer:
    """Encodes text to token ids and decodes them, as llama.cpp does with the same file.

    Safe to use from several threads.

    Attributes:
        kind: `tokenizer.ggml.model` of the file, such as "gpt2" (byte-level BPE) or "llama" (SentencePiece).
        n_vocab: number of tokens.
        bos: the token that begins a sequence, or None.
        eos: the token that ends a sequence, or None.
        eog: all tokens that end a generation, eos among them.
        fim: tokens for filling in the middle, those there are of "pre", "suf", "mid", "pad", "rep" and "sep".
        suppressed: tokens that are never to be sampled.
        add_bos: whether `encode` begins with bos by default.
        add_eos: whether `encode` ends with eos by default.
        add_space_prefix: whether `decode` takes off a space that `encode` puts before text.
    """

    def __init__(self, vocabulary: Vocabulary, codec: Codec) -> None:
        self._vocabulary = vocabulary
        self._codec = codec
        self._types: list[int] = vocabulary.types.tolist()
        self.special = frozenset(vocabulary.of_type(*_NOT_TEXT))  # control tokens and the unknown token
        self._pieces: dict[int, bytes] = {}  # by token, that were asked for: texts say the same words again
        self.kind = vocabulary.kind
        self._spells_all = self.kind == "plamo2"  # its tokens of all types are written alike
        self.n_vocab = len(vocabulary.tokens)
        self.bos = vocabulary.token("bos")
        self.eos = vocabulary.token("eos")
        self.eog = vocabulary.eog
        self.fim = vocabulary.fim
        self.suppressed = vocabulary.suppressed
        self.add_bos = self.bos is not None and self._adds("bos")
        self.add_eos = self.eos is not None and self._adds("eos")
        said = vocabulary.flag("add_space_prefix")
        self.add_space_prefix = codec.adds_space_prefix if said is None else said
        self._prefix = " " if self.add_space_prefix and self.kind == "llama" else ""
        self._large = threading.Lock()  # held while a large text is encoded: the memory of one at a time has to be there
        self._partitions = {  # by whether control tokens are found in text
            False: self._partition(TokenType.USER_DEFINED),
            True: self._partition(TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN),
        }

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        n_most: int | None = None,
        separator: str | None = None,
    ) -> list[int]:
        """Encode text. Raises OptionError: it holds half of a surrogate pair, which no encoding of text can hold.

        Args:
            text: any text.
            add_special: begin with bos and end with eos, where the model wants them (`add_bos`, `add_eos`).
            parse_special: read the texts of control tokens, such as `<|im_end|>`, as these tokens. Leave it off for text that
                others wrote.
            separator: a character that is left out of the text once special tokens are found in it.
            n_most: tokens that there is room for. PromptTooLongError: the text has more for certain; a shorter one may have
                more. One too long by the longest token's bytes is refused before it is encoded, which takes 230 bytes of memory
                for each of its own.
        """
        if n_most is not None and (n_least := self.least_tokens(text)) > n_most:
            raise PromptTooLongError(n_least, n_most, is_least=True)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"the text holds {text[error.start]!r}, half of a surrogate pair, at position {error.start}; expected Unicode "
                "text (read files as UTF-8, with errors='replace' if need be)"
            ) from error
        with self._large if len(text) > _LARGE else nullcontext():
            return self._encoded(text, separator, add_special=add_special, parse_special=parse_special)

    def _encoded(self, text: str, separator: str | None, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        is_after_special = True
        for part in self._partitions[parse_special].cut(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                pieces = part.split(separator) if separator is not None else [part]
                for literal in pieces if self._spells_all else ["".join(pieces)]:  # that one finds control tokens anywhere
                    ids += self._codec.encode(self._prefix + literal if is_after_special else literal) if literal else ()
            is_after_special = isinstance(part, int)
        if add_special and self.add_eos and self.eos is not None:
            ids.append(self.eos)
        return ids

    def _adds(self, end: str) -> bool:
        vocabulary, codec = self._vocabulary, self._codec
        if end == "bos" and isinstance(codec, BytePairCodec) and vocabulary.pre in ("gemma4", "granite-embed-multi-311m"):
            return True
        said = vocabulary.flag(f"add_{end}_token")
        return (codec.adds_bos if end == "bos" else False) if said is None else said

    @property
    def control_texts(self) -> list[str]:
        """The texts of control tokens and of the unknown token, which plain text cannot stand for."""
        return [self._vocabulary.tokens[token] for token in self._vocabulary.of_type(*_NOT_TEXT)]

    def least_tokens(self, text: str) -> int:
        """How many tokens a text has at least: its bytes, divided by those of the longest token.

        White space is not counted where special tokens swallow it. Where words that the vocabulary lacks are one token, a token
        counts as having 1024 bytes.
        """
        if self._vocabulary.strips_right:
            text = "".join(text.split())
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._n_longest)

    @cached_property
    def _n_longest(self) -> int:
        if self.kind == "hybriddna":
            return _WORD
        texts, longest = self._vocabulary.tokens, 1
        for token in sorted(range(self.n_vocab), key=lambda token: -len(texts[token])):
            if 4 * len(texts[token]) <= longest:  # bytes of a character
                break
            longest = max(longest, len(self.piece(token)))
        return longest

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """Decode token ids; bytes that are not UTF-8 become U+FFFD. Raises OptionError: an id is none of the vocabulary's.

        With `skip_special` control and unknown tokens are left out. If it `continues` other text, a space that begins it is
        kept, in vocabularies whose texts are encoded with a space before them.
        """
        decoder = StreamDecoder(self, skip_special=skip_special, continues=continues)
        return "".join([*map(decoder.push, ids), decoder.flush()])

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; of a control token, its text."""
        if (piece := self._pieces.get(token)) is None:
            piece = self._pieces[token] = self._spelled(token)
        return piece

    def _spelled(self, token: int) -> bytes:
        text, kind = self.text(token), self._types[token]
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])  # <0x0A>
        if kind == TokenType.NORMAL or self._spells_all:
            return self._codec.spell(text)
        return b"" if kind in _SILENT else text.encode("utf-8", "surrogateescape")

    def text(self, token: int) -> str:
        """The vocabulary's own text for a token, as vocabularies are compared; bytes that are not UTF-8 are surrogate escapes.

        Raises OptionError: the id is none of the vocabulary's.
        """
        if not 0 <= token < self.n_vocab:
            raise OptionError(f"token id {token} is not in the vocabulary, expected 0 to {self.n_vocab - 1}")
        return self._vocabulary.tokens[token]

    def is_special(self, token: int) -> bool:
        """Whether a token is a control token or the unknown token: not part of the text."""
        self.text(token)
        return token in self.special

    def is_normal(self, token: int) -> bool:
        """Whether a token spells ordinary text: neither special, nor user-defined, nor a byte, nor unused."""
        self.text(token)
        return self._types[token] == TokenType.NORMAL

    def _partition(self, *types: TokenType) -> Partition:
        vocabulary = self._vocabulary
        return Partition(
            [(vocabulary.tokens[token], token) for token in vocabulary.of_type(*types)], strips_right=vocabulary.strips_right
        )


class StreamDecoder:
    """Decodes tokens one by one, never showing half a character: its bytes are held back until the rest has come.

    The results of `push` and `flush`, joined, are the result of `Tokenizer.decode` for all tokens with the same settings; here
    `continues` is the default, because tokens stream where a model goes on from a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special if skip_special else frozenset[int]()
        self._strips_space = tokenizer.add_space_prefix and not continues
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; may be empty."""
        if token in self._skipped:
            return ""
        piece = self._tokenizer.piece(token)
        if self._strips_space:
            self._strips_space = False
            if self._tokenizer.is_normal(token):
                piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The rest, after the last token: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(metadata: Mapping[str, object]) -> Tokenizer | None:
    """The tokenizer that a model file's metadata describes, or None if it has none.

    Raises ModelFileError: it is damaged or contradicts itself. UnsupportedError: its kind, or way to cut words, is unknown.
    """
    vocabulary = read_vocabulary(metadata, _CODECS)
    if vocabulary is None:
        return None
    # measured: the libraries end the process where they get no memory
    require_address_space((96 << 20) + 2048 * len(vocabulary.tokens), "the tokenizer")
    return Tokenizer(vocabulary, _CODECS[vocabulary.kind](vocabulary))
