"""A request's constraint and the calls of it: an error in them ends this request and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from augury.constraint import Constraint, ConstraintSession
from augury.errors import AuguryError, OptionError, PluginError, UnsupportedError
from augury.guard import SlowCalls, describe
from augury.options import build, parse_specs
from augury.registry import Registry

ChosenConstraint = tuple[type[Constraint], Any]


def choose_constraint(registry: Registry, params: dict[str, Any]) -> ChosenConstraint | None:
    """The constraint that a request asks for, with its options, taken out of `params`; None for none.

    It is asked for by a constraint's keyword, or by `constraint`: `"name:key=value,..."` or `{"name": {"key": value, ...}}`.
    Raises OptionError: there is no such constraint or option, a value is out of range, or two are asked for.
    """
    keywords = {found.keyword: found for found in registry.constraints.values() if found.keyword is not None}
    asked = {name: params.pop(name, None) for name in ("constraint", *keywords)}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are given, but a request has one constraint; leave out all but one")
    if not given:
        return None
    (by,) = given
    value = asked[by]
    if by != "constraint":
        return keywords[by], build(keywords[by].options_class, keywords[by].options_for(value), by)
    named: list[tuple[Any, Any]] = []
    if isinstance(value, str):
        named = [(spec.name, dict(spec.values)) for spec in parse_specs(value, "constraint")]
    elif hasattr(value, "items"):
        named = list(value.items())
    if len(named) != 1 or not isinstance(named[0][0], str) or not hasattr(named[0][1], "items"):
        raise OptionError(f"constraint is {value!r}, expected one, as 'name:key=value' or {{'name': {{'key': value}}}}")
    ((name, values),) = named
    try:
        found: type[Constraint] = registry.find("constraint", name)
    except PluginError as error:  # a request names it, not the user who installed the plugins
        raise OptionError(str(error)) from None
    return found, build(found.options_class, values, f"constraint {found.name}")


class ConstraintGuard:
    """The constraint of one request as the engine sees it: it follows the output, and every failure names the plugin."""

    def __init__(self, choice: ChosenConstraint, session: ConstraintSession, timeout_s: float) -> None:
        """Make the constraint, whose calls may take `timeout_s`. Raises AuguryError: its refusal, or that it failed."""
        constraint, options = choice
        self.name = constraint.name
        self.n_complete: int | None = None  # tokens of the output after which nothing may follow; None while it is not complete
        self._n_vocab = session.n_vocab
        self._end_tokens = session.end_tokens
        self._timeout_s = timeout_s
        self._slow_calls = SlowCalls()
        self._n_followed = 0  # tokens of the output
        self._is_over = False  # an end token was followed, or it is complete
        try:
            self._constraint = constraint(options, session)
        except AuguryError:
            raise
        except Exception as error:
            raise self._failed("__init__", error) from error

    def allowed(self, history: np.ndarray, n_emitted: int) -> np.ndarray | None:
        """Which tokens (V,) bool may follow `history` (h,) int32, of which the last `n_emitted`, never fewer, are output.

        None after the end, where any may follow, because nothing of it will be emitted. Raises PluginError: a method failed.
        """
        self.follow(history, n_emitted)
        if self._is_over:
            return None
        return self._call("allowed", lambda: _checked_mask(self._constraint.allowed(), self._n_vocab))

    def follow(self, history: np.ndarray, n_emitted: int) -> None:
        """Tell the constraint the tokens that are new; arguments and errors are those of `allowed`."""
        for token in history[len(history) - n_emitted + self._n_followed :].tolist():
            self._n_followed += 1
            if not self._is_over:
                self._is_over = token in self._end_tokens or self._accept(token)

    def _accept(self, token: int) -> bool:
        self._call("accept", lambda: self._constraint.accept(token))
        is_complete: bool = self._call("is_complete", lambda: _checked_bool(self._constraint.is_complete))
        if is_complete:
            self.n_complete = self._n_followed
        return is_complete

    def forced(self, limit: int) -> list[int]:
        """The tokens that must follow the output as far as it was followed, `limit` at most; errors as of `allowed`."""
        return [] if self._is_over else self._call("forced", lambda: list(map(int, self._constraint.forced(limit)))[:limit])

    def n_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens may follow the output as far as it was followed; errors as of `allowed`."""
        return (
            0 if self._is_over else self._call("n_allowed", lambda: _checked_count(self._constraint.n_allowed(tokens), tokens))
        )

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        start = perf_counter()
        try:
            result = call()
        except UnsupportedError as raised:  # said on purpose: this model, or this text, cannot go on as is asked
            raise UnsupportedError(f"constraint {self.name}: {raised}") from raised
        except BaseException as raised:  # SystemExit and KeyboardInterrupt, too: they are not meant for the engine's thread
            raise self._failed(method, raised) from raised
        seconds = perf_counter() - start
        if seconds > self._timeout_s and (error := self._slow_calls.add(seconds, self._timeout_s)) is not None:
            raise self._failed(method, error)
        return result

    def _failed(self, method: str, error: BaseException) -> PluginError:
        return PluginError(f"constraint {self.name} failed in `{method}`: {describe(error)}")


def _checked_mask(mask: Any, n_vocab: int) -> np.ndarray:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"returned a {type(mask).__name__}, expected an array")
    if mask.dtype != np.bool_ or mask.shape != (n_vocab,):
        raise ValueError(f"returned {mask.dtype} of shape {mask.shape}, expected bool of shape ({n_vocab},)")
    return mask


def _checked_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"is {value!r}, expected true or false")
    return bool(value)


def _checked_count(n: Any, tokens: Sequence[int]) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 0 <= n <= len(tokens):
        raise ValueError(f"returned {n!r}, expected a number of tokens from 0 to {len(tokens)}")
    return int(n)
