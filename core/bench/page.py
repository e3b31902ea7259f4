"""A page that shows what drafters did: self-contained, without scripts, in light and dark."""

from __future__ import annotations

from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from augury.bench.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from augury.bench.contest import Pair
    from augury.bench.outcome import Outcome
    from augury.types import Result

__all__ = ["page"]

_COLOURS = (212, 32, 145, 280, 355, 180, 60, 320)  # hues, as unlike as eight can be
_LEFT = 38  # pixels before the first column of a chart
_WIDTH = 900
_K_HEIGHT = 80
_LABEL_EVERY = 5


def page(facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page as HTML. Whatever models and users wrote is escaped."""
    from jinja2 import Environment, StrictUndefined

    names = dict.fromkeys(name for name in (*(each.label for each in outcomes), *_origins(outcomes)))
    colours = {name: number % len(_COLOURS) for number, name in enumerate(names)}
    for each in outcomes:  # a drafter alone is one colour throughout, whatever its options
        (origin, *others) = list(_origins([each])) or [each.label]
        if not others:
            colours[each.label] = colours[origin]
    template = files("augury.bench").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        facts=facts,
        colours=_COLOURS,
        is_changed=any(each.figures.is_changed for each in outcomes),
        synthetic=next((each.figures.synthetic for each in outcomes if each.figures.synthetic), ()),
        speeds=list(_speeds(outcomes, colours)),
        positions=[_positions(each, colours[each.label]) for each in outcomes],
        legend={name: colours[name] for name in _origins(outcomes)},
        texts=[{"label": each.label, "colour": colours[each.label], "runs": _runs(each, colours)} for each in outcomes],
    )


def _origins(outcomes: Sequence[Outcome]) -> dict[str, None]:
    """The drafters that proposed tokens, in the order in which they appear."""
    pieces = (piece for each in outcomes for pair in each.pairs for piece in pair.drafted.pieces)
    return dict.fromkeys(piece.drafter for piece in pieces if piece.drafter is not None)


def _speeds(outcomes: Sequence[Outcome], colours: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Plain decoding and each drafter, category by category."""
    found = {each.label: each.by_category for each in outcomes}
    categories = dict.fromkeys(category for by_category in found.values() for category in by_category)
    fastest = max(
        (speed for by_category in found.values() for each in by_category.values() for pair in each.speeds for speed in pair),
        default=1.0,
    )
    for category in categories:
        shown = {label: by_category[category] for label, by_category in found.items() if category in by_category}
        plain = Figures.pool(shown.values()).plain_per_second
        rows = [_row("plain", None, plain / fastest, plain)]
        rows += [
            _row(label, colours[label], figures.per_second / fastest, figures.per_second)
            | {
                "speedup": f"{figures.speedup:.2f}x",
                "accepted": f"{figures.acceptance_rate:.0%}",
                "per_round": f"{figures.tokens_per_round:.2f}",
            }
            for label, figures in shown.items()
        ]
        yield {"category": category, "rows": rows}


def _row(label: str, colour: int | None, share: float, per_second: float) -> dict[str, Any]:
    told = {"label": label, "colour": colour, "percent": round(100 * share, 1), "per_second": f"{per_second:.1f}"}
    return told | {"speedup": "", "accepted": "", "per_round": ""}


def _positions(outcome: Outcome, colour: int) -> dict[str, Any]:
    figures = outcome.figures
    shares, n = figures.acceptance_by_position, len(figures.offered_by_position)
    step = max(min((_WIDTH - _LEFT) / max(n, 1), 40.0), 4.0)
    bars = [
        {
            "x": round(_LEFT + i * step, 1),
            "width": round(step * 0.8, 1),
            "height": round(100 * share, 1),
            "number": i + 1,
            "share": f"{share:.0%}",
            "offered": offered,
            "is_labelled": i == 0 or (i + 1) % _LABEL_EVERY == 0,
        }
        for i, (share, offered) in enumerate(zip(shares, figures.offered_by_position, strict=True))
    ]
    return {"label": outcome.label, "colour": colour, "bars": bars, "width": round(_LEFT + step * max(n, 1))}


def _runs(outcome: Outcome, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The first run of each prompt, with the speed-up of all."""
    shown = []
    for _, group in groupby(outcome.pairs, key=lambda pair: pair.item.id):
        pairs = list(group)
        figures = Figures.of(pairs)
        shown.append(
            {
                "item": pairs[0].item.id,
                "category": pairs[0].item.category,
                "speedup": f"{figures.speedup:.2f}x",
                "accepted": f"{figures.acceptance_rate:.0%}",
                "n_emitted": pairs[0].drafted.stats.n_emitted,
                "n_rounds": pairs[0].drafted.stats.n_rounds,
                "is_changed": figures.is_changed,
                "pieces": _pieces(pairs[0].drafted, colours),
            }
            | _lengths(pairs[0])
        )
    return shown


def _lengths(pair: Pair) -> dict[str, Any]:
    """Draft lengths, a column for each round behind the prompt."""
    rounds = _rounds(pair.drafted)
    longest = max((n_drafted for n_drafted, _ in rounds), default=0)
    scale = _K_HEIGHT / max(longest, 1)
    step = max(min((_WIDTH - _LEFT) / max(len(rounds), 1), 12.0), 2.0)
    bars = [
        {
            "x": round(_LEFT + i * step, 1),
            "drafted": round(n_drafted * scale, 1),
            "accepted": round(n_accepted * scale, 1),
            "n_drafted": n_drafted,
            "n_accepted": n_accepted,
        }
        for i, (n_drafted, n_accepted) in enumerate(rounds)
    ]
    width = round(_LEFT + step * max(len(rounds), 1))
    return {"longest": longest, "step": round(step * 0.85, 2), "bars": bars, "width": width}


def _rounds(result: Result) -> list[tuple[int, int]]:
    """Tokens drafted and accepted in each round behind the prompt's: every round ends with a token of the target's own."""
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
