"""The worth of proposals by their grounds, pooled over saved results: chances should begin with it.

`python -m augury.plugins.bench.priors FILE...`, each written by `augury bench --json`, prints a Markdown table. For each
drafter and ground it has the number of tokens that were tried, how many were right, the share, and the chance that tokens begin
with. Grounds that are not a drafter's own evidence have one chance for all drafters, and are pooled.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from augury.cli import print_lines, read_text, say
from augury.errors import AuguryError

_LEAST, _LEAST_RIGHT = 50, 10  # tokens: of fewer the share says too little
_MOST = 0.99  # nothing is certain
_EVERYONE = "any"


@frozen
class GroundCounts:
    """The fate of the tokens on one ground."""

    drafter: str  # "any" where a ground is not a drafter's own
    ground: str
    prior: float
    n: int
    n_right: int

    @property
    def measured(self) -> float | None:
        """The share of right tokens in two digits, as priors are written down; None where too few were seen."""
        if self.n < _LEAST or self.n_right < _LEAST_RIGHT:
            return None
        share = self.n_right / self.n
        return float(f"{share:.2g}") if share < 0.1 else min(round(share, 2), _MOST)


def pooled(results: Iterable[Mapping[str, Any]]) -> list[GroundCounts]:
    """The counts of several results of `augury bench --json`, by drafter and ground.

    Raises:
        KeyError: One has none.
    """
    found: dict[tuple[str, str], GroundCounts] = {}
    for run in (run for result in results for run in result["runs"]):
        for drafter, grounds in run["reliability"]["grounds"].items():
            for ground, counts in grounds.items():
                owner = drafter if ground.startswith("evidence") else _EVERYONE
                before = found.get((owner, ground), GroundCounts(owner, ground, 0.0, 0, 0))
                n, n_right = before.n + counts["n"], before.n_right + counts["n_right"]
                found[owner, ground] = GroundCounts(owner, ground, counts["prior"], n, n_right)
    return sorted(found.values(), key=_order)


def table_lines(found: Sequence[GroundCounts]) -> list[str]:
    """As Markdown."""
    lines = ["| drafter | ground | tokens | right | measured | begins with |", "|---|---|---|---|---|---|"]
    for each in found:
        measured = "too few" if each.measured is None else f"{each.measured:g}"
        lines.append(f"| {each.drafter} | {each.ground} | {each.n} | {each.n_right} | {measured} | {each.prior:g} |")
    return lines


def main(paths: Sequence[str]) -> int:
    """Print the table of some files; returns the exit code."""
    if not paths:
        say("usage: python -m augury.plugins.bench.priors FILE..., each written by augury bench --json")
        return 2
    try:
        print_lines(table_lines(pooled(map(_read, paths))))
    except AuguryError as error:
        say(f"augury: {error}")
        return 1
    return 0


def _read(path: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(read_text(Path(path)))
        pooled([found])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise AuguryError(f"{path}: has no figures by ground; expected what augury bench --json printed of drafters") from None
    return found


def _order(counts: GroundCounts) -> tuple[str, str, float]:
    """By drafter, then by kind of ground, then by its number."""
    (number,) = re.findall(r"[\d.]+", counts.ground)[:1] or ["0"]
    return counts.drafter, counts.ground.partition(" ")[0], float(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
