"""Models that LM Studio has downloaded, read in place: `lmstudio:OWNER/REPOSITORY` or `lmstudio:OWNER/REPOSITORY:QUANT`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from augury.errors import ModelFileError
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source, StoredModel
from augury.options import nearest
from augury.plugins.sources.repository import choose, models_of

_PREFIX = "lmstudio:"
_REFERENCE = re.compile(r"lmstudio:(?P<owner>[\w.-]*\w[\w.-]*)/(?P<repo>[\w.-]*\w[\w.-]*)(?::(?P<quant>[\w.-]+))?")
_POINTER = "~/.lmstudio-home-pointer"  # a file that names LM Studio's folder
_FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")  # the second of versions before 0.3.6


class LmStudioSource(Source):
    """Takes files from LM Studio's folder, and changes nothing there."""

    name = "lmstudio"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_PREFIX)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - LM Studio has a folder of its own
        match = _REFERENCE.fullmatch(reference)
        homes = [] if match is None else [root / match["owner"] / match["repo"] for root in _roots()]
        home = next((each for each in homes if each.is_dir()), None)
        return None if home is None or match is None else home / choose(_files(home), reference, match["quant"])[0]

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - nothing is downloaded
        """The file.

        Raises:
            ModelFileError: LM Studio has no such model, or several fit.
        """
        if (path := cls.find(reference, folder)) is not None:
            return path
        known = [model.reference for model in cls.stored(folder)]
        raise ModelFileError(f"{reference}: LM Studio has no such model in {_roots()[0]}{nearest(reference, known)}")

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:  # noqa: ARG003 - as in `find`
        for root in _roots():
            for home in sorted(path for path in root.glob("*/*") if path.is_dir()):
                for quant, files in models_of(_files(home)).items():
                    reference = f"{_PREFIX}{home.relative_to(root).as_posix()}:{quant}"
                    yield StoredModel(reference, tuple(home / name for name in files))


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
    """Offer `lmstudio`."""
    return [LmStudioSource]
