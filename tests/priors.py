"""The worth of proposals by their buckets, pooled over saved results: chances should begin with it.

`python tests/priors.py FILE...`, each written by `augury bench drafters --json`, prints Markdown tables. For
each drafter and bucket the first one has the number of tokens that were tried, how many were right, the share, and the chance
that tokens begin with. Buckets that are not a drafter's own evidence have one chance for all drafters, and are pooled. The
second one has the effect of other proposals in a token's place: how many tokens were right, how many their own drafters'
chances promised, the ratio, and the one that is begun with.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from augury.cli import print_lines, read_text, say
from augury.errors import AuguryError

_LEAST, _LEAST_RIGHT = 50, 10  # tokens: of fewer the share says too little
_MOST = 0.99  # nothing is certain
_BUCKETS = ["| drafter | bucket | tokens | right | measured | begins with |", "|---|---|---|---|---|---|"]
AGREEMENT = ["| others | own chance | tokens | expected | right | measured | begins with |", "|---|---|---|---|---|---|---|"]
_EVERYONE = "any"


@frozen
class BucketCounts:
    """The fate of the tokens of one bucket."""

    drafter: str  # "any" where a bucket is not a drafter's own; of agreement its kind
    bucket: str
    prior: float
    n: int
    n_right: int
    expected: float | None = None  # of agreement: the sum of the chances that their own drafters gave them

    def __add__(self, more: BucketCounts) -> BucketCounts:
        """Both, of one bucket."""
        expected = None if self.expected is None or more.expected is None else self.expected + more.expected
        return evolve(self, n=self.n + more.n, n_right=self.n_right + more.n_right, expected=expected)

    @property
    def measured(self) -> float | None:
        """The share of right tokens, or their ratio to the expected ones, in two digits; None where too few were seen."""
        if self.n < _LEAST or max(self.n_right, self.expected or 0.0) < _LEAST_RIGHT:
            return None
        if self.expected is not None:
            return float(f"{self.n_right / self.expected:.2g}")
        share = self.n_right / self.n
        return float(f"{share:.2g}") if share < 0.1 else min(round(share, 2), _MOST)


def pooled(results: Iterable[Mapping[str, Any]]) -> list[BucketCounts]:
    """The counts of several results of `augury bench drafters --json`, by drafter and bucket, and those of agreement.

    Raises:
        KeyError: One has none.
    """
    found: dict[tuple[str, str], BucketCounts] = {}
    for each in (each for result in results for run in result["runs"] for each in _counts(run["reliability"])):
        before = found.get((each.drafter, each.bucket))
        found[each.drafter, each.bucket] = each if before is None else before + each
    return sorted(found.values(), key=_order)


def _counts(reliability: Mapping[str, Any]) -> Iterator[BucketCounts]:
    for drafter, buckets in reliability["buckets"].items():
        for bucket, counts in buckets.items():
            yield BucketCounts(drafter if bucket.startswith("evidence") else _EVERYONE, bucket, **counts)
    for name, counts in reliability["agreement"].items():
        kind, chance = name.split(", ")
        yield BucketCounts(kind, chance, **counts)


def table_lines(found: Sequence[BucketCounts]) -> list[str]:
    """As Markdown: one table of buckets, and one of agreement."""
    buckets, agreement = _BUCKETS.copy(), AGREEMENT.copy()
    for each in found:
        measured = "too few" if each.measured is None else f"{each.measured:g}"
        if each.expected is None:
            buckets.append(f"| {each.drafter} | {each.bucket} | {each.n} | {each.n_right} | {measured} | {each.prior:g} |")
        else:
            counts = f"{each.n} | {each.expected:.2f} | {each.n_right}"
            agreement.append(f"| {each.drafter} | {each.bucket} | {counts} | {measured} | {each.prior:g} |")
    return [*buckets, "", *agreement]


def main(paths: Sequence[str]) -> int:
    """Print the table of some files; returns the exit code."""
    if not paths:
        say("usage: python tests/priors.py FILE..., each written by augury bench drafters --json")
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
        raise AuguryError(
            f"{path}: has no figures by bucket; expected what augury bench drafters --json printed of drafters"
        ) from None
    return found


def _order(counts: BucketCounts) -> tuple[str, str, float]:
    (number,) = re.findall(r"[\d.]+", counts.bucket)[:1] or ["0"]
    return counts.drafter, counts.bucket.partition(" ")[0], float(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
