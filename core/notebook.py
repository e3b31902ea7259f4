"""What Jupyter shows of results and engines, as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from augury.engine.stats import EngineStats
    from augury.types import Result

_COLOURS = ("#2e7d32", "#00838f", "#8e24aa", "#ef6c00", "#1565c0")  # readable on light and on dark


def text_of(result: Result) -> str:
    """A result's text, with drafted tokens in the colour of their drafter; without a tokenizer the tokens' ids."""
    drafters = dict.fromkeys(piece.drafter for piece in result.pieces if piece.drafter is not None)
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(drafters)}
    told = [(piece.text if result.text else f"{piece.token} ", piece.drafter) for piece in result.pieces]
    text = "".join(_coloured(text, colours.get(name or "")) for text, name in told)
    legend = ", ".join(_coloured(name, colour) for name, colour in colours.items())
    figures = f"{len(result.tokens)} tokens, {result.stats.n_accepted} of them drafted, {result.finish_reason}"
    return f'<pre style="white-space: pre-wrap">{text}</pre><small>{figures}{legend and ": "}{legend}</small>'


def slots_of(title: str, stats: EngineStats) -> str:
    """An engine's name and a table of its slots."""
    head = _row("th", ("slot", "state", "request", "prompt", "held", "written"))
    rows = [_row("td", (slot.slot, slot.state, slot.id, slot.n_prompt, slot.n_held, slot.n_emitted)) for slot in stats.slots]
    return f"<code>{escape(title)}</code><table>{head}{''.join(rows)}</table>"


def _coloured(text: str, colour: str | None) -> str:
    return escape(text) if colour is None else f'<span style="color: {colour}">{escape(text)}</span>'


def _row(tag: str, cells: Iterable[object]) -> str:
    told = ("" if cell is None else escape(str(cell)) for cell in cells)
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in told)}</tr>"
