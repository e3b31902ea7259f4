"""Values as models write them, in JSON, in Python or in a template's own way: read as they stream, and told as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from attrs import define

from augury.plugins.constraints.schema import resolved

_WORD = re.compile(r"[^\s{}\[\](),:=\"'<]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null", "NaN": "null"}
_SPACES = re.compile(r"\s*")
_AFTER_STRING = re.compile(r"\s*(?:[,)\]}:=]|$)")
_HEX = re.compile(r"[0-9a-fA-F]*")
_CLOSING = {"{": "}", "[": "]"}
_QUOTED = re.compile(r"'([^'\\\n]*)'")
_DECODER = json.JSONDecoder(strict=False)
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
"""The types of JSON schemas."""

T = TypeVar("T")
Pieces = Generator[str | None, None, T]
"""Pieces of JSON; None where more text must arrive before the next."""


@define
class Source:
    """A text that arrives in pieces.

    Attributes:
        text: What of it is not read yet.
        is_whole: Whether no more will arrive.
        is_ended: Whether that is so because the model ended it: what must still close is left out then.
    """

    text: str = ""
    is_whole: bool = False
    is_ended: bool = False

    def take(self, n: int) -> str:
        """Read on."""
        taken, self.text = self.text[:n], self.text[n:]
        return taken

    def spaces(self) -> Generator[None, None, None]:
        """Read on to what is no white space."""
        while not (rest := self.text.lstrip()) and not self.is_whole:
            yield None
        self.text = rest

    def may_be(self, mark: str) -> Generator[None, None, None]:
        """Wait while the text may still become one that begins with a mark."""
        while not self.is_whole and self.text != mark and mark.startswith(self.text):
            yield None


def escaped(text: str) -> str:
    """A text within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value(source: Source, quote: str = "") -> Pieces[bool]:  # noqa: PLR0912 -- a branch for each thing that may come next
    """Read a value, told as JSON that is valid if the value is complete. Returns whether it is.

    White space stays. What JSON does not know is told as what it must mean: single quotes, Python's names, keys without quotes,
    line breaks in strings, commas too many or too few, the wrong bracket.

    Args:
        source: The text, from which the value is taken.
        quote: A further mark around strings, which knows no escapes.

    >>> from augury.plugins.server.tools.notation import Source, value
    >>> "".join(value(Source("{'a': [1, None,], b: 2}", is_whole=True)))
    '{"a": [1, null], "b": 2}'
    """
    quotes = tuple(filter(None, (quote, '"', "'")))
    stack: list[str] = []
    state, gap = "value", ""
    while True:
        gap += source.take(_SPACES.match(source.text).end())  # type: ignore[union-attr]
        text = source.text
        if not source.is_whole and (not text or (quote and quote != text and quote.startswith(text))):
            yield None
            continue
        if not text and not (source.is_ended and stack and state in ("key", "more")):
            return False
        if not text or text[0] in "}])" or (not stack and text[0] in ",:="):
            if not stack:
                return False
            source.take(1)
            is_missing = state in ("colon", "named")
            yield (":" if state == "colon" else "") + ("null" if is_missing else "") + gap.lstrip(",") + _CLOSING[stack.pop()]
            state, gap = "more", ""
        elif state == "more" or text[0] in ",:=":
            is_mark = text[0] in ",:="
            if is_mark:
                source.take(1)
            if state == "more":
                gap = "," + gap if text[0] == "," or not is_mark else gap
                state = "key" if stack[-1] == "{" else "value"
            elif state == "colon":
                yield ":" + gap
                state, gap = "named", ""
        elif state == "colon":
            yield ":"
            state = "named"
        elif text[0] in "{[":
            yield gap + ('"":' if state == "key" else "") + text[0]
            stack.append(source.take(1))
            state, gap = "key" if text[0] == "{" else "value", ""
        else:
            if stack:
                yield gap
            gap = ""
            if not (yield from _scalar(source, quotes, is_key=state == "key")):
                return False
            state = "colon" if state == "key" else "more"
        if not stack and state == "more":
            return True


def whole(source: Source) -> str | None:
    """A value that may still be incomplete, which is None."""
    found = []
    for piece in value(source):
        if piece is None:
            return None
        found.append(piece)
    return "".join(found) if source.text or source.is_whole else None


def decoded(text: str, at: int) -> tuple[str, int | None]:
    """A string in JSON, or a word in single quotes, and where it ends; None where it does not.

    >>> decoded('"ab": 1', 0), decoded("'ab': 1", 0), decoded('"a', 0)
    (('ab', 4), ('ab', 4), ('', None))
    """
    if (word := _QUOTED.match(text, at)) is not None:
        return word[1], word.end()
    try:
        found, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return "", None
    return str(found).encode(errors="replace").decode(), end  # half of a surrogate pair could not be sent


def as_object(written: str) -> str:
    """Arguments as a JSON object: of a text that holds JSON that, and nothing of what is none."""
    text, end = decoded(written, 0) if written.startswith('"') else (written, 0)
    source = Source(text.strip(), is_whole=True)
    if end is None or not source.text.startswith("{"):
        return "{}"
    return "".join(filter(None, value(source)))


def _scalar(source: Source, quotes: tuple[str, ...], *, is_key: bool) -> Pieces[bool]:
    for quote in quotes:
        if source.text.startswith(quote):
            source.take(len(quote))
            yield '"'
            return (yield from _string(source, quote))
    while (found := _WORD.match(source.text)) is None or found.end() == len(source.text):
        if source.is_whole:
            break
        if found is None:
            break
        yield None
    word = source.take(found.end() if found is not None else 1)
    is_cut = source.is_whole and not source.text
    if not is_key and (word in _WORDS or _NUMBER.fullmatch(word)):
        yield _WORDS.get(word, word)
    elif not is_cut:
        yield json.dumps(word, ensure_ascii=False)
    return True


def _string(source: Source, quote: str) -> Pieces[bool]:
    """The rest of a string, and its closing quote."""
    is_raw = len(quote) > 1
    special = re.compile(re.escape(quote) if is_raw else rf"{quote}|\\")
    while True:
        found = special.search(source.text)
        end = len(source.text) if found is None else found.start()
        if found is None and is_raw and not source.is_whole:
            end -= max((n for n in range(1, len(quote)) if source.text.endswith(quote[:n])), default=0)
        yield escaped(source.take(end))
        if found is None:
            if source.is_whole:
                return False
            yield None
        elif found[0] == "\\":
            if not (yield from _escape(source)):
                return False
        else:
            while quote == "'" and not source.is_whole and not source.text[1:].strip():
                yield None  # an apostrophe is followed by more of the string
            source.take(len(quote))
            if quote != "'" or _AFTER_STRING.match(source.text):
                yield '"'
                return True
            yield "'"


def _escape(source: Source) -> Pieces[bool]:
    while len(source.text) < 2 and not source.is_whole:
        yield None
    letter = source.text[1:2]
    n = {"u": 4, "x": 2}.get(letter, 0)
    while len(source.text) < 2 + n and not source.is_whole:
        yield None
    if not letter or (source.is_whole and len(source.text) < 2 + n):
        source.take(len(source.text))
        return False
    if n and len(_HEX.match(source.text, 2, 2 + n)[0]) == n:  # type: ignore[index]
        yield "\\u" + source.take(2 + n)[2:].rjust(4, "0")
    elif letter in '"\\/bfnrt':
        yield source.take(2)
    else:
        source.take(2)
        yield letter if letter == "'" else "\\n" if letter == "\n" else escaped("\\" + letter)
    return True


def types(schema: Any, root: Mapping[str, Any] | None = None, *, n_refs: int = 8) -> set[str]:
    """The types that a JSON schema allows; none if it does not tell.

    >>> sorted(types({"anyOf": [{"type": "integer"}, {"type": "null"}]}))
    ['integer', 'null']
    """
    if not isinstance(schema, Mapping):
        return set()
    schema = resolved(schema, schema if root is None else root, n_refs=n_refs)
    if isinstance(found := schema.get("type"), str | list):
        return {found} if isinstance(found, str) else {each for each in found if isinstance(each, str)}
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list):
            return {_NAMES[type(each)] for each in values if type(each) in _NAMES}
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(key), list) and n_refs:
            found = [types(each, root or schema, n_refs=n_refs - 1) for each in choices]
            known = [each for each in found if each]
            return set.intersection(*known) if key == "allOf" and known else set() if not all(found) else set().union(*found)
    return {"object"} if "properties" in schema else set()


_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object", list: "array"}


def _choices(schema: Any, root: Mapping[str, Any], n_refs: int = 8) -> list[Any]:
    """The values that a schema and its alternatives name."""
    found = resolved(schema, root) if isinstance(schema, Mapping) and n_refs else {}
    lists = {key: each for key in ("enum", "anyOf", "oneOf") if isinstance(each := found.get(key), list)}
    named = lists.pop("enum", []) + ([found["const"]] if "const" in found else [])
    return named + [value for each in lists.values() for one in each for value in _choices(one, root, n_refs - 1)]


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The JSON of a value that is written without quotes: what its schema says it is; without one JSON if it can be read so.

    >>> typed("75001", {"type": "string"}, {}), typed("75001", {}, {}), typed("True", {"type": "boolean"}, {})
    ('"75001"', '75001', 'true')
    >>> typed("1", {"enum": ["1", 2]}, {}), typed("2", {"enum": ["1", 2]}, {})
    ('"1"', '2')
    """
    allowed = types(schema, root)
    as_text = json.dumps(text, ensure_ascii=False)
    if allowed == {"string"}:
        return as_text
    source = Source(text.strip(), is_whole=True)
    written = "".join(filter(None, value(source))) if source.text else ""
    try:
        found = json.loads(written) if not source.text.strip() else None
    except (ValueError, RecursionError):
        return as_text
    if text in (choices := _choices(schema, root)) and found not in choices:
        return as_text
    kind = _NAMES[type(found)]
    is_exact = not source.text.strip() and (kind != "string" or text.strip()[:1] in "\"'")
    if not is_exact or (kind == "string" and (not allowed or "string" in allowed)):
        return as_text
    fits = not allowed or kind in allowed or (kind in ("integer", "number") and allowed & {"integer", "number"})
    return written if fits or "string" not in allowed else as_text
