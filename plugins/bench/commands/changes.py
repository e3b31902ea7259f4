"""`augury bench --compare OLD.json`: what changed since figures were saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.cli.table import table
from augury.errors import OptionError
from augury.plugins.bench.changes import Saved, changes

if TYPE_CHECKING:
    from pathlib import Path

    from augury.plugins.bench.changes import Change

__all__ = ["change_lines", "changes_told", "check_saved"]

_ABSENT = "-"
_FORMS = {"acceptance": "{:.0%}", "speed-up": "{:.2f}x"}  # others are speeds


def check_saved(path: Path | None, *, of_passes: bool) -> None:
    """Say what is wrong with a file to compare with before minutes of work.

    Raises:
        OptionError: It holds no figures, or those of drafters where passes are timed, or the other way round.
    """
    if path is not None and Saved.read(path).are_of_passes != of_passes:
        kinds = ("drafters", "passes")
        raise OptionError(
            f"{path} holds figures of {kinds[not of_passes]}, but {kinds[of_passes]} are timed here; choose another"
        )


def change_lines(path: Path, told: dict[str, Any]) -> list[str]:
    """A table of what is in `path` against what this run's JSON has, and what to mind when reading it."""
    now = Saved.of(told)
    found, differences = changes(Saved.read(path), now)
    lines = [f"against {path}:"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for change in found:
        rows.setdefault(change.key, {})[change.name] = _shown(change)
    names = list(dict.fromkeys(change.name for change in found))
    head = ["measure", "n", "depth"] if now.are_of_passes else ["drafter", "category"]
    cells = [[*key, *(row.get(name, _ABSENT) for name in names)] for key, row in rows.items()]
    lines += table([[*head, *names], *cells])
    if differences:
        lines.append("these runs differ in more than the code, so the change may be theirs: " + "; ".join(differences))
    return lines


def changes_told(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON has it."""
    found, differences = changes(Saved.read(path), Saved.of(told))
    rows = [{"of": list(each.key), "figure": each.name, "then": each.then, "now": each.now} for each in found]
    return {"against": str(path), "rows": rows, "differences": differences}


def _shown(change: Change) -> str:
    """Both values, and for speeds the change."""
    form = _FORMS.get(change.name, "{:.1f}")
    both = " -> ".join(_ABSENT if value is None else form.format(value) for value in (change.then, change.now))
    return f"{both} ({100 * (change.ratio - 1):+.1f} %)" if change.ratio is not None and change.name == "tok/s" else both
