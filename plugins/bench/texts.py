"""Answers to prompts, ours and another engine's, in turns; both get the same token ids and generate as many tokens."""

from __future__ import annotations

import statistics
from itertools import takewhile
from time import sleep
from typing import TYPE_CHECKING, Any

from attrs import frozen

from augury.plugins.bench.versus import REST_S, median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from augury.plugins.bench.workload import Item

    Side = Callable[[Item], "Answer"]  # answers a prompt, which it processes in full

__all__ = ["Answer", "TextPair", "TextRatio", "compare_texts"]


@frozen
class Answer:
    """What an engine made of a prompt, and how fast."""

    tokens: tuple[int, ...]
    prompt_per_second: float
    per_second: float  # behind the first token
    n_drafted: int = 0
    n_accepted: int = 0


@frozen
class TextPair:
    """Both answers to a prompt."""

    item: Item
    ours: Answer
    theirs: Answer
    round_trip_ns: float | None = None  # between two cores, just before

    @property
    def n_same(self) -> int:
        """Tokens up to the first that differs."""
        both = zip(self.ours.tokens, self.theirs.tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


@frozen
class TextRatio:
    """Pairs of one category."""

    category: str
    pairs: tuple[TextPair, ...]

    def told(self) -> dict[str, Any]:
        """As JSON has it; `prompt` and `generation` are ours over theirs."""
        told: dict[str, Any] = {"category": self.category, "pairs": len(self.pairs)}
        for what in ("prompt", "generation"):
            ours, theirs = self._speeds(what)
            ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b > 0]
            told[what] = {
                "tok_s": statistics.median(ours),
                "peer_tok_s": statistics.median(theirs),
                "ratio": statistics.median(ratios) if ratios else 0.0,
                "interval": list(median_interval(ratios)) if ratios else [0.0, 0.0],
            }
        told["same"] = sum(pair.n_same for pair in self.pairs) / max(sum(len(pair.ours.tokens) for pair in self.pairs), 1)
        for name in ("n_drafted", "n_accepted"):
            told[name.removeprefix("n_")] = [sum(getattr(each, name) for each in side) for side in self._sides()]
        told["round_trip_ns"] = [pair.round_trip_ns for pair in self.pairs if pair.round_trip_ns is not None]
        return told

    def _sides(self) -> tuple[list[Answer], list[Answer]]:
        return [pair.ours for pair in self.pairs], [pair.theirs for pair in self.pairs]

    def _speeds(self, what: str) -> tuple[list[float], list[float]]:
        ours, theirs = self._sides()
        name = "prompt_per_second" if what == "prompt" else "per_second"
        return [getattr(each, name) for each in ours], [getattr(each, name) for each in theirs]


def compare_texts(
    items: Iterable[Item],
    sides: Callable[[], AbstractContextManager[tuple[Side, Side]]],
    n_pairs: int,
    *,
    is_fresh: bool,
    probe: Callable[[], float | None] = lambda: None,
) -> list[TextRatio]:
    """Let both answer every prompt, so often that each category has at least `n_pairs` pairs.

    Args:
        items: The prompts.
        sides: Starts both engines, ours and theirs.
        n_pairs: Of each category.
        is_fresh: Start both anew for every pair, so that what drafters learn of a prompt is forgotten before the next.
        probe: Called before each pair, for the nanoseconds of a round trip between cores.

    Returns:
        By category, in the order of the items.
    """
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.category, []).append(item)
    order = [item for group in groups.values() for item in group * -(-n_pairs // len(group))]
    found: dict[str, list[TextPair]] = {category: [] for category in groups}
    batches = [[item] for item in order] if is_fresh else [order]
    number = 0
    for batch in batches:
        with sides() as (ours, theirs):
            for item in batch:
                found[item.category].append(_pair(item, ours, theirs, number, probe))
                number += 1
    return [TextRatio(category, tuple(pairs)) for category, pairs in found.items()]


def _pair(item: Item, ours: Side, theirs: Side, number: int, probe: Callable[[], float | None]) -> TextPair:
    sleep(REST_S)
    trip = probe()
    answers = []
    for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
        sleep(REST_S)
        answers.append(side(item))
    first, second = answers if number % 2 == 0 else reversed(answers)
    return TextPair(item, first, second, trip)
