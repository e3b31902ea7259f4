"""The user's cache: a folder for each kind of file that augury can fetch or make again, and their checksum."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import BinaryIO

_N_LABEL = 100  # letters of a model's name in that of a file that was made of it
_N_DIGEST = 32


def cache_folder(kind: str = "") -> Path:
    """The folder of one kind, such as `models` or `packed`, or the cache itself; whether it is there or not."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("augury")) / kind


def packed_name(model: Path, digest: str) -> str:
    """The name of a file of packed weights: it begins as the model's, so that a user can tell whose it is."""
    return f"{model.stem[:_N_LABEL]}-{digest[:_N_DIGEST]}.packed"


def packed_copies(model: Path) -> list[Path]:
    """The files of packed weights that were made of a model; those of another file of the same name count, too."""
    return sorted(cache_folder("packed").glob(f"{glob.escape(model.stem[:_N_LABEL])}-{'[0-9a-f]' * _N_DIGEST}.packed"))


_CHUNK = 1 << 20


def checksum(file: BinaryIO, n_bytes: int, prefix: bytes = b"") -> bytes:
    """16 bytes, xxh3 of `prefix` and of the next `n_bytes` of a file, or of as many as it has."""
    from xxhash import xxh3_128

    made = xxh3_128(prefix)
    while n_bytes > 0 and (chunk := file.read(min(n_bytes, _CHUNK))):
        made.update(chunk)
        n_bytes -= len(chunk)
    return made.digest()
