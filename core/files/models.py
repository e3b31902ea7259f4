"""From a user's text for a model to a file."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from augury.errors import ModelFileError
from augury.files.atomic_file import sweep
from augury.interfaces import Progress
from augury.options import nearest
from augury.registry import Registry

_OF_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?")  # a repository, as other programs write it

_sweep_once = functools.cache(sweep)  # parts of files that a killed start left need no second look in a process


def cache_folder() -> Path:
    """Where downloaded models are kept, in the user's cache."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("augury")) / "models"


def resolve(reference: str | Path, registry: Registry, progress: Progress) -> Path:
    """The file that `reference` means: a path, a short name or `source:...`; downloaded where needed.

    Raises:
        ModelFileError: No source knows it, or it could not be fetched.
    """
    text = str(reference)
    _sweep_once(cache_folder().parent)
    for source in registry.sources.values():
        if source.handles(text):
            return source.fetch(text, cache_folder(), progress)
    names = [name for source in registry.sources.values() for name in source.names()]
    meant = f"; did you mean 'hf:{text}'?" if _OF_HUB.fullmatch(text) else nearest(text, names)
    raise ModelFileError(f"{text!r} is neither a file, nor hf:OWNER/REPOSITORY, nor a known model{meant}")
