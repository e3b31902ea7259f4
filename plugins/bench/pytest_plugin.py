"""Options and report of the comparisons that users run: `pytest --pyargs augury.plugins.bench --augury-drafter NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from augury.plugins.bench.pair_stats import PairStats

FOUND = pytest.StashKey[dict[tuple[str, str], list["PairStats"]]]()
"""The measurements so far, by drafter with its state, and by category."""

_COMPARISONS = "test_drafters.py"
_LEFT_OUT = pytest.StashKey[bool]()  # for want of a drafter


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with `--augury`."""
    group = parser.getgroup("augury", "augury: drafters compared with plain decoding")
    group.addoption(
        "--augury-drafter",
        action="append",
        default=[],
        metavar="SPEC",
        help="a drafter as --spec-type names it, such as ngram-simple:n=3,m=7; repeats",
    )
    group.addoption("--augury-model", default="smollm2", metavar="MODEL", help="the target: a name or a path (smollm2)")
    group.addoption(
        "--augury-workload",
        metavar="FILE",
        help='JSON lines with "id", "category", and "messages" or "prompt" (default: a small built-in workload)',
    )
    group.addoption("--augury-pairs", type=int, default=3, metavar="N", help="runs of each prompt, plain and drafted (3)")
    group.addoption("--augury-tokens", type=int, default=128, metavar="N", help="tokens to generate (128)")
    group.addoption(
        "--augury-fixed", action="store_true", help="take every draft as it is: no planner decides how far to draft"
    )
    group.addoption(
        "--augury-synth-len",
        type=float,
        metavar="N",
        help="accept drafts by chance, N tokens of an endless one on average; texts are then not the model's",
    )
    group.addoption("--augury-warm", action="store_true", help="measure drafters also that have seen the prompt before")
    group.addoption("--augury-backend", default="auto", metavar="NAME", help="what computes (auto)")
    group.addoption("--augury-threads", type=int, metavar="N", help="threads (one per physical core)")


def pytest_configure(config: pytest.Config) -> None:
    """Make room for figures."""
    config.stash[FOUND] = {}
    config.stash[_LEFT_OUT] = False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the comparisons out where no drafter is named."""
    is_ours = collection_path.name == _COMPARISONS and collection_path.parent.name == "bench"
    if not is_ours or config.getoption("augury_drafter"):
        return None
    config.stash[_LEFT_OUT] = True
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    """Show figures by drafter and category, or name the options that they lack."""
    if config.stash[_LEFT_OUT] and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line("augury.plugins.bench compares drafters: name each with --augury-drafter, such as suffix")
    found = config.stash[FOUND]
    if not found:
        return
    from augury.plugins.bench.pair_stats import comparison_lines

    terminalreporter.section("augury: drafters against plain decoding, greedy")
    for line in comparison_lines(found):
        terminalreporter.write_line(line)
