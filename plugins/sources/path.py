"""Model files that are here already: a path stands for itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from augury.errors import ModelFileError
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source
from augury.options import similar


class PathSource(Source):
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
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - nothing is downloaded
        with suppress(RuntimeError, OSError):
            path = Path(reference).expanduser()
            return path if path.exists() else None
        return None

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:  # noqa: ARG003 - nothing is downloaded
        """The file itself.

        Raises:
            ModelFileError: It does not exist.
        """
        try:
            path = Path(reference).expanduser()
            exists = path.exists()
        except (RuntimeError, OSError) as error:  # ~name of an unknown user; longer than a path can be
            raise ModelFileError(f"{reference}: {error}") from error
        if not exists:
            close = similar(path.name, (each.name for each in path.parent.glob("*.gguf")))
            hint = "" if close is None else f"; did you mean {str(path.with_name(close))!r}?"
            raise ModelFileError(f"{reference}: there is no such file{hint}")
        return path


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `path`."""
    return [PathSource]
