"""`ReasoningBudget`: a model's reasoning before its answer ends after so many tokens, with the closing tag."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from augury.constraint import Constraint, ConstraintSession
from augury.errors import OptionError
from augury.hookspecs import hookimpl
from augury.options import option
from augury.plugins.constraints.grammars import Grammar, GrammarOptions

_LONGEST = 100  # characters of a tag


@frozen
class ReasoningBudgetOptions:
    """Options of `reasoning-budget`."""

    tokens: int = option(1024, ge=0, help="how many tokens reasoning may take; then its end follows")
    opening: str = option("<think>", help="the text that begins reasoning, at the beginning of the output")
    closing: str = option("</think>", help="the text that ends it")
    is_open: bool = option(False, help="whether the prompt ends within reasoning")
    grammar: str | None = option(
        None, help="the grammar of the whole output, reasoning and its tags included; any text without"
    )


class ReasoningBudget(Constraint):
    """Allows everything, or all that a grammar does, but after so many tokens of reasoning only the closing tag.

    Raises:
        OptionError: The model has no tokenizer, a tag is empty or far too long, or the grammar is wrong.
    """

    name = "reasoning-budget"
    options_class = ReasoningBudgetOptions
    options: ReasoningBudgetOptions

    def __init__(self, options: Any, session: ConstraintSession) -> None:
        super().__init__(options, session)
        if session.tokenizer is None:
            raise OptionError(f"{self.name} is about texts, but this model has no tokenizer that augury can read")
        for name, text in (("opening", options.opening), ("closing", options.closing)):
            if not 0 < len(text) <= _LONGEST:
                raise OptionError(f"{self.name}: {name} has {len(text)} characters, expected 1 to {_LONGEST}")
        self._piece = session.tokenizer.piece
        self._closing = session.tokenizer.encode(options.closing, add_special=False, parse_special=True)
        self._anything = np.ones(session.n_vocab, bool)
        self._grammar = None if options.grammar is None else Grammar(GrammarOptions(options.grammar), session)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""  # of the output, as far as it matters
        self._n_left: int | None = options.tokens if options.is_open else None  # None: not in reasoning
        self._is_over = False  # no further reasoning begins
        self._due = list[int]()
        self._end_if_spent()

    def allowed(self) -> np.ndarray:
        """Everything, or the grammar's mask; while the end of the reasoning is due, its next token."""
        if not self._due:
            return self._anything if self._grammar is None else self._grammar.allowed()
        mask = np.zeros(self.session.n_vocab, bool)
        mask[self._due[0]] = True
        return mask

    def accept(self, token: int) -> None:
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._due:
            self._due = self._due[1:]
        elif not self._is_over:
            self._tail += self._decoder.decode(self._piece(token))
            if self._n_left is None:
                self._begin()
            else:
                self._n_left -= 1
                self._is_over = self.options.closing in self._tail
                self._tail = self._tail[-len(self.options.closing) :]
            self._end_if_spent()

    @property
    def is_complete(self) -> bool:
        return self._grammar is not None and self._grammar.is_complete

    def forced(self, limit: int) -> Sequence[int]:
        return self._due[:limit] if self._due or self._grammar is None else self._grammar.forced(limit)

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """As far as they are due, or as the grammar allows them."""
        if not self._due and self._grammar is not None:
            return self._grammar.n_allowed(tokens)
        pairs = enumerate(zip(tokens, self._due, strict=False))
        return next((i for i, (token, due) in pairs if token != due), len(tokens))

    def _begin(self) -> None:
        begun = self._tail.lstrip()
        if begun.startswith(self.options.opening):
            self._tail, self._n_left = "", self.options.tokens
        else:
            self._is_over = not self.options.opening.startswith(begun)

    def _end_if_spent(self) -> None:
        is_within_character = bool(self._decoder.getstate()[0])
        if not self._is_over and self._n_left is not None and self._n_left <= 0 and not is_within_character:
            self._due, self._is_over = list(self._closing), True


@hookimpl
def augury_constraints() -> list[type[Constraint]]:
    """Offer it."""
    return [ReasoningBudget]
