"""What drafters are compared on: prompts, each of a category, for a drafter is good at some texts and useless at others."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import Factory, frozen

from augury.cli.prompts import read_text
from augury.errors import AuguryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Item", "builtin_workload", "digest", "read_workload"]

_KINDS = {"prompt": "a text", "messages": 'a list of {"role": ..., "content": ...}', "tokens": "a list of token ids"}
_UNNAMED = "all"


@frozen
class Item:
    """A prompt of a workload.

    Attributes:
        id: Unlike that of any other item.
        category: What kind of text it asks for.
        arguments: Of `Engine.submit`: `prompt` or `messages`, and parameters of its own.
    """

    id: str
    category: str = _UNNAMED
    arguments: Mapping[str, Any] = Factory(dict)


def builtin_workload() -> list[Item]:
    """A small workload of six categories, for models with a chat template."""
    text = files("augury.plugins.bench").joinpath("workload.jsonl").read_text(encoding="utf-8")
    return _items(text, "the built-in workload")


def read_workload(path: str | Path) -> list[Item]:
    """The items of a file of JSON lines, such as `{"id": "a", "category": "writing", "prompt": "Once"}`.

    Each line has one of `prompt` (a text), `messages` and `tokens` (ids); what else it has are parameters of the request.
    Without an id a line has its number's, without a category it belongs to `all`.

    Raises:
        AuguryError: The file cannot be read, or a line is something else.
    """
    items = _items(read_text(path), str(path))
    if not items:
        raise AuguryError(f"{path}: there is no prompt in it")
    return items


def digest(items: Iterable[Item]) -> str:
    """A short name of a workload: figures are of the same prompts where it is the same."""
    told = json.dumps([[item.id, item.category, dict(item.arguments)] for item in items], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _items(text: str, where: str) -> list[Item]:
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    items = [_item(line, number, f"{where}:{number}") for number, line in numbered]
    seen: set[str] = set()
    for item, (number, _) in zip(items, numbered, strict=True):
        if item.id in seen:
            raise AuguryError(f"{where}:{number}: the id {item.id!r} occurs twice")
        seen.add(item.id)
    return items


def _item(line: str, number: int, where: str) -> Item:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AuguryError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict) or sum(kind in found for kind in _KINDS) != 1:
        raise AuguryError(f'{where}: expected an object with one of "prompt", "messages" and "tokens"')
    name, category = found.pop("id", str(number)), found.pop("category", _UNNAMED)
    for key, value in (("id", name), ("category", category)):
        if not isinstance(value, str) or not value:
            raise AuguryError(f"{where}: {key} is {value!r}, expected a text")
    (kind,) = _KINDS.keys() & found.keys()
    if not _is_of_kind(kind, found[kind]):
        raise AuguryError(f"{where}: {kind} is {found[kind]!r}, expected {_KINDS[kind]}")
    if kind == "tokens":
        found["prompt"] = found.pop("tokens")
    return Item(name, category, found)


def _is_of_kind(kind: str, value: Any) -> bool:
    if kind == "prompt":
        return isinstance(value, str)
    return isinstance(value, list) and all(type(each) is (int if kind == "tokens" else dict) for each in value)
