"""What a number of pairs came to: speeds, their ratio, and how drafts fared; read from and written as JSON."""

from __future__ import annotations

import statistics
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.errors import OptionError
from augury.plugins.bench.versus import median_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from augury.plugins.bench.contest import Pair

__all__ = ["Figures"]


@frozen
class Figures:
    """Of one drafter on some prompts, against plain decoding.

    Attributes:
        speeds: Tokens per second of each pair, plain and drafted.
        n_emitted: Tokens of all drafted runs; so are the counts that follow.
        offered_by_position: [i]: drafts that were verified as far as position i, in a tree as far as depth i.
        accepted_by_position: [i]: those whose token i was accepted.
        is_identical: Whether plain and drafted runs emitted the same tokens.
        is_changed: Whether a drafter changed the output where it never may: synthetic acceptance does, and rejection of tokens
            that are drawn.
        synthetic: The chances by which drafts were accepted, where that was not the model's verdict.
        n_repeated: Plain runs that stalled and were repeated.
        n_stalled: Pairs without a speed, because the last repetition of the plain run stalled, too.
    """

    speeds: tuple[tuple[float, float], ...] = ()
    n_emitted: int = 0
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    offered_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    is_identical: bool = True
    is_changed: bool = False
    synthetic: tuple[float, ...] = ()
    n_repeated: int = 0
    n_stalled: int = 0

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Figures:
        """Those of pairs, whatever their prompts. A pair that emitted one token only has no speed."""
        return cls.pool(_of_pair(pair) for pair in pairs)

    @classmethod
    def pool(cls, parts: Iterable[Figures]) -> Figures:
        """All pairs of several figures."""
        several = list(parts)
        return cls(
            speeds=tuple(speed for part in several for speed in part.speeds),
            n_emitted=sum(part.n_emitted for part in several),
            n_rounds=sum(part.n_rounds for part in several),
            n_drafted=sum(part.n_drafted for part in several),
            n_accepted=sum(part.n_accepted for part in several),
            offered_by_position=_sums(part.offered_by_position for part in several),
            accepted_by_position=_sums(part.accepted_by_position for part in several),
            is_identical=all(part.is_identical for part in several),
            is_changed=any(part.is_changed for part in several),
            synthetic=next((part.synthetic for part in several if part.synthetic), ()),
            n_repeated=sum(part.n_repeated for part in several),
            n_stalled=sum(part.n_stalled for part in several),
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
        """One pair in ten has a lower ratio: what speculation costs where it fails."""
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

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "plain_per_second": self.plain_per_second,
            "predicted_per_second": self.per_second,
            "speedup": self.speedup,
            "interval": list(self.interval),
            "p10": self.p10,
            "tokens": self.n_emitted,
            "rounds": self.n_rounds,
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.tokens_per_round,
            "offered_by_position": list(self.offered_by_position),
            "accepted_by_position": list(self.accepted_by_position),
            "identical": self.is_identical,
            "changed": self.is_changed,
            "pairs": [list(pair) for pair in self.speeds],
            "repeated": self.n_repeated,
            "stalled": self.n_stalled,
        } | ({"synthetic": list(self.synthetic)} if self.synthetic else {})

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> Figures:
        """What `told` gave.

        Raises:
            OptionError: It is something else.
        """
        try:
            return cls(
                speeds=tuple((float(plain), float(drafted)) for plain, drafted in told["pairs"]),
                n_emitted=int(told["tokens"]),
                n_rounds=int(told["rounds"]),
                n_drafted=int(told["drafted"]),
                n_accepted=int(told["accepted"]),
                offered_by_position=tuple(int(n) for n in told["offered_by_position"]),
                accepted_by_position=tuple(int(n) for n in told["accepted_by_position"]),
                is_identical=bool(told["identical"]),
                is_changed=bool(told.get("changed", False)),  # of figures saved by older versions
                synthetic=tuple(float(rate) for rate in told.get("synthetic", ())),
                n_repeated=int(told.get("repeated", 0)),
                n_stalled=int(told.get("stalled", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"no figures of augury bench: {type(error).__name__}: {error}") from None


def _of_pair(pair: Pair) -> Figures:
    stats = pair.drafted.stats
    speeds = (pair.plain.stats.timings.predicted_per_second, stats.timings.predicted_per_second)
    synthetic = tuple(stats.effective.get("synthetic", ()))
    return Figures(
        speeds=(speeds,) if min(speeds) > 0 and not pair.is_stalled else (),
        n_emitted=stats.n_emitted,
        n_rounds=stats.n_rounds,
        n_drafted=stats.n_drafted,
        n_accepted=stats.n_accepted,
        offered_by_position=_sums(each.offered_by_position for each in stats.drafters.values()),
        accepted_by_position=_sums(each.accepted_by_position for each in stats.drafters.values()),
        is_identical=pair.is_identical,
        is_changed=pair.is_promised and not pair.is_identical and not synthetic,
        synthetic=synthetic,
        n_repeated=pair.n_repeated,
        n_stalled=int(pair.is_stalled),
    )


def _sums(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
