"""A page that shows drafters' work: self-contained, without scripts, in light and dark, for screens of any width.

Marks have their places along a line in percent and across it in pixels, so that texts keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from string import ascii_uppercase
from typing import Any

from augury.plugins.bench.pair_stats import DrafterResult, PairStats, stall_lines
from augury.plugins.bench.paired_runs import Pair
from augury.plugins.bench.reliability import Reliability, Tally
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
_PLOT = (7.0, 85.0)  # percent between which speed-ups are drawn; letters are before, figures after
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_N_STEPS = 6  # at most
_HEAD, _ROW, _GAP = 24, 20, 14  # pixels of a category's name, of a drafter's row, and before the next category
_HEIGHT = 84  # of columns
_LABEL_EVERY = 5


def page(facts: Mapping[str, Any], results: Sequence[DrafterResult]) -> str:
    """The page as HTML. Texts of models and users are escaped."""
    from jinja2 import Environment, StrictUndefined

    colours = _colours(results)
    drafters: list[dict[str, Any]] = [
        {"label": each.label, "letter": ascii_uppercase[number % 26], "colour": number % len(_COLOURS), "stats": each.stats}
        for number, each in enumerate(results)
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
        speedups=_speedups(results, drafters),
        positions=[_positions(each) for each in drafters],
        reliability=[drafter | _reliability(drafter["stats"].reliability) for drafter in drafters],
        texts=[
            drafter | {"runs": _runs(each, found), "legend": found if len(found) > 1 else {}}
            for each, drafter, found in zip(results, drafters, colours, strict=True)
        ],
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
    """The chart of speed-ups: groups of rows, a group for each category and a row for each drafter, and a scale for all."""
    found = [each.by_category for each in results]
    categories = dict.fromkeys(category for by_category in found for category in by_category)
    shown = [stats for by_category in found for stats in by_category.values() if stats.speeds]
    ends = [1.0, *(end for stats in shown for end in (*stats.interval, stats.speedup))]
    step = next((each for each in _STEPS if (max(ends) - min(ends)) / each <= _N_STEPS), max(ends))
    low, high = math.floor(10 * min(ends)) / 10, max(math.ceil(10 * max(ends)) / 10, 1 + step)

    def place(speedup: float) -> float:
        return round(_PLOT[0] + (_PLOT[1] - _PLOT[0]) * (speedup - low) / (high - low), 2)

    groups: list[dict[str, Any]] = []
    y = 0
    for category in categories:
        both = zip(found, drafters, strict=True)
        here = [(by_category[category], drafter) for by_category, drafter in both if category in by_category]
        rows: list[dict[str, Any]] = []
        for number, (stats, drafter) in enumerate(here):
            left, right = sorted((place(1.0), place(stats.speedup if stats.speeds else 1.0)))
            rows.append(
                {
                    "drafter": drafter,
                    "stats": stats,
                    "y": y + _HEAD + number * _ROW,
                    "x": left,
                    "width": round(right - left, 2),
                    "interval": [place(end) for end in stats.interval] if stats.speeds else None,
                }
            )
        plain = PairStats.pool(row["stats"] for row in rows).plain_per_second
        bottom = y + _HEAD + len(rows) * _ROW
        groups.append({"category": category, "y": y, "bottom": bottom - 3, "rows": rows, "plain": plain})
        y = bottom + _GAP
    steps = [round(number * step, 1) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = [1.0, *(each for each in steps if each != 1 and (each > 1 or step <= 1))]
    return {"groups": groups, "ticks": [(place(tick), tick) for tick in ticks], "height": y}


def _runs(result: DrafterResult, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The first run of each prompt, with the statistics of all."""
    shown = []
    for _, group in groupby(result.pairs, key=lambda pair: pair.prompt.id):
        pairs = list(group)
        about = {"prompt": pairs[0].prompt, "stats": PairStats.of(pairs), "summary": pairs[0].drafted.stats}
        shown.append(about | {"pieces": _pieces(pairs[0].drafted, colours)} | _lengths(pairs[0]))
    return shown


def _lengths(pair: Pair) -> dict[str, Any]:
    """Draft lengths, a column for each round after the prompt."""
    rounds = _rounds(pair.drafted)
    longest = max((n_drafted for n_drafted, _ in rounds), default=0)
    columns = [
        {
            "n_drafted": n_drafted,
            "n_accepted": n_accepted,
            "drafted": round(_HEIGHT * n_drafted / max(longest, 1), 1),
            "accepted": round(_HEIGHT * n_accepted / max(longest, 1), 1),
        }
        for n_drafted, n_accepted in rounds
    ]
    return {"longest": longest} | _columns(columns, least=3, most=16)


def _positions(drafter: Mapping[str, Any]) -> dict[str, Any]:
    """Acceptance by position, a column for each."""
    stats: PairStats = drafter["stats"]
    both = zip(stats.acceptance_by_position, stats.offered_by_position, strict=True)
    columns = [{"share": share, "height": round(100 * share, 1), "n_offered": n_offered} for share, n_offered in both]
    return dict(drafter) | _columns(columns, least=8, most=32)


def _reliability(found: Reliability) -> dict[str, Any]:
    """Whether chances are true: a chart for each drafter, all together first, and the worth of each bucket."""
    names = list(found.steps)
    charts = [{"name": name} | _steps(found.steps[name]) for name in (names[1:] if len(names) == 2 else names)]
    buckets = [(*key, prior, tally) for key, (prior, tally) in found.buckets.items()]
    return {"charts": charts, "buckets": sorted(buckets, key=lambda bucket: (bucket[0], -bucket[3].n))}


def _steps(tallies: Sequence[Tally]) -> dict[str, Any]:
    """A column for each step of chances; heights are percent."""
    columns = [
        {
            "tally": tally,
            "least": number / len(tallies),
            "most": (number + 1) / len(tallies),
            "height": round(100 * tally.share, 1),
            "mark": round(100 * tally.chance, 1),
            "interval": [round(100 * end, 1) for end in tally.interval],
        }
        for number, tally in enumerate(tallies)
    ]
    return _columns(columns, least=16, most=32)


def _columns(columns: Sequence[Mapping[str, Any]], *, least: int, most: int) -> dict[str, Any]:
    """Columns beside each other, each with its number and at least and at most so many pixels."""
    step = 100 / max(len(columns), 1)
    return {
        "style": f"min-width: {least * len(columns)}px; max-width: {most * len(columns)}px",
        "width": round(0.85 * step, 3),
        "columns": [
            dict(column)
            | {
                "number": number,
                "x": round((number - 1) * step, 3),
                "middle": round((number - 0.575) * step, 3),
                "is_labelled": number == 1 or number % _LABEL_EVERY == 0,
            }
            for number, column in enumerate(columns, start=1)
        ],
    }


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
