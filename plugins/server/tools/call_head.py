"""The head of a call: its name, and what else is known before its arguments are read."""

from __future__ import annotations

import re
from typing import NamedTuple

from augury.plugins.server.tools.format import ToolFormat
from augury.plugins.server.tools.notation import Source, as_object, decoded, whole

KEY = re.compile(r"""[\s,]*("(?:[^"\\]|\\.)*"|'\w+')\s*:\s*""")
CLOSING = re.compile(r"[\s,]*\}")
_ARGUMENTS = {"arguments", "parameters"}
_NAMES = {"name", "function"}
_BESIDE = {"id", "type"}  # of a call, too


class CallHead(NamedTuple):
    """The head of a call."""

    name: str | None  # None: the object is closed without one
    arguments: str | None  # that stand before the name, as a JSON object
    end: int  # where the rest begins


def is_arguments(form: ToolFormat, key: str) -> bool:
    """Whether arguments stand under a key of a call's object."""
    return key in _ARGUMENTS or key == form.arguments_key


def head_of(form: ToolFormat, source: Source) -> CallHead | None:
    """The head of the call that a text begins with; None: there is none, or it is not known yet."""
    if (found := form.head.match(source.text)) is None:
        return None
    if not form.is_object:
        return CallHead(found["name"], None, found.end())
    arguments, at, text = None, found.end() + 1, source.text
    while (key := KEY.match(text, at)) is not None:
        known = decoded(key[1], 0)[0]
        if known in {form.name_key, *_NAMES} and text.startswith(("'", '"'), key.end()):
            name, end = decoded(text, key.end())
            return None if end is None else CallHead(name, arguments, end)
        if known == "function" and text.startswith("{", key.end()):
            at = key.end() + 1
            continue
        rest = Source(text[key.end() :], source.is_whole)
        if (value := whole(rest)) is None:
            return None
        at = len(text) - len(rest.text)
        arguments = as_object(value) if is_arguments(form, known) else arguments
    return None if CLOSING.match(text, at) is None else CallHead(None, None, at)


def is_bare_call(form: ToolFormat, head: CallHead, source: Source) -> bool | None:
    """Whether an object without a mark is a call by what follows its name, and no answer; None: not known yet."""
    if not form.is_object or head.arguments is not None or source.is_whole or CLOSING.match(source.text, head.end):
        return True
    if (key := KEY.match(source.text, head.end)) is None:
        return None
    return (known := decoded(key[1], 0)[0]) in _BESIDE or is_arguments(form, known)
