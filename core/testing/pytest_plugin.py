"""`pytest --augury-drafter NAME`: the conformance suite of an installed drafter, each check as a test of its own.

pytest loads this module wherever augury is installed, so it imports nothing of augury until the option is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from augury.testing.conformance import Conformance

_CONFORMANCE: pytest.StashKey[Conformance] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with `--augury`."""
    group = parser.getgroup("augury", "augury: checks of drafters")
    group.addoption(
        "--augury-drafter",
        action="append",
        default=[],
        metavar="SPEC",
        help="a drafter as --spec-type names it, such as ngram-simple:n=3,m=7; repeats",
    )
    group.addoption("--augury-backend", default="auto", metavar="NAME", help="what computes (auto)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks to the collected tests, before `-k` and `-m` choose among all."""
    specs: list[str] = config.getoption("augury_drafter")
    if not specs:
        return
    from augury.testing.conformance import Conformance

    config.stash[_CONFORMANCE] = Conformance.of(specs, config.getoption("augury_backend"))
    items.extend(config.stash[_CONFORMANCE].items(session))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the drafters' drafts: one that declined every time has proven little."""
    conformance = config.stash.get(_CONFORMANCE, None)
    if conformance is not None and (lines := list(conformance.lines())):
        terminalreporter.section("augury: drafters in the checks")
        for line in lines:
            terminalreporter.write_line(line)
