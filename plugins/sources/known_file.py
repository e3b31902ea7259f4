"""`KnownFile`: what a file must be, wherever it comes from."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from augury.errors import ModelFileError


@frozen
class KnownFile:
    """The checksum and the size of a file."""

    sha256: str
    n_bytes: int

    def is_at(self, path: Path) -> bool:
        """Whether a file was fetched before: only checked files get their names, and the size shows truncated copies."""
        return path.is_file() and path.stat().st_size == self.n_bytes

    def check(self, place: str, sha256: str) -> None:
        """Raises ModelFileError where a place has another file."""
        if sha256 != self.sha256:
            raise ModelFileError(f"{place}: the file there has sha256 {sha256}, expected {self.sha256}")
