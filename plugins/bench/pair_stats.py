"""Statistics of paired runs: speeds, their ratio, and acceptance; of any pairs, and of one drafter by category."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from attrs import Factory, frozen

from augury.cli import align_rows, fold
from augury.plugins.bench.paired_runs import Pair, Reliability
from augury.plugins.bench.timing import median_interval


@frozen
class PairStats:
    """Statistics of pairs of one drafter and plain decoding, over all prompts."""

    speeds: tuple[tuple[float, float], ...] = ()  # tokens per second of each pair, plain and drafted
    n_emitted: int = 0  # tokens of all drafted runs, like the further counts
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    offered_by_position: tuple[int, ...] = ()  # [i]: drafts that were verified as far as position i, in a tree depth i
    accepted_by_position: tuple[int, ...] = ()  # [i]: those whose token i was accepted
    is_identical: bool = True  # whether plain and drafted runs emitted the same tokens
    is_changed: bool = False  # whether they did not where they must: synthetic acceptance, and rejection of drawn tokens, may
    synthetic: tuple[float, ...] = ()  # the chances by which drafts were accepted, where that was not the model's verdict
    n_repeated: int = 0  # plain runs that stalled and were repeated
    n_stalled: int = 0  # pairs without a speed, because the last repetition of the plain run stalled, too
    reliability: Reliability = Factory(Reliability)  # how true the chances of proposed tokens were, where a planner gave any

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> PairStats:
        """Statistics of pairs. A pair that emitted one token only has no speed."""
        several = list(pairs)
        runs = [pair.drafted.stats for pair in several]
        drafters = [each for run in runs for each in run.drafters.values()]
        synthetic = [tuple(run.effective.get("synthetic", ())) for run in runs]
        differ = [pair for pair, rates in zip(several, synthetic, strict=True) if not pair.is_identical and not rates]
        return cls(
            speeds=tuple(pair.speeds for pair in several if min(pair.speeds) > 0 and not pair.is_stalled),
            n_emitted=sum(run.n_emitted for run in runs),
            n_rounds=sum(run.n_rounds for run in runs),
            n_drafted=sum(run.n_drafted for run in runs),
            n_accepted=sum(run.n_accepted for run in runs),
            offered_by_position=_sums(each.offered_by_position for each in drafters),
            accepted_by_position=_sums(each.accepted_by_position for each in drafters),
            is_identical=all(pair.is_identical for pair in several),
            is_changed=any(pair.is_promised for pair in differ),
            synthetic=next(filter(None, synthetic), ()),
            n_repeated=sum(pair.n_repeated for pair in several),
            n_stalled=sum(pair.is_stalled for pair in several),
            reliability=Reliability.of(trial for pair in several for trial in pair.trials),
        )

    @property
    def plain_per_second(self) -> float:
        """Median of the pairs."""
        return statistics.median(plain for plain, _ in self.speeds) if self.speeds else 0.0

    @property
    def per_second(self) -> float:
        """Median of the pairs, drafted."""
        return statistics.median(drafted for _, drafted in self.speeds) if self.speeds else 0.0

    @property
    def ratios(self) -> list[float]:
        """Drafted over plain speed, pair by pair."""
        return [drafted / plain for plain, drafted in self.speeds]

    @property
    def speedup(self) -> float:
        """Median of the pairs' ratios."""
        return statistics.median(self.ratios) if self.speeds else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Holds the median ratio in 95 of 100 cases, if there are at least six pairs; else the lowest and highest ratio."""
        return median_interval(self.ratios) if self.speeds else (0.0, 0.0)

    @property
    def p10(self) -> float:
        """The ratio below which one pair in ten is: the cost of speculation where it fails."""
        ratios = self.ratios
        return statistics.quantiles(ratios, n=10, method="inclusive")[0] if len(ratios) > 1 else self.speedup

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens emitted per pass."""
        return self.n_emitted / self.n_rounds if self.n_rounds else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """[i]: accepted share of the drafts that had a token i."""
        both = zip_longest(self.accepted_by_position, self.offered_by_position, fillvalue=0)
        return [accepted / offered if offered else 0.0 for accepted, offered in both]

    def as_json(self) -> dict[str, Any]:
        """As `augury bench drafters --json` prints it."""
        return {
            "plain_per_second": self.plain_per_second,
            "predicted_per_second": self.per_second,
            "speedup": self.speedup,
            "interval": list(self.interval),
            "p10": self.p10,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.tokens_per_round,
            "identical": self.is_identical,
            "changed": self.is_changed,
            "pairs": [list(pair) for pair in self.speeds],
            "tokens": self.n_emitted,
            "rounds": self.n_rounds,
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
            "repeated": self.n_repeated,
            "stalled": self.n_stalled,
            "offered_by_position": list(self.offered_by_position),
            "accepted_by_position": list(self.accepted_by_position),
            "reliability": self.reliability.as_json(),
            **({"synthetic": list(self.synthetic)} if self.synthetic else {}),
        }


@frozen(eq=False)
class DrafterResult:
    """All pairs of one drafter on a workload."""

    spec_type: str  # with the options that differ from their defaults
    state: str  # "cold": it had seen nothing before each run; "warm": it had seen the same prompt answered
    pairs: tuple[Pair, ...]

    @property
    def label(self) -> str:
        """The drafter, as tables name it: marked if its figures are not those of a cold start or of real acceptance."""
        marks = [self.state] * (self.state != "cold") + ["synthetic"] * bool(self.stats.synthetic)
        return f"{self.spec_type} ({', '.join(marks)})" if marks else self.spec_type

    @property
    def stats(self) -> PairStats:
        """The statistics of all pairs."""
        return PairStats.of(self.pairs)

    @property
    def by_category(self) -> dict[str, PairStats]:
        """The statistics of each category, in the order of the workload."""
        categories = dict.fromkeys(pair.prompt.category for pair in self.pairs)
        return {name: PairStats.of(pair for pair in self.pairs if pair.prompt.category == name) for name in categories}

    def as_json(self) -> dict[str, Any]:
        """As `augury bench drafters --json` prints it."""
        categories = {name: stats.as_json() for name, stats in self.by_category.items()}
        return {"spec_type": self.spec_type, "state": self.state} | self.stats.as_json() | {"categories": categories}


def _sums(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))


_HEAD = ["drafter", "category", "plain tok/s", "tok/s", "speed-up", "p10", "accepted", "tokens/round", "identical"]


def comparison_lines(results: Iterable[DrafterResult]) -> list[str]:
    """A table by drafter and category; the categories' column is left out where there is only one."""
    found = [(each.label, category, stats) for each in results for category, stats in each.by_category.items()]
    rows, notes = [], stall_lines(stats for _, _, stats in found)
    for drafter, category, stats in found:
        share = f"{stats.n_accepted} of {stats.n_drafted} ({stats.acceptance_rate:.0%})"
        speeds = [f"{stats.plain_per_second:.1f}", f"{stats.per_second:.1f}"]
        ratios = [f"{stats.speedup:.2f}x", f"{stats.p10:.2f}x"]
        identical = "yes" if stats.is_identical else "NO" if stats.is_changed else "no (rejection)"
        identical = "synthetic" if stats.synthetic else identical
        rows.append([drafter, category, *speeds, *ratios, share, f"{stats.tokens_per_round:.2f}", identical])
    is_right = [False, False, True, True, True, True, True, True, False]
    if len({category for _, category, _ in found}) == 1:
        rows = [[row[0], *row[2:]] for row in rows]
        return align_rows([[_HEAD[0], *_HEAD[2:]], *rows], is_right=[False, *is_right[2:]]) + notes
    return align_rows([_HEAD, *rows], is_right=is_right) + notes


def stall_lines(found: Iterable[PairStats]) -> list[str]:
    """A line about plain runs that stalled, if any did."""
    counts = [(each.n_repeated, each.n_stalled) for each in found]
    n_repeated, n_stalled = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if not n_repeated and not n_stalled:
        return []
    line = f"stalled: {n_repeated} plain runs, slower than rounds that draft and verify, were repeated"
    if n_stalled:
        line += f"; {n_stalled} pairs stalled each time and are left out of the speeds: try again on a quiet machine"
    return [fold("", line, "")]
