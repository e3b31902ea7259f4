"""Metadata of a model family, checked: every number is in a range that makes sense before anything is computed from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np

from augury.errors import ModelFileError

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile

Number = TypeVar("Number", int, float)

MOST = 1 << 20  # of anything but positions: no model has wider layers, and arrays of this size are harmless


class Keys:
    """Reads the keys that begin with the architecture's name, such as `llama.block_count` as `block_count`."""

    def __init__(self, file: ModelFile, architecture: str | None = None) -> None:
        self.file = file
        self._architecture = file.architecture if architecture is None else architecture

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self.file.metadata

    def full(self, key: str) -> str:
        """The key as the file has it."""
        return f"{self._architecture}.{key}"

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`; required where there is no default."""
        value = self._get(key, int, default)
        if not least <= value <= most:
            self.fail(key, value, f"{least} to {most}")
        return value

    def n_mtp(self, most: int = MOST) -> int:
        """How many layers that predict further tokens are stated."""
        return self.count("nextn_predict_layers", 0, least=0, most=most)

    def counts(self, key: str, n: int, default: tuple[int, ...] | None = None, *, least: int = 1) -> tuple[int, ...]:
        """`n` counts of at least `least`, one per layer; files state a number for all of them or an array."""
        if not isinstance(self.file.metadata.get(self.full(key)), np.ndarray):
            return (self.count(key, least=least),) * n if default is None or key in self else default
        values = self.file.get(self.full(key), list[int])
        if len(values) != n or not all(least <= value <= MOST for value in values):
            self.fail(key, f"an array of {len(values)} numbers ({values[:8]})", f"{n} of {least} to {MOST}, one per layer")
        return tuple(values)

    def number(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e12) -> float:
        """A number from `least` to `most`; required where there is no default."""
        value = self._get(key, float, default)
        if not least <= value <= most:  # never true of NaN
            self.fail(key, value, f"a finite number of at least {least:g} and at most {most:g}")
        return value

    def numbers(self, key: str, n: int, most: int | None = None) -> tuple[float, ...]:
        """`n` numbers of at least 0, one per layer, or up to `most`; files state a number for all of them or an array."""
        if not isinstance(self.file.metadata.get(self.full(key)), np.ndarray):
            return (self.number(key),) * (most or n)
        values = self.file.get(self.full(key), list[float])
        if len(values) < n or not all(0.0 <= value < math.inf for value in values):
            self.fail(key, f"an array of {len(values)} numbers ({values[:8]})", f"{n} of at least 0, one per layer")
        return tuple(values[: most or n])

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; required where there is no default."""
        value = self._get(key, float, default)
        if not (math.isfinite(value) and value > 0.0):
            self.fail(key, value, "a finite number above 0")
        return value

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Whether something is so; required where there is no default."""
        name = self.full(key)
        return self.file.get(name, bool) if default is None else self.file.get(name, bool, default)

    def text(self, key: str, default: str) -> str:
        """A text."""
        return self.file.get(self.full(key), str, default)

    def fail(self, key: str, found: object, expected: str) -> NoReturn:
        """Say that a key's value makes no sense."""
        raise ModelFileError(f"{self.file.path}: metadata key {self.full(key)!r} is {found}, expected {expected}")

    def _get(self, key: str, kind: type[Number], default: Number | None) -> Number:
        name = self.full(key)
        return self.file.get(name, kind) if default is None else self.file.get(name, kind, default)
