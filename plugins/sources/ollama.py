"""Models that Ollama has downloaded, read in place: `ollama:NAME` or `ollama:NAME:TAG`, as `ollama list` writes them.

Ollama keeps a manifest by registry, owner, name and tag, whose layers are files named by their checksums. Source: Ollama's
`types/model/name.go` and `server/manifest.go`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from augury.errors import ModelFileError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source, StoredModel
from augury.options import nearest

_PREFIX = "ollama:"
_REGISTRY, _OWNER, _TAG = "registry.ollama.ai", "library", "latest"  # of a name that lacks them
_PART = r"[\w][\w.-]*"
_NAME = re.compile(rf"(?:(?:(?P<registry>{_PART}(?::\d+)?)/)?(?P<owner>{_PART})/)?(?P<name>{_PART})(?::(?P<tag>{_PART}))?")
_LAYER = "application/vnd.ollama.image."
_FOLDERS = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/models")  # the last two of its service


class OllamaSource(Source):
    """Takes weights from Ollama's store, and changes nothing there."""

    name = "ollama"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_PREFIX)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - Ollama has a folder of its own
        match = _NAME.fullmatch(reference.removeprefix(_PREFIX))
        if match is None:
            return None
        registry, owner = match["registry"] or _REGISTRY, match["owner"] or _OWNER
        manifests = (root / "manifests" / registry / owner / match["name"] / (match["tag"] or _TAG) for root in _roots())
        manifest = next((path for path in manifests if path.is_file()), None)
        return None if manifest is None else _weights(manifest)

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - nothing is downloaded
        """The file of the weights.

        Raises:
            ModelFileError: Ollama has no such model, or its store is damaged.
            UnsupportedError: It is no GGUF file alone.
        """
        if (path := cls.find(reference, folder)) is not None:
            return path
        known = [model.reference for model in cls.stored(folder)]
        if not known:
            places = ", ".join(map(str, _roots()))
            raise ModelFileError(
                f"{reference}: Ollama has no models here; looked in {places}; OLLAMA_MODELS names another folder"
            )
        raise ModelFileError(f"{reference}: Ollama has no such model here{nearest(reference, known)}")

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:  # noqa: ARG003 - as in `find`
        for root in _roots():
            for manifest in sorted((root / "manifests").glob("*/*/*/*")):
                try:
                    path = _weights(manifest)
                except (ModelFileError, UnsupportedError):
                    continue
                yield StoredModel(_PREFIX + _short(*manifest.relative_to(root / "manifests").parts), (path,))


def _roots() -> list[Path]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    return [Path(each).expanduser() for each in _FOLDERS]


def _short(registry: str, owner: str, name: str, tag: str) -> str:
    """A name as Ollama shows it."""
    before = f"{registry}/{owner}/" if registry != _REGISTRY else f"{owner}/" if owner != _OWNER else ""
    return f"{before}{name}:{tag}"


def _weights(manifest: Path) -> Path:
    """The file of weights that a manifest names."""
    try:
        layers: Any = json.loads(manifest.read_bytes())["layers"]
        kinds = {layer["mediaType"].removeprefix(_LAYER): str(layer["digest"]) for layer in layers}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{manifest} is no manifest of Ollama's: {type(error).__name__}: {error}") from error
    if "adapter" in kinds:
        raise UnsupportedError(f"{manifest} names an adapter (LoRA), which augury cannot apply; take the model without it")
    if "model" not in kinds:
        raise UnsupportedError(f"{manifest} names no GGUF file, but {', '.join(sorted(kinds)) or 'nothing'}")
    path = manifest.parents[4] / "blobs" / kinds["model"].replace(":", "-")
    if not path.is_file():
        raise ModelFileError(f"{manifest} names {path.name}, which is not there; `ollama pull` the model again")
    return path


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `ollama`."""
    return [OllamaSource]
