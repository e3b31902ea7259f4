"""The conformance suite as pytest's items."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Self

import pytest
from attrs import frozen

from augury.errors import AuguryError
from augury.options import parse_specs
from augury.testing.contract import Check, ContractError
from augury.testing.drafter.driven import Subject
from augury.testing.drafter.suite import DRAFTER_CHECKS, drafter_subject
from augury.testing.toys import registry_with_toys


@frozen
class Conformance:
    """Drafters under test, by how the user named them."""

    subjects: dict[str, Subject]

    @classmethod
    def of(cls, specs: Sequence[str], backend: str) -> Self:
        """The drafters that `specs` name, with their options.

        Raises:
            UsageError: There is no such drafter, option or backend.
        """
        backends = ("toy", "reference") if backend in ("auto", "toy", "reference") else ("toy", "reference", backend)
        try:
            registry = registry_with_toys()
            registry.find("backend", backends[-1])
            named = [spec for text in specs for spec in parse_specs(text)]
            return cls(
                {
                    str(spec): drafter_subject(spec.name, dict(spec.values), backends=backends, registry=registry)
                    for spec in named
                }
            )
        except AuguryError as error:
            raise pytest.UsageError(str(error)) from None

    def items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """A test for every check of every drafter."""
        for spec, subject in self.subjects.items():
            for check in DRAFTER_CHECKS:
                nodeid = f"augury-drafter[{spec}]::{check.name}"
                yield CheckItem.from_parent(session, name=check.name, nodeid=nodeid, check=check, subject=subject)

    def lines(self) -> Iterator[str]:
        """How much was drafted, by drafter, where engines ran."""
        for spec, subject in self.subjects.items():
            report = subject.report
            if report.n_drafted:
                yield f"{spec}: {report.n_drafted} tokens drafted, {report.n_accepted} accepted"
            elif report.n_requests:
                yield f"{spec}: nothing was drafted, which proves little; give it options with which it drafts on short texts"


class CheckItem(pytest.Item):
    """One check of one plugin."""

    def __init__(self, *, check: Check, subject: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check = check
        self._subject = subject

    def runtest(self) -> None:
        """Run it."""
        self._check.run(self._subject)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A broken contract in words, with the calls before it and the plugin's own error; of anything else the traceback."""
        if isinstance(excinfo.value, ContractError):
            cause = excinfo.value.__cause__
            trace = [] if cause is None else ["", *traceback.format_exception(cause)]
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ()), *trace])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where it stands in reports."""
        return self.path, None, self.nodeid
