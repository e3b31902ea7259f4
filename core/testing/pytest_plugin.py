"""`pytest --augury-drafter NAME`: the conformance suite of an installed drafter, each check as a test of its own.

pytest loads this module wherever augury is installed, so it imports nothing of augury until the option is given.
"""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from augury.testing.contract import Check
    from augury.testing.drafter.driven import Subject

_SUBJECTS: pytest.StashKey[dict[str, Subject]] = pytest.StashKey()  # drafters under test, by how the user named them


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("augury", "augury: the checks of drafters")
    spec = {"action": "append", "default": [], "metavar": "SPEC"}
    group.addoption("--augury-drafter", **spec, help="a drafter as --spec-type names it, such as ngram-simple:n=3,m=7; repeats")
    group.addoption("--augury-backend", default="auto", metavar="NAME", help="what computes, beside toy and reference (auto)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for every check of every drafter to the collected ones, before `-k` and `-m` choose among all."""
    specs: list[str] = config.getoption("augury_drafter")
    if not specs:
        return
    from augury.testing.drafter.suite import DRAFTER_CHECKS

    config.stash[_SUBJECTS] = _subjects(specs, config.getoption("augury_backend"))
    for spec, subject in config.stash[_SUBJECTS].items():
        for check in DRAFTER_CHECKS:
            nodeid = f"augury-drafter[{spec}]::{check.name}"
            items.append(CheckItem.from_parent(session, name=check.name, nodeid=nodeid, check=check, subject=subject))


def _subjects(specs: list[str], backend: str) -> dict[str, Subject]:
    from augury.errors import AuguryError
    from augury.options import parse_specs
    from augury.testing.drafter.suite import drafter_subject
    from augury.testing.toys import registry_with_toys

    backends = ("toy", "reference") if backend in ("auto", "toy", "reference") else ("toy", "reference", backend)
    try:
        registry = registry_with_toys()
        registry.find("backend", backends[-1])
        return {
            str(spec): drafter_subject(spec.name, dict(spec.values), backends=backends, registry=registry)
            for text in specs
            for spec in parse_specs(text)
        }
    except AuguryError as error:
        raise pytest.UsageError(str(error)) from None


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
        from augury.testing.contract import ContractError

        if isinstance(excinfo.value, ContractError):
            cause = excinfo.value.__cause__
            trace = [] if cause is None else ["", *traceback.format_exception(cause)]
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ()), *trace])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where it stands in reports."""
        return self.path, None, self.nodeid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report how much drafters drafted where engines ran: one that declined every time has proven little."""
    lines = []
    for spec, subject in config.stash.get(_SUBJECTS, {}).items():
        report = subject.report
        if report.n_drafted:
            lines.append(f"{spec}: {report.n_drafted} tokens drafted, {report.n_accepted} accepted")
        elif report.n_requests:
            lines.append(
                f"{spec}: nothing was drafted, which proves little; give it options with which it drafts on short texts"
            )
    if lines:
        terminalreporter.section("augury: drafters in the checks")
        for line in lines:
            terminalreporter.write_line(line)
