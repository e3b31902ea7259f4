"""Which drafter, and how far, is fastest on a workload: candidates against plain decoding, the worse half left out in turns.

Every trial is a pair, the candidate and plain decoding on the same prompt beside each other. All candidates that are left run
trial after trial together, so that a machine that changes its speed changes it for all of them alike. First the drafters are
settled, then the lengths.

Source: successive halving is from Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification" (arXiv 1502.07943).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from attrs import define, evolve, field, frozen

from augury.cli import Prompt
from augury.plugins.bench.pair_stats import PairStats
from augury.plugins.bench.paired_runs import Pair

_MIN_TRIALS = 3  # before anybody is left out
_MIN_GAIN = 1.02  # a smaller speed-up cannot be distinguished from none
_SAME = 1.01  # of two candidates nearer than this the first is taken, which is the simpler one


@frozen
class Candidate:
    """Drafters and a draft length to try."""

    spec_type: tuple[str, ...]  # a chain, as repeated --spec-type flags name it
    draft_max: int
    draft_model: str | None = None


@frozen
class PromptTurn:
    """A prompt. Where the number is even plain decoding begins: that changes from prompt to prompt and from turn to turn."""

    prompt: Prompt
    number: int


def trials_of(prompts: Iterable[Prompt], turns: int) -> list[PromptTurn]:
    """All prompts `turns` times over; of every category one first, then the next of each."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    mixed = [prompt for row in zip_longest(*by_category.values()) for prompt in row if prompt is not None]
    return [PromptTurn(prompt, place + turn) for turn in range(turns) for place, prompt in enumerate(mixed)]


@define(eq=False)
class Tuning:
    """Measures candidates. Results are in `pairs`, which grow while it runs."""

    _measure: Callable[[Candidate, PromptTurn], Pair]  # runs a candidate and plain decoding, cold
    _trials: Sequence[PromptTurn]  # of the whole workload, in the order in which they are run
    pairs: dict[Candidate, list[Pair]] = field(factory=dict, init=False)

    def settle(self, chains: Sequence[Candidate], lengths: Sequence[int]) -> Candidate | None:
        """The candidate to use; None where nothing pays.

        Args:
            chains: The candidates, the simplest first.
            lengths: Values of `draft_max` to try with the best of them.
        """
        best = self._best(chains)
        if self.speedup(best) < _MIN_GAIN:
            return None
        return self._best([evolve(best, draft_max=length) for length in lengths])

    def n_trials(self, n_chains: int, n_lengths: int) -> int:
        """How many pairs `settle` runs at most."""
        n_known, _ = next(self._rungs(1))  # the best chain's own length has run them, and may be left out after them
        return self._cost(n_chains) + self._cost(n_lengths) - n_known

    def speedup(self, candidate: Candidate) -> float:
        """The speed-up of the whole workload, as if every prompt took plain decoding equally long."""
        medians = self._medians(candidate, lambda pair: pair.prompt.id)
        return statistics.harmonic_mean([*medians.values()]) if medians else 0.0

    def by_category(self, candidate: Candidate) -> dict[str, float]:
        """The median of the pairs' speed-ups in each category."""
        return self._medians(candidate, lambda pair: pair.prompt.category)

    def stats(self, candidate: Candidate) -> PairStats:
        """The statistics of its pairs."""
        return PairStats.of(self.pairs[candidate])

    def as_json(self, candidate: Candidate) -> dict[str, Any]:
        """As `augury tune --json` prints it."""
        figures = {"tuned_speedup": self.speedup(candidate), "by_category": self.by_category(candidate)}
        about = {"spec_type": list(candidate.spec_type), "draft_max": candidate.draft_max, "draft_model": candidate.draft_model}
        return about | figures | self.stats(candidate).as_json()

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        """Run all candidates on some trials, the better half on twice as many, and so on, until the last two have run all."""
        left = list(dict.fromkeys(candidates))
        for n, n_left in self._rungs(len(left)):
            left = sorted(sorted(left, key=self._rank, reverse=True)[:n_left], key=left.index)
            for i, trial in enumerate(self._trials[:n]):
                for candidate in left:
                    pairs = self.pairs.setdefault(candidate, [])
                    if len(pairs) == i:
                        pairs.append(self._measure(candidate, trial))
        fastest = max(self.speedup(each) for each in left)
        return next(each for each in left if self.speedup(each) * _SAME >= fastest)

    def _medians(self, candidate: Candidate, key: Callable[[Pair], str]) -> dict[str, float]:
        """The median speed-up of the pairs of each key."""
        found: dict[str, list[float]] = {}
        for pair in self.pairs[candidate]:
            if (ratio := _ratio(pair)) is not None:
                found.setdefault(key(pair), []).append(ratio)
        return {name: statistics.median(ratios) for name, ratios in found.items()}

    def _rank(self, candidate: Candidate) -> float:
        return self.speedup(candidate) if self.pairs.get(candidate) else 0.0

    def _rungs(self, n_candidates: int) -> Iterator[tuple[int, int]]:
        """(trials, candidates) of each stage."""
        n_all = len(self._trials)
        n_categories = len({trial.prompt.category for trial in self._trials})
        n = min(max(n_categories, _MIN_TRIALS), n_all)
        yield n, n_candidates
        while n < n_all:
            n, n_candidates = min(2 * n, n_all), min(n_candidates, max((n_candidates + 1) // 2, 2))
            yield n, n_candidates

    def _cost(self, n_candidates: int) -> int:
        """Pairs that `_best` runs."""
        n_before, n_pairs = 0, 0
        for n, n_left in self._rungs(n_candidates):
            n_pairs += (n - n_before) * n_left
            n_before = n
        return n_pairs


def _ratio(pair: Pair) -> float | None:
    """Plain over drafted seconds per token; drafters' time to begin counts, because it delays the answer.

    It is never more than there can be, so that a drafter with nothing accepted gains nothing by a plain run that was slow.
    """
    plain, drafted = pair.plain.stats, pair.drafted.stats
    begin_s = sum(each.begin_s for each in drafted.drafters.values())
    if not plain.timings.n_predicted or not drafted.timings.n_predicted or plain.timings.predict_s <= 0 or pair.is_stalled:
        return None
    plain_s = plain.timings.predict_s / plain.timings.n_predicted
    return min(plain_s * drafted.timings.n_predicted / (drafted.timings.predict_s + begin_s), pair.max_speedup)
