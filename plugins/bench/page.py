"""A page that shows drafters' work: self-contained, without scripts, in light and dark, for screens of any width.

The template places marks, along a line in percent and across it in pixels, so that texts keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from string import ascii_uppercase
from typing import Any

from augury.plugins.bench.pair_stats import DrafterResult, PairStats, stall_lines
from augury.plugins.bench.paired_runs import TOGETHER, Reliability, Tally
from augury.types import Result

# On white and on black. The first four stay unlike with each kind of colour blindness; none stands without a letter or a name.
_COLOURS = (
    ("#0067b1", "#5aa9f5"),
    ("#e8590c", "#f07f30"),
    ("#0b4a3f", "#c9f2df"),
    ("#cf5f9e", "#a24b8a"),
    ("#7a3cc8", "#b9a0ff"),
    ("#5b2b1f", "#a86650"),
    ("#3f8fd0", "#2c7ab2"),
    ("#8a7400", "#d6c64a"),
)
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_N_STEPS = 6  # at most


def page(facts: Mapping[str, Any], results: Sequence[DrafterResult]) -> str:
    """The page as HTML. Texts of models and users are escaped."""
    from jinja2 import Environment, StrictUndefined

    drafters: list[dict[str, Any]] = [
        {
            "label": each.label,
            "letter": ascii_uppercase[number % 26],
            "colour": number % len(_COLOURS),
            "stats": each.stats,
            "charts": _charts(each.stats.reliability),
            "buckets": sorted(each.stats.reliability.buckets.items(), key=lambda bucket: (bucket[0][0], -bucket[1][1].n)),
            "legend": found if len(found) > 1 else {},
            "runs": _runs(each, found),
        }
        for number, (each, found) in enumerate(zip(results, _colours(results), strict=True))
    ]
    template = files("augury.plugins.bench").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        facts=facts,
        colours=_COLOURS,
        drafters=drafters,
        is_changed=any(each["stats"].is_changed for each in drafters),
        synthetic=next((each["stats"].synthetic for each in drafters if each["stats"].synthetic), ()),
        stalls=stall_lines(each["stats"] for each in drafters),
        **_speedups(results, drafters),
    )


def _colours(results: Sequence[DrafterResult]) -> list[dict[str, int]]:
    """For each drafter the colours of its proposers: its own if there is one, else each proposer's own colour."""
    origins = [
        list(dict.fromkeys(piece.drafter for pair in each.pairs for piece in pair.drafted.pieces if piece.drafter))
        for each in results
    ]
    alone = {names[0]: number for number, names in reversed(list(enumerate(origins))) if len(names) == 1}
    shared = dict.fromkeys(name for names in origins for name in names if name not in alone)
    alone |= {name: len(results) + number for number, name in enumerate(shared)}
    return [
        {name: (number if len(names) == 1 else alone[name]) % len(_COLOURS) for name in names}
        for number, names in enumerate(origins)
    ]


def _speedups(results: Sequence[DrafterResult], drafters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [each.by_category for each in results]
    ends = [
        1.0,
        *(end for each in found for stats in each.values() if stats.speeds for end in (*stats.interval, stats.speedup)),
    ]
    step = next((each for each in _STEPS if (max(ends) - min(ends)) / each <= _N_STEPS), max(ends))
    low, high = math.floor(10 * min(ends)) / 10, max(math.ceil(10 * max(ends)) / 10, 1 + step)
    groups: list[dict[str, Any]] = []
    for category in dict.fromkeys(category for by_category in found for category in by_category):
        rows = [(drafter, each[category]) for drafter, each in zip(drafters, found, strict=True) if category in each]
        pairs = (pair for each in results for pair in each.pairs if pair.prompt.category == category)
        groups.append({"category": category, "rows": rows, "plain": PairStats.of(pairs).plain_per_second})
    steps = [round(number * step, 1) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = [1.0, *(each for each in steps if each != 1 and (each > 1 or step <= 1))]
    return {"groups": groups, "ticks": ticks, "low": low, "high": high}


def _charts(found: Reliability) -> dict[str, Sequence[Tally]]:
    """The steps of chances of each drafter, all together first; of one drafter its own alone."""
    return {name: steps for name, steps in found.steps.items() if name != TOGETHER or len(found.steps) != 2}


def _runs(result: DrafterResult, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The first run of each prompt, with the statistics of all."""
    shown = []
    for _, group in groupby(result.pairs, key=lambda pair: pair.prompt.id):
        pairs = list(group)
        run, rounds = pairs[0].drafted, _rounds(pairs[0].drafted)
        about = {"prompt": pairs[0].prompt, "stats": PairStats.of(pairs), "summary": run.stats, "rounds": rounds}
        longest = max((n_drafted for n_drafted, _ in rounds), default=0)
        shown.append(about | {"longest": longest, "pieces": _pieces(run, colours)})
    return shown


def _rounds(result: Result) -> list[tuple[int, int]]:
    """Tokens drafted and accepted in each round after the prompt's: every round ends with a token of the target's own."""
    n_accepted, found = 0, []
    for piece in result.pieces:
        if piece.drafter is None:
            found.append(n_accepted)
            n_accepted = 0
        else:
            n_accepted += 1
    return list(zip(result.stats.draft_lengths, found[1:], strict=False))  # a request that failed has fewer of either


def _pieces(result: Result, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The text in stretches of one origin; token ids where the model has no tokenizer."""
    has_text = any(piece.text for piece in result.pieces)
    stretches = groupby(result.pieces, key=lambda piece: piece.drafter)
    return [
        {
            "text": "".join(piece.text if has_text else f"{piece.token} " for piece in stretch),
            "drafter": drafter,
            "colour": None if drafter is None else colours[drafter],
        }
        for drafter, stretch in stretches
    ]
