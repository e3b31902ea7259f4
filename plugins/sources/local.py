"""Models that are on this machine already, read in place: by their path, or by the names that Ollama and LM Studio show."""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from augury.errors import ModelFileError, UnsupportedError
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source, StoredModel
from augury.options import nearest, similar
from augury.plugins.sources.pypi import PypiSource
from augury.plugins.sources.repository import choose, models_of


class LocalSource(Source):
    """Finds files, and changes nothing where they are."""

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - nothing is downloaded
        if (path := cls.find(reference, folder)) is None:
            raise ModelFileError(f"{reference}: {cls._missing(reference, [each.reference for each in cls.stored(folder)])}")
        return path

    @classmethod
    @abstractmethod
    def _missing(cls, reference: str, known: list[str]) -> str:
        """Why there is no such file, where these are known."""


class PathSource(LocalSource):
    """Takes existing files, and everything that can only be a path, so that the error for a mistyped one names it."""

    name = "path"

    @classmethod
    def handles(cls, reference: str) -> bool:
        """Whether `reference` is a file or a folder with a model's, begins as paths do, or ends in .gguf without a source."""
        if reference.startswith((".", "/", "~")):
            return True
        try:
            is_file = Path(reference).is_file() or (Path(reference) / "config.json").is_file()
        except OSError:  # longer than a name can be
            is_file = False
        return is_file or (reference.endswith(".gguf") and ":" not in reference)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:
        """The file at a path; a name without a folder may also be that of a file that was put into `folder`."""
        with suppress(RuntimeError, OSError):  # ~name of an unknown user; longer than a path can be
            path = Path(reference).expanduser()
            places = (path, folder / reference) if path.name == reference else (path,)
            return next((each for each in places if each.exists()), None)
        return None

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:
        """Those that were put into `folder` by hand."""
        fetched = {each.files[0] for each in PypiSource.stored(folder)}
        for names in models_of(path.name for path in sorted(folder.glob("*.gguf"))).values():
            if folder / names[0] not in fetched:
                yield StoredModel(names[0], tuple(folder / name for name in names), is_removable=True)

    @classmethod
    def remove(cls, model: StoredModel, folder: Path) -> None:  # noqa: ARG003 - the model has its paths
        for path in model.files:
            path.unlink()

    @classmethod
    def _missing(cls, reference: str, known: list[str]) -> str:  # noqa: ARG003 - as above
        with suppress(RuntimeError, OSError):
            path = Path(reference).expanduser()
            if (close := similar(path.name, (each.name for each in path.parent.glob("*.gguf")))) is not None:
                return f"there is no such file; did you mean {str(path.with_name(close))!r}?"
        return "there is no such file"


_OLLAMA = "ollama:"
_REGISTRY, _OWNER, _TAG = "registry.ollama.ai", "library", "latest"  # of a name that lacks them
_PART = r"[\w][\w.-]*"
_NAME = re.compile(rf"(?:(?:(?P<registry>{_PART}(?::\d+)?)/)?(?P<owner>{_PART})/)?(?P<name>{_PART})(?::(?P<tag>{_PART}))?")
_LAYER = "application/vnd.ollama.image."
_STORES = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/models")  # the last two of its service


class OllamaSource(LocalSource):
    """Models that Ollama has downloaded: `ollama:NAME` or `ollama:NAME:TAG`, as `ollama list` writes them.

    Ollama keeps a manifest by registry, owner, name and tag, whose layers are files named by their checksums.

    Source: Ollama's `types/model/name.go` and `server/manifest.go`.
    """

    name = "ollama"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_OLLAMA)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - Ollama has a folder of its own
        match = _NAME.fullmatch(reference.removeprefix(_OLLAMA))
        if match is None:
            return None
        registry, owner = match["registry"] or _REGISTRY, match["owner"] or _OWNER
        manifests = (root / "manifests" / registry / owner / match["name"] / (match["tag"] or _TAG) for root in _stores())
        manifest = next((path for path in manifests if path.is_file()), None)
        return None if manifest is None else _weights(manifest)

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:  # noqa: ARG003 - as in `find`
        for root in _stores():
            for manifest in sorted((root / "manifests").glob("*/*/*/*")):
                with suppress(ModelFileError, UnsupportedError):
                    path = _weights(manifest)
                    yield StoredModel(_OLLAMA + _short(*manifest.relative_to(root / "manifests").parts), (path,))

    @classmethod
    def _missing(cls, reference: str, known: list[str]) -> str:
        if known:
            return f"Ollama has no such model here{nearest(reference, known)}"
        places = ", ".join(map(str, _stores()))
        return f"Ollama has no models here; looked in {places}; OLLAMA_MODELS names another folder"


def _stores() -> list[Path]:
    named = os.environ.get("OLLAMA_MODELS")
    return [Path(named)] if named else [Path(each).expanduser() for each in _STORES]


def _short(registry: str, owner: str, name: str, tag: str) -> str:
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


_LM_STUDIO = "lmstudio:"
_REFERENCE = re.compile(r"lmstudio:(?P<owner>[\w.-]*\w[\w.-]*)/(?P<repo>[\w.-]*\w[\w.-]*)(?::(?P<quant>[\w.-]+))?")
_POINTER = "~/.lmstudio-home-pointer"  # a file that names LM Studio's folder
_FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")  # the second of versions before 0.3.6


class LmStudioSource(LocalSource):
    """Models that LM Studio has downloaded: `lmstudio:OWNER/REPOSITORY` or `lmstudio:OWNER/REPOSITORY:QUANT`."""

    name = "lmstudio"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_LM_STUDIO)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - LM Studio has a folder of its own
        match = _REFERENCE.fullmatch(reference)
        homes = [] if match is None else [root / match["owner"] / match["repo"] for root in _roots()]
        home = next((each for each in homes if each.is_dir()), None)
        return None if home is None or match is None else home / choose(_files(home), reference, match["quant"])[0]

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:  # noqa: ARG003 - as in `find`
        for root in _roots():
            for home in sorted(path for path in root.glob("*/*") if path.is_dir()):
                for quant, files in models_of(_files(home)).items():
                    reference = f"{_LM_STUDIO}{home.relative_to(root).as_posix()}:{quant}"
                    yield StoredModel(reference, tuple(home / name for name in files))

    @classmethod
    def _missing(cls, reference: str, known: list[str]) -> str:
        return f"LM Studio has no such model in {_roots()[0]}{nearest(reference, known)}"


def _roots() -> list[Path]:
    try:
        named = [Path(Path(_POINTER).expanduser().read_text("utf-8").strip()) / "models"]
    except (OSError, UnicodeDecodeError):
        named = []
    return list(dict.fromkeys([*named, *(Path(each).expanduser() for each in _FOLDERS)]))


def _files(home: Path) -> list[str]:
    return [path.relative_to(home).as_posix() for path in home.rglob("*.gguf")]


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `lmstudio`, `ollama` and `path`."""
    return [LmStudioSource, OllamaSource, PathSource]
