"""Arguments that a model writes one by one, read as they stream, and told as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from augury.plugins.server.tools.format import Keys
from augury.plugins.server.tools.notation import Pieces, Source, escaped, resolved, typed, types, value


def arguments(source: Source, keys: Keys, schema: Mapping[str, Any], end: str) -> Pieces[bool]:
    """Read arguments. Returns whether they are complete.

    Args:
        source: The text from the first key on, from which they are taken.
        keys: How they are written.
        schema: Of all of them, which tells the types of values without quotes.
        end: The mark after them.
    """
    yield "{"
    n, mark, between = 0, keys.before_key.strip(), keys.between.strip()
    while True:
        yield from _spaces(source)
        if n and between and source.text.startswith(between):
            source.take(len(between))
            continue
        yield from _mark(source, mark)
        if not source.text.startswith(mark) or (not mark and source.text[:1] in end[:1]):
            break
        if (found := (yield from _key(source, keys, len(mark)))) is None:
            break
        key, is_text = found
        yield ("," if n else "") + json.dumps(key, ensure_ascii=False) + ":"
        if keys.quote:
            is_complete = yield from value(source, keys.quote)
        else:
            is_complete = yield from _raw(source, keys, _property(schema, key), schema, is_text=is_text)
        if not is_complete:
            return False
        n += 1
    yield from _mark(source, end)
    if source.text.startswith(end):
        source.take(len(end))
    elif source.is_whole:
        return False
    yield "}"
    return True


def _spaces(source: Source) -> Pieces[None]:
    while not (rest := source.text.lstrip()) and not source.is_whole:
        yield None
    source.text = rest


def _mark(source: Source, mark: str) -> Pieces[None]:
    """Wait while the text may still become one that begins with a mark."""
    while not source.is_whole and source.text != mark and mark.startswith(source.text):
        yield None


def _key(source: Source, keys: Keys, start: int) -> Pieces[tuple[str, bool | None] | None]:
    """A key, and whether its value is marked as a string; None for that where nothing tells."""
    as_text, as_value = (re.escape(text.rstrip("\n")) for text in (keys.before_text, keys.before_value))
    is_told = not keys.quote and as_text != as_value
    marks = rf"(?P<text>{as_text})|(?P<value>{as_value})" if is_told else as_value
    pattern = re.compile(rf"(?P<key>[^\n]*?)(?:{marks})")
    while (found := pattern.match(source.text, start)) is None or found.end() == len(source.text):
        if source.is_whole:
            return None
        yield None
    is_text = (found["text"] is not None) if is_told else None
    source.take(found.end())
    if keys.before_text.endswith("\n"):
        source.text = source.text.removeprefix("\n")
    return found["key"].strip(), is_text


def _raw(source: Source, keys: Keys, schema: Any, root: Mapping[str, Any], *, is_text: bool | None) -> Pieces[bool]:
    """A value without quotes, up to the mark after it. Returns whether it ends."""
    is_text = types(schema, root) == {"string"} if is_text is None else is_text
    end = keys.after_text if is_text else keys.after_value
    mark, held = end.strip(), ""
    if is_text:
        yield '"'
    while True:
        at = source.text.find(mark)
        n_half = max((n for n in range(1, len(mark)) if source.text.endswith(mark[:n])), default=0)
        n = stop = at if at >= 0 else len(source.text) - n_half
        if end.startswith("\n") and source.text[:n].endswith("\n"):  # which belongs to the mark
            n -= 1
        piece = source.take(n)
        if is_text:
            yield escaped(piece)
        else:
            held += piece
        if at >= 0:
            source.take(stop - n + len(mark))
            yield '"' if is_text else typed(held, schema, root)
            return True
        if source.is_whole:
            return False
        yield None


def _property(root: Mapping[str, Any], key: str) -> Any:
    """The schema of an argument."""
    found = resolved(root, root)
    properties = found.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return found.get("additionalProperties")
