"""The user's cache: a folder for each kind of file that augury can fetch or make again."""

from __future__ import annotations

import glob
from pathlib import Path

_N_LABEL = 100  # letters of a model's name in that of a file that was made of it


def cache_folder(kind: str = "") -> Path:
    """The folder of one kind, such as `models` or `packed`, or the cache itself; whether it is there or not."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("augury")) / kind


def label_of(model: Path) -> str:
    """The beginning of the names of files that are made of a model's, so that a user can tell whose they are."""
    return f"{model.stem[:_N_LABEL]}-"


def packed_copies(model: Path) -> list[Path]:
    """The files of packed weights that were made of a model; those of another file of the same name count, too."""
    return sorted(cache_folder("packed").glob(f"{glob.escape(label_of(model))}[0-9a-f]*.packed"))
