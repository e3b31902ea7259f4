"""Where the values of arguments end that a template marks: what ends one may stand in a value, or be left out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from augury.plugins.server.tools.format import Keys
from augury.plugins.server.tools.notation import Pieces, Source, escaped


def up_to(source: Source, ending: re.Pattern[str], half: re.Pattern[str], *, is_text: bool) -> Pieces[str | None]:
    """Take a text and its ending, of which half may have arrived. Returns the text, or None if it does not end."""
    text = ""
    while True:
        whole = ending.search(source.text)
        part = None if source.is_whole else half.search(source.text)
        stops = [found.start() for found in (whole, part) if found is not None]
        text += (piece := source.take(min(stops, default=len(source.text))))
        if is_text:
            yield escaped(piece)
        if whole is not None and (part is None or whole.start() < part.start()):
            source.take(len(whole[0]))
            return text
        if source.is_whole:
            return None
        yield None


def marked(text: str, following: Sequence[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The ending that a text is, after the line break before it or before one of some marks, and its half."""
    mark, line = re.escape(text.strip()), "\n" if text.startswith("\n") else ""
    after = "|".join(re.escape(each) for each in following if each)
    half_after = "|".join(_half(each) for each in following if each)
    whole = rf"{mark}(?=\s*(?:{after}|(?:{half_after})\Z))" + (rf"|{line}{mark}" if line else "")
    return re.compile(whole), re.compile(rf"(?:{line and line + '?'}{_half(text.strip()[:-1])}|{mark}\s*(?:{half_after}))\Z")


def or_unmarked(
    ending: tuple[re.Pattern[str], re.Pattern[str]], keys: Sequence[str], ends: Sequence[str]
) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """An ending, or the line break after which one of some keys or the end of all comes: models leave out the mark before."""
    end, *marks = map(re.escape, ends)
    half_marks = "|".join(map(_half, ends[1:]))
    whole = "|".join([*map(re.escape, keys), rf"\n{end}\s*(?:{'|'.join(marks)}|\Z)"])
    half = "|".join([*[_half(key[:-1]) for key in keys], _half(f"\n{ends[0]}"), rf"\n{end}\s*(?:{half_marks})"])
    return re.compile(rf"{ending[0].pattern}|(?={whole})"), re.compile(rf"{ending[1].pattern}|(?:{half})\Z")


def _half(text: str) -> str:
    """A regular expression of the beginnings of a text."""
    return "".join(f"(?:{re.escape(letter)}" for letter in text) + ")?" * len(text)


def followed(quote: str, keys: Keys, end: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The quote that ends a string without escapes, because another argument or the end follows, and its half."""
    between, equals, after = map(re.escape, (keys.between.strip(), keys.before_value.strip(), end))
    ending = re.compile(rf"{quote}(?=\s*(?:{between}\s*[\w.-]+\s*{equals}|{after}\s*(?:[^\w\s]|$)))")
    return ending, re.compile(rf"{quote}\s*(?:{between}\s*[\w.-]*\s*|{after}\s*)?\Z")
