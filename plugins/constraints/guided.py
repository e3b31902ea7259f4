"""`Guided`: a constraint that follows a grammar of the library llguidance.

The library says of every state which tokens may follow, as packed bits, and which bytes must follow. Bytes that must follow are
written as the model's tokenizer would write them: while such tokens are due each of them is the only one allowed. The due
tokens are settled when a token is accepted, never on a query, so that the output is the same whether anybody drafts or not.

With a vocabulary that cannot spell every text nothing is forced: the library would force bytes that no token begins with.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.constraint import Constraint, ConstraintSession
from augury.errors import OptionError, PluginError, UnsupportedError
from augury.extras import install_command

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

# That texts are made of, except for control characters and planes of Unicode that few vocabularies spell
_BYTES = (*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1))
NO_FORCING = '%llguidance {"no_forcing": true}'
_N_ITEMS = 200_000  # that the library's parser may make for a mask, within seconds at worst; its 50,000 are too few for some
_AMBIGUOUS = "this text can be read in too many ways by the grammar; write it with fewer alternatives that begin alike"
_DEAD_END = "no token of the vocabulary begins what the grammar wants next"


class Guided(Constraint):
    """Follows the grammar that `grammar` makes of the options.

    Raises:
        OptionError: The grammar is wrong; or the model has no tokenizer.
        PluginError: llguidance is not installed.
    """

    def __init__(self, options: Any, session: ConstraintSession) -> None:
        super().__init__(options, session)
        if (tokenizer := session.tokenizer) is None:
            raise OptionError(f"{self.name} is about texts, but this model has no tokenizer that augury can read")
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            message = f"constraint {self.name} needs the package llguidance ({error})"
            raise PluginError(f"{message}; install it: {install_command('constraints')}") from None
        tokens = session.shared(("llguidance", session.n_vocab), lambda: _Tokens(tokenizer, session.n_vocab))
        self._forces: bool = tokens.can_spell
        grammar = self.grammar() if self._forces else _unforced(self.grammar())
        self._matcher = LLMatcher(
            tokens.known, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False, step_max_items=_N_ITEMS)
        )
        if self._matcher.is_error():
            raise OptionError(f"{self.name}: {self.explained(self._error())}")
        self._bits = np.zeros(session.n_vocab // 32 + 1, np.int32)  # of the vocabulary and the end of the text
        self._ends = [token for token in session.end_tokens if token < session.n_vocab]
        self._due = self._forced_now()

    @abstractmethod
    def grammar(self) -> str:
        """The options' grammar in the form that llguidance reads. Raises OptionError: they make none."""

    def limited(self, text: str, n_most: int = 100_000) -> str:
        """A text that takes a second or two to compile at worst: the engine waits meanwhile.

        Raises:
            OptionError: It is longer, or empty.
        """
        if not text:
            raise OptionError(
                f"{self.name} is given an empty text, which only an empty output would fit; leave it out or fill it"
            )
        if len(text) > n_most:
            raise OptionError(f"{self.name} is given {len(text)} characters, expected {n_most} at most")
        return text

    def explained(self, error: str) -> str:
        """The fault of the grammar, perhaps with more than the library said."""
        return error

    def allowed(self) -> np.ndarray:
        """The tokens that may follow; while some are due, the next of them alone."""
        n = self.session.n_vocab
        if self._due:
            mask = np.zeros(n, bool)
            mask[self._due[0]] = True
            return mask
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=n + 1, bitorder="little").view(bool)
        if bits[n] and not self._matcher.is_accepting():  # the library then ends the text as it is
            raise UnsupportedError(_DEAD_END)
        bits[self._ends] = bits[n]
        return bits[:n]

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()
        self._due = self._due[1:] or self._forced_now()

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def forced(self, limit: int) -> Sequence[int]:
        return self._due[:limit]

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """As far as the grammar allows them; an end token anywhere is left to the mask."""
        for i, (token, due) in enumerate(zip(tokens, self._due, strict=False)):
            if token != due:
                return i
        n_vocab, ends = self.session.n_vocab, self.session.end_tokens
        n = next((i for i, token in enumerate(tokens) if token in ends or token >= n_vocab), len(tokens))
        n_valid = self._matcher.validate_tokens(list(tokens[:n]))
        return n_valid if n_valid < n else min(n + 1, len(tokens))

    def _forced_now(self) -> list[int]:
        return self._matcher.compute_ff_tokens() if self._forces else []

    def _check(self) -> None:
        if self._matcher.is_error():  # beyond the library's limits
            raise UnsupportedError(self._error())

    def _error(self) -> str:
        error = self._matcher.get_error().partition("<backtrace>")[0].removesuffix("<non-verbose/>").strip()
        if "Too many items" in error or re.search(r"row has \d+ items", error):
            return _AMBIGUOUS
        if error.startswith("NoExtension"):
            return _DEAD_END
        return "\n".join(line for line in error.splitlines() if not line.endswith(NO_FORCING))


def _unforced(grammar: str) -> str:
    """The same grammar, of which llguidance forces nothing."""
    if grammar.startswith("{"):
        (only,) = json.loads(grammar)["grammars"]
        grammar = only["lark_grammar"] or f"start: %json {json.dumps(only['json_schema'])}"
    return f"{grammar}\n{NO_FORCING}"  # at its end, so that errors count the user's lines


class _Tokens:
    """The first n tokens of a tokenizer, and one more that stands for all end tokens, as llguidance wants to know them.

    Attributes:
        tokens: Their bytes.
        can_spell: Whether there is a token for each byte that texts are made of.
        known: llguidance's form of it.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.tokens = [tokenizer.piece(token) for token in range(n_vocab)] + [b"<end>"]
        self.eos_token_id = n_vocab
        self.special_token_ids = [token for token in range(n_vocab) if tokenizer.is_special(token)] + [n_vocab]
        special = set(self.special_token_ids)
        texts = {piece: token for token, piece in enumerate(self.tokens) if piece and token not in special}
        self.can_spell = all(bytes([byte]) in texts for byte in _BYTES)
        self._tokenizer, self._texts, self._n_longest = tokenizer, texts, max(map(len, texts), default=0)
        self.known = LLTokenizer(TokenizerWrapper(self), n_vocab=n_vocab + 1)

    def __call__(self, text: str) -> list[int]:
        """Write a text that goes on from another one."""
        data = text.encode()
        for before in ("", "\n"):  # some tokenizers put a space before a text, but not within one
            n = len(self._tokenizer.encode(before, add_special=False))
            ids = self._tokenizer.encode(before + text, add_special=False)[n:]
            if max(ids, default=0) < self.eos_token_id and b"".join(self.tokens[token] for token in ids) == data:
                return ids
        return self._cut(data)

    def _cut(self, data: bytes) -> list[int]:
        """The longest tokens from the left, of tokenizers that do not give every text back."""
        ids, start = list[int](), 0
        while start < len(data):
            ends = range(min(len(data), start + self._n_longest), start, -1)
            if (end := next((end for end in ends if data[start:end] in self._texts), None)) is None:
                break
            ids.append(self._texts[data[start:end]])
            start = end
        return ids
