"""What clients may change on this machine: which models it has, and what they are called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from augury.errors import AuguryError, ModelFileError
from augury.files.atomic_file import write_atomically
from augury.files.cache import cache_folder
from augury.files.models import resolve, source_of
from augury.interfaces import Progress
from augury.plugins.server.errors import RequestError
from augury.registry import Registry

_NAME = re.compile(r"\w[\w.-]{0,63}(/\w[\w.-]{0,63}){0,2}(:\w[\w.-]{0,63})?")
_N_ALIASES = 1024
_PATH = re.compile(r"(?<![\w/:.])~?/\w")


def aliases() -> dict[str, str]:
    """The names that clients gave, each with the model that it means."""
    try:
        found = json.loads(_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(model) for name, model in found.items()} if isinstance(found, dict) else {}


def add_alias(name: str, model: str) -> None:
    """Give a model one more name, for good.

    Raises:
        RequestError: It is no name, or there are too many.
    """
    if _NAME.fullmatch(name) is None:
        raise RequestError(400, f"{name[:100]!r} is no name, expected letters, digits, - _ . and one : before a tag")
    if len(known := aliases()) >= _N_ALIASES:
        raise RequestError(400, f"there are {_N_ALIASES} aliases already; delete some first")
    _write(known | {name: model})


def drop_alias(name: str) -> None:
    """Take a name back."""
    _write({each: model for each, model in aliases().items() if each != name})


def check_public(name: str, registry: Registry) -> None:
    """Raises RequestError where a client may not have a model fetched: it is no model of the catalogue or the Hub."""
    try:
        source = source_of(name, registry)
    except ModelFileError as error:
        raise RequestError(404, shown(error, name), param="model") from None
    if not source.is_public:
        message = f"{name[:100]!r} is not fetched for clients, expected a short name or OWNER/REPOSITORY:QUANT of the Hub"
        raise RequestError(403, message, param="model")


def path_of(name: str, registry: Registry) -> Path | None:
    """The file that is here of a model that a client may name."""
    try:
        source = source_of(name, registry)
        return source.find(name, cache_folder("models")) if source.is_public else None
    except ModelFileError:
        return None


def fetch(name: str, registry: Registry, progress: Progress) -> None:
    """Download a model, unless it is here.

    Raises:
        RequestError: It cannot be had.
    """
    try:
        resolve(name, registry, progress)
    except AuguryError as error:
        raise RequestError(500, shown(error, name), param="model") from error


def shown(error: Exception, name: str) -> str:
    """What a client may read of an error: no path of this machine."""
    return f"{name} cannot be fetched; the server's log says why" if _PATH.search(str(error)) else str(error)


def _file() -> Path:
    return cache_folder("models") / "aliases.json"


def _write(found: Mapping[str, str]) -> None:
    _file().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_file(), json.dumps(found, indent=1))
