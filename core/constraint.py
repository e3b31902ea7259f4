"""The class that a plugin of the kind *constraint* implements: `Constraint`, which restricts the output of a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import frozen

from augury.interfaces import Plugin
from augury.options import options_of

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer


@frozen
class ConstraintSession:
    """The engine's offers to the constraint of one request."""

    n_vocab: int  # V
    tokenizer: Tokenizer | None  # None: the model's file has none that augury can read
    end_tokens: frozenset[int]  # that end this request: the model's unless `ignore_eos`, and its own `stop_token_ids`
    shared: Callable[[Hashable, Callable[[], Any]], Any]  # shared(key, make): see `augury.interfaces.Session.shared`


class Constraint(Plugin, ABC):
    """Restricts the output of one request: to a schema, a grammar, one of several texts.

    One instance serves one request. It is made on the thread that submits the request, where compiling a grammar holds up no
    other request; its exception there goes to the caller. All other calls come from the engine's thread, one at a time.

    An instance follows the output token by token and never goes back: a drafted token is accepted only when the target has
    chosen it. A method may raise `UnsupportedError` where the output cannot go on, as when no token begins the required text;
    the request ends with it. If a method raises something else, returns something else than it should, or takes longer than
    `spec_timeout` twice, the request ends with a `PluginError` that names the method; other requests go on.

    Attributes:
        keyword: The parameter of requests that asks for this constraint by one value, such as `json_schema`, if there is one.
            It becomes the flags `--json-schema TEXT` and `--json-schema-file FILE`, too.
    """

    keyword: ClassVar[str | None] = None

    def __init__(self, options: Any, session: ConstraintSession) -> None:
        self.options = options
        self.session = session

    @classmethod
    def options_for(cls, value: Any) -> Mapping[str, Any]:
        """The options of a request that gives `keyword` this value, a text or any value of JSON: by default the first.

        Raises OptionError: it is no such value.
        """
        return {next(iter(options_of(cls.options_class))): value}

    @abstractmethod
    def allowed(self) -> np.ndarray:
        """Which tokens may follow the output so far, (V,) bool; end tokens where the text may end.

        The engine has read the array before it calls again, so that one may be filled again and again. Packed bits, which
        engines of grammars fill, are unpacked in microseconds by `numpy.unpackbits` with `bitorder="little"`.
        """

    @abstractmethod
    def accept(self, token: int) -> None:
        """The request emitted `token`: one of those allowed, and no end token."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow the output so far. The request then ends without an end token."""
        return False

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, each after those before it: a draft is cut there, before it costs a pass.

        Nothing may change by the call. It may be more than `allowed` would let follow, but no fewer; by default it is all.
        """
        return len(tokens)

    def forced(self, limit: int) -> Sequence[int]:  # noqa: ARG002 - for subclasses that can
        """The next tokens, `limit` at most, that have no alternative: after those before it each is the only one allowed.

        Nothing may change by the call. The drafter `forced` proposes these tokens, so that one pass emits them all.
        """
        return ()
