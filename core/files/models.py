"""From a user's text for a model to a file, and to what is in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from augury.errors import ModelFileError
from augury.files.atomic_file import sweep
from augury.files.cache import cache_folder
from augury.files.gguf import ModelFile
from augury.interfaces import Progress, Source
from augury.options import nearest
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.files.override import Scalar, Untyped

_sweep_once = functools.cache(sweep)  # parts of files that a killed start left need no second look in a process


def resolve(reference: str | Path, registry: Registry, progress: Progress) -> Path:
    """The file that `reference` means: a path, a short name or `source:...`; downloaded where needed.

    Raises:
        ModelFileError: No source knows it, or it could not be fetched.
    """
    text = str(reference)
    _sweep_once(cache_folder())
    return source_of(text, registry).fetch(text, cache_folder("models"), progress)


def open_model(
    reference: str | Path, registry: Registry, progress: Progress, override_kv: Mapping[str, Scalar | Untyped] | None = None
) -> ModelFile:
    """What is in the file that `reference` means, or in a folder of a format that a plugin reads.

    Raises:
        ModelFileError: No source knows it, or it could not be fetched or read.
        UnsupportedError: Something in it is not understood.
        OptionError: A value of `override_kv` does not fit the one that it replaces.
    """
    path = resolve(reference, registry, progress)
    if path.is_dir() and (found := next((each for each in registry.formats.values() if each.handles(path)), None)):
        return found.open(path).overridden(override_kv)
    return ModelFile.open(path, override_kv)


def source_of(reference: str, registry: Registry) -> type[Source]:
    """The source that knows a reference.

    Raises:
        ModelFileError: None does; the message suggests short names.
    """
    found = next((source for source in registry.sources.values() if source.handles(reference)), None)
    if found is not None:
        return found
    names = [name for source in registry.sources.values() for name in source.names()]
    begun = [name for name in names if name.startswith(reference.lower())] if reference else []
    meant = f"; names that begin so: {', '.join(begun)}" if begun else nearest(reference, names)
    raise ModelFileError(f"{reference!r} is neither a file, nor OWNER/REPOSITORY of the Hub, nor a known model{meant}")
