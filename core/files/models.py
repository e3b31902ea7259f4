"""From a user's text for a model to a file, and to what is in it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from augury.errors import ModelFileError
from augury.files.atomic_file import sweep
from augury.files.cache import cache_folder, packed_copies
from augury.files.gguf import ModelFile
from augury.files.override import Scalar, Untyped
from augury.interfaces import Progress, Source, StoredModel
from augury.options import nearest
from augury.registry import Registry

_sweep_once = functools.cache(sweep)  # parts of files that a killed start left need no second look in a process


def resolve(reference: str | Path, registry: Registry, progress: Progress) -> Path:
    """The file that a path, a short name or `source:...` means, downloaded if need be. Raises ModelFileError: there is none."""
    text = str(reference)
    _sweep_once(cache_folder())
    return source_of(text, registry).fetch(text, cache_folder("models"), progress)


def open_model(
    reference: str | Path, registry: Registry, progress: Progress, override_kv: Mapping[str, Scalar | Untyped] | None = None
) -> ModelFile:
    """What is in the file that `reference` means, or in a folder of a format that a plugin reads.

    Raises ModelFileError: it could not be fetched or read. UnsupportedError: something in it is not understood. OptionError: a
    value of `override_kv` does not fit the one that it replaces.
    """
    path = resolve(reference, registry, progress)
    if path.is_dir() and (found := next((each for each in registry.formats.values() if each.handles(path)), None)):
        file = found.open(path).overridden(override_kv)
    else:
        file = ModelFile.open(path, override_kv)
    file.reference = str(reference)
    return file


def source_of(reference: str, registry: Registry) -> type[Source]:
    """The source that knows a reference. Raises ModelFileError: none does; the message suggests short names."""
    found = next((source for source in registry.sources.values() if source.handles(reference)), None)
    if found is not None:
        return found
    names = [name for source in registry.sources.values() for name in source.names()]
    begun = [name for name in names if name.startswith(reference.lower())] if reference else []
    meant = f"; names that begin so: {', '.join(begun)}" if begun else nearest(reference, names)
    raise ModelFileError(f"{reference!r} is neither a file, nor OWNER/REPOSITORY of the Hub, nor a known model{meant}")


def stored_models(registry: Registry) -> Iterator[tuple[str, type[Source], StoredModel]]:
    """The models on this machine, each with the source that has it and its name: a short one where there is such."""
    folder = cache_folder("models")
    short = {source.find(name, folder): name for source in registry.sources.values() for name in source.names()}
    for source in registry.sources.values():
        for model in source.stored(folder):
            yield short.get(model.files[0], model.reference), source, model


def removable(name: str, registry: Registry) -> tuple[type[Source], StoredModel]:
    """The stored model of a name, and its source. Raises ModelFileError: it is not here, or not augury's to remove."""
    path = source_of(name, registry).find(name, cache_folder("models"))
    if path is None:
        raise ModelFileError(f"{name} is not on this machine; `augury list` shows what is")
    found = next(((source, model) for _, source, model in stored_models(registry) if path in model.files), None)
    if found is None:
        raise ModelFileError(f"{name} is {path}, which augury has not downloaded; remove the file yourself")
    source, model = found
    if not model.is_removable:
        raise ModelFileError(f"{name} belongs to {source.name}, whose files augury only reads; remove it there")
    return found


def remove_model(source: type[Source], model: StoredModel) -> int:
    """Remove a removable model and the packed weights made of it; returns how many bytes they had."""
    packed = packed_copies(model.files[0])
    n_bytes = sum(path.stat().st_size for path in [*model.files, *packed] if path.is_file())
    source.remove(model, cache_folder("models"))
    for path in packed:
        path.unlink(missing_ok=True)
    return n_bytes
