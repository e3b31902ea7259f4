"""What progress shows outside a terminal, and on one."""

import sys

from augury.cli import progress
from augury.cli.progress import ProgressDisplay


def test_short_tasks_leave_no_line(capsys):
    with ProgressDisplay() as display:
        for done in range(100):
            display("load weights", done, 100)
    assert capsys.readouterr().err == ""


def test_long_tasks_leave_a_line_every_few_seconds(capsys, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with ProgressDisplay() as display:
        for done in range(20):
            display("download", done * 1_000_000, 20_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert 3 < len(lines) < 15
    assert lines[0].startswith("download: ")
    assert lines[0].endswith(" of 20 MB")


def test_a_terminal_gets_bars_that_vanish(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with ProgressDisplay() as display:
        display("compile", 1, 17)
        display("compile", 17, 17)
    assert "compile" in capsys.readouterr().err
