"""`check_constraint`: the conformance suite of constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from attrs import evolve, frozen

from augury.constraint import Constraint, ConstraintSession
from augury.engine.engine import Engine
from augury.engine.shared import Shared
from augury.options import build
from augury.registry import Registry
from augury.testing.contract import Check, Checks, Contract, ContractError
from augury.testing.drafter.driven import Subject as DrafterSubject
from augury.testing.drafter.engines import WAYS, answers, compare, engine_with, output
from augury.testing.toys import ToyDrafter, find_plugin

ERROR = Contract("A constraint that was made raises nothing.", "augury.plugin.Constraint")
MASK = Contract("`allowed` returns (V,) bool.", "augury.plugin.Constraint.allowed")
DEAD_END = Contract("Something may follow, until the output is complete.", "augury.plugin.Constraint.allowed")
COMPLETE = Contract("`is_complete` is true or false.", "augury.plugin.Constraint.is_complete")
FORCED = Contract("A forced token is the only one allowed after those before it.", "augury.plugin.Constraint.forced")
QUESTION = Contract("Only `accept` changes what a constraint says.", "augury.plugin.Constraint")
FUNCTION = Contract("What is allowed depends on options and output alone.", "augury.plugin.Constraint")
POSSIBLE = Contract("`n_allowed` leaves out no token that may follow.", "augury.plugin.Constraint.n_allowed")
HOLDS = Contract("What an engine emits was allowed.", "augury.plugin.Constraint")

_N_OUTPUTS = 12
_N_TOKENS = 60  # of an output, unless it ends
_LIMITS = (1, 5)  # of forced tokens
_N_TRIED = 3  # allowed tokens that are asked for by themselves
CONSTRAINT_CHECKS = Checks()


@frozen(eq=False)
class ConstraintSubject:
    """A constraint with options, and where to find everything else."""

    constraint: type[Constraint]
    values: Mapping[str, Any]
    registry: Registry  # with the toys

    @property
    def name(self) -> str:
        """The constraint's."""
        return self.constraint.name

    def engine(self, *drafters: DrafterSubject, slots: int = 1) -> Engine:
        """An engine on a toy model, whose vocabulary is bytes, some merged, and an end token."""
        return engine_with(*drafters, registry=self.registry, slots=slots)

    def made(self, session: ConstraintSession) -> Constraint:
        """A new instance."""
        return self.constraint(build(self.constraint.options_class, self.values, self.name), session)


@frozen(eq=False)
class _Follower:
    """An instance that is asked, and held to its contracts."""

    subject: ConstraintSubject
    constraint: Constraint
    session: ConstraintSession
    output: list[int]

    def allowed(self) -> np.ndarray:
        """Which tokens may follow: something, and the same when asked again after other questions."""
        mask = self._mask()
        for limit in _LIMITS:
            self.forced(limit)
        self.is_complete()
        for token in np.flatnonzero(mask)[:_N_TRIED].tolist():
            self.n_allowed([token])
        if not np.array_equal(mask, self._mask()):
            raise self.broken(QUESTION, "another mask after `forced`, `n_allowed` and `is_complete`")
        if not mask.any():
            raise self.broken(DEAD_END, "nothing is allowed")
        return mask

    def forced(self, limit: int) -> list[int]:
        tokens = [int(token) for token in self._call("forced", lambda: self.constraint.forced(limit))]
        if len(tokens) > limit:
            raise self.broken(FORCED, f"{len(tokens)} where the limit was {limit}")
        return tokens

    def n_allowed(self, tokens: list[int]) -> None:
        """Ask of tokens that may follow whether they may."""
        n: Any = self._call("n_allowed", lambda: self.constraint.n_allowed(tokens))
        if n != len(tokens):
            raise self.broken(POSSIBLE, f"{n!r} of {tokens}, which may all follow")

    def is_complete(self) -> bool:
        found: Any = self._call("is_complete", lambda: self.constraint.is_complete)
        if not isinstance(found, bool | np.bool_):
            raise self.broken(COMPLETE, repr(found))
        return bool(found)

    def accept(self, token: int) -> None:
        self._call("accept", lambda: self.constraint.accept(token))
        self.output.append(token)

    def _mask(self) -> np.ndarray:
        mask: Any = self._call("allowed", self.constraint.allowed)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.session.n_vocab,):
            seen = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else f"a {type(mask).__name__}"
            raise self.broken(MASK, f"{seen}, where V is {self.session.n_vocab}")
        return mask.copy()

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        with ERROR.kept(self.subject.name, f", in `{method}`, after the output {self.output}"):
            return call()

    def broken(self, promise: Contract, seen: str) -> ContractError:
        return promise.broken(self.subject.name, f"{seen}, after the output {self.output}")


@CONSTRAINT_CHECKS.add
def any_output(subject: ConstraintSubject) -> None:
    """Says what may follow any output.

    Along random outputs masks are masks, forced tokens have no alternative, and there is no dead end.
    """
    with subject.engine() as engine:
        for seed in range(_N_OUTPUTS):
            follower, due = _follower(subject, engine), list[int]()
            for mask in _along(follower, seed):
                due = due or follower.forced(_LIMITS[-1])
                if due and np.flatnonzero(mask).tolist() != due[:1]:
                    seen = f"{due[0]} was forced, {np.flatnonzero(mask)[:9].tolist()} are allowed"
                    raise follower.broken(FORCED, seen)
                due = due[1:]


@CONSTRAINT_CHECKS.add
def same_again(subject: ConstraintSubject) -> None:
    """Says the same of the same output."""
    with subject.engine() as engine:
        first, second = _follower(subject, engine), _follower(subject, engine)
        masks = [mask.copy() for mask in _along(first, 0)]
        second.n_allowed(first.output)
        for mask, token in zip(masks, first.output, strict=False):
            if not np.array_equal(mask, second.allowed()):
                raise second.broken(FUNCTION, "another mask from a second instance")
            second.accept(token)


def _along(follower: _Follower, seed: int) -> Iterator[np.ndarray]:
    """Follow a random output to its end, and give every mask on the way."""
    rng = np.random.default_rng(seed)
    for _ in range(_N_TOKENS):
        mask = follower.allowed()
        yield mask
        if (token := int(rng.choice(np.flatnonzero(mask)))) in follower.session.end_tokens:
            return
        follower.accept(token)
        if follower.is_complete():
            return


@CONSTRAINT_CHECKS.add
def lossless(subject: ConstraintSubject) -> None:
    """Holds, and leaves output as it is, whatever is drafted."""
    drafter = DrafterSubject(ToyDrafter, {}, subject.registry, ("toy",))
    for way, params in WAYS.items():
        asked = {**params, "constraint": {subject.name: dict(subject.values)}, "ignore_eos": False}
        with subject.engine() as engine:
            plain = answers(subject.name, engine, asked, drafter.report)
            for result in plain:
                _check_output(_follower(subject, engine), result.tokens)
        for verify in ("match", "rejection") if way == "greedy" else ("match",):  # sampling follows another seed there
            with subject.engine(evolve(drafter, verify=verify), slots=2) as engine:
                found = answers(subject.name, engine, asked, drafter.report)
            compare(subject.name, f"{way} with drafts", output(plain), output(found))


def _check_output(follower: _Follower, tokens: Iterable[int]) -> None:
    for token in tokens:
        if not follower.allowed()[token]:
            raise follower.broken(HOLDS, f"token {token} of an engine")
        if token not in follower.session.end_tokens:
            follower.accept(token)


def _follower(subject: ConstraintSubject, engine: Engine) -> _Follower:
    assert engine.tokenizer is not None
    session = ConstraintSession(engine.tokenizer.n_vocab, engine.tokenizer, engine.tokenizer.eog, Shared().get)
    return _Follower(subject, subject.made(session), session, [])


def check_constraint(
    constraint: type[Constraint] | str,
    options: Mapping[str, Any] | None = None,
    *,
    registry: Registry | None = None,
    checks: Iterable[Check] = CONSTRAINT_CHECKS,
) -> None:
    """Prove that a constraint keeps its contracts: along random outputs, and in engines with and without drafts.

    Its tokenizer is a small one of bytes, some of them merged, and one end token. For the rest see `augury.testing`.

    >>> check_constraint("choice", {"texts": "yes|no"})
    """
    found, registry = find_plugin("constraint", constraint, registry)
    build(found.options_class, options or {}, found.name)
    subject = ConstraintSubject(found, dict(options or {}), registry)
    for check in checks:
        check.run(subject)
