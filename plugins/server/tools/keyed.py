"""Arguments that a model writes one by one, read as they stream, and told as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from augury.plugins.constraints.schema import resolved
from augury.plugins.server.tools.format import KEY, Keys, flexible
from augury.plugins.server.tools.notation import Pieces, Source, escaped, typed, types, value


def arguments(
    source: Source,
    keys: Keys,
    schema: Any,
    end: str,
    root: Mapping[str, Any] | None = None,
    *,
    is_array: bool = False,
) -> Pieces[bool]:
    """Read arguments, or what is written as they are. Returns whether they are complete.

    Args:
        source: The text from the first key on, from which they are taken.
        keys: How they are written.
        schema: Of all of them, which tells the types of values without quotes.
        end: The mark after them.
        root: The schema that holds this one, if it is another.
        is_array: Whether they are items of an array.
    """
    root = root or schema
    yield "[" if is_array else "{"
    n, mark, between = 0, keys.before_key.strip(), keys.between.strip()
    while True:
        yield from _spaces(source)
        if n and between and source.text.startswith(between):
            source.take(len(between))
            continue
        yield from _mark(source, end)
        if end and source.text.startswith(end if mark else end[0]):
            break
        yield from _mark(source, mark)
        if not source.text.startswith(mark) or (found := (yield from _key(source, keys, len(mark)))) is None:
            break
        key, is_text = found
        yield ("," if n else "") + ("" if is_array else json.dumps(key, ensure_ascii=False) + ":")
        if keys.quote:
            is_complete = yield from _quoted(source, keys, end)
        else:
            is_complete = yield from _raw(
                source, keys, key, _inner(schema, root, key, is_array=is_array), root, is_text=is_text
            )
        if not is_complete:
            return False
        n += 1
    if source.text.startswith(end):
        source.take(len(end))
    elif source.is_whole:
        return False
    yield "]" if is_array else "}"
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
    as_text, as_value = re.escape(keys.before_text.rstrip("\n")), flexible(keys.before_value.rstrip("\n"))
    is_told = not keys.quote and keys.before_text != keys.before_value
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


def _quoted(source: Source, keys: Keys, end: str) -> Pieces[bool]:
    """A value that tells its own end; a string without escapes ends where another argument or the end may follow its quote."""
    yield from _spaces(source)
    if not (keys.is_raw and source.text.startswith(keys.quote)):
        return (yield from value(source, keys.quote))
    source.take(len(keys.quote))
    yield '"'
    after, between = re.escape(end), re.escape(keys.between.strip())
    ending = re.compile(
        rf"{keys.quote}(?=\s*(?:{between}\s*[\w.-]+\s*{re.escape(keys.before_value.strip())}|{after}\s*(?:[^\w\s]|$)))"
    )
    unclear = re.compile(rf"{keys.quote}\s*(?:{between}\s*[\w.-]*\s*|{after}\s*)?$")
    while True:
        ended, halved = ending.search(source.text), None if source.is_whole else unclear.search(source.text)
        stop = len(source.text) if halved is None else halved.start()
        if ended is not None and (halved is None or ended.start() < stop):
            yield escaped(source.take(ended.start()))
            source.take(len(keys.quote))
            yield '"'
            return True
        yield escaped(source.take(stop))
        if source.is_whole:
            return False
        yield None


def _raw(source: Source, keys: Keys, key: str, schema: Any, root: Mapping[str, Any], *, is_text: bool | None) -> Pieces[bool]:
    """A value without quotes, up to the mark after it. Returns whether it ends."""
    allowed = types(schema, root)
    is_text = allowed == {"string"} if is_text is None else is_text
    end = (keys.after_text if is_text else keys.after_value).replace(KEY, key)
    if keys.item and not is_text:
        yield from _mark(source, end.strip())
        yield from _mark(source, first := keys.before_key + keys.item + keys.before_text)
        if source.text.startswith(keys.before_key) and not source.text.startswith(end.strip()):
            is_array = source.text.startswith(first) and allowed != {"object"}
            return (yield from arguments(source, keys, schema, end.strip(), root, is_array=is_array))
    yield from _mark(source, keys.wrap[0])
    if keys.wrap[0] and source.text.startswith(keys.wrap[0]):
        source.take(len(keys.wrap[0]))
        is_text, end = True, keys.wrap[1] + end
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
            is_empty = bool(keys.item) and not held.strip() and not is_text
            empty = "[]" if "array" in allowed else "{}" if "object" in allowed else '""'
            yield '"' if is_text else empty if is_empty else typed(held, schema, root)
            return True
        if source.is_whole:
            return False
        yield None


def _inner(schema: Any, root: Mapping[str, Any], key: str, *, is_array: bool) -> Any:
    """The schema of an argument, or of an item."""
    found = resolved(schema, root) if isinstance(schema, Mapping) else {}
    if is_array:
        return found.get("items")
    properties = found.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return found.get("additionalProperties")
