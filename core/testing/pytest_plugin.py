"""`pytest --augury-drafter NAME`: the conformance suite of an installed drafter, each check as a test of its own.

The option is that of `augury.plugins.bench`, whose comparisons it means where they are run. pytest loads this module wherever
augury is installed, so it imports nothing of augury until the option is given.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from augury.testing.conformance import Conformance

_CONFORMANCE: pytest.StashKey[Conformance] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks to the collected tests, before `-k` and `-m` choose among all."""
    specs: list[str] = config.getoption("augury_drafter")
    if not specs or _are_comparisons(items):
        return
    from augury.testing.conformance import Conformance

    config.stash[_CONFORMANCE] = Conformance.of(specs, config.getoption("augury_backend"))
    items.extend(config.stash[_CONFORMANCE].items(session))


def _are_comparisons(items: list[pytest.Item]) -> bool:
    """Whether benchmarks of `augury.plugins.bench` are among these."""
    spec = find_spec("augury.plugins.bench")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).resolve().parent  # of the file: an editable install links each file by itself
    return any(item.path.resolve().parent == folder for item in items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the drafters' drafts: one that declined every time has proven little."""
    conformance = config.stash.get(_CONFORMANCE, None)
    if conformance is not None and (lines := list(conformance.lines())):
        terminalreporter.section("augury: drafters in the checks")
        for line in lines:
            terminalreporter.write_line(line)
