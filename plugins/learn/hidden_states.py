"""The texts that are learnt from, in pieces, and the target's hidden states of them, as requests tell and files keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from attrs import define, field, frozen

from augury.files.cache import checksum
from augury.log import get_logger


@frozen(eq=False)
class Piece:
    """Tokens of a text from `start` on, which have hidden states, but for the last: an answer ends before that is computed."""

    text: np.ndarray  # (T,) int32, up to the piece's end
    start: int = 0

    @property
    def tokens(self) -> np.ndarray:
        """Its own tokens."""
        return self.text[self.start :]

    @property
    def name(self) -> str:
        """Of the file of its hidden states."""
        return hashlib.sha256(f"{self.start} ".encode() + self.text.tobytes()).hexdigest()[:32]


def cut(text: np.ndarray, n: int, start: int = 0) -> list[Piece]:
    """A text (T,) int32 from `start` on as pieces of n tokens at most."""
    return [Piece(text[: at + n], at) for at in range(start, len(text), n)]


STATES = ".hidden-states"
"""The folder of those that a server collects, beside its requests; a file's name is that of the text as a `Piece`."""
_N_CHECKSUM = 16  # bytes after an array, which numpy leaves alone
_MAX = float(np.finfo(np.float16).max)


@define(eq=False)
class HiddenStates:
    """Those of the tokens of one request's text that were computed, in the order of a head's columns, as float16."""

    columns: tuple[str, ...]  # their names, one after another in a row; some may be the same
    n_embd: int  # E; of several residual streams the mean is kept, and the largest are those of float16
    first: int = 0  # the position of the first token; those before were reused
    _tokens: list[np.ndarray] = field(factory=list, init=False)
    _rows: list[np.ndarray] = field(factory=list, init=False)
    _end: int = field(default=-1, init=False)

    @property
    def asked(self) -> dict[str, object]:
        """The parameters of a request that tells them."""
        return {"hidden_states": list(dict.fromkeys(self.columns)), "on_hidden_states": self.add}

    def add(self, start: int, tokens: np.ndarray, states: Mapping[str, np.ndarray]) -> None:
        """Take those of tokens (m,) int32 from `start` on, (m, F) by name: see `RequestParams.on_hidden_states`."""
        if start != self._end:  # the first ones, or a text that was begun again or cut
            n = start - self.first if self.first <= start < self._end else 0
            self.first = self.first if n else start
            self._tokens, self._rows = ([_joined(each)[:n]] if n else [] for each in (self._tokens, self._rows))
        rows = np.empty((len(tokens), len(self.columns), self.n_embd), np.float16)
        for i, name in enumerate(self.columns):
            values = states[name]
            if values.shape[1] > self.n_embd:
                values = values.reshape(len(tokens), -1, self.n_embd).mean(axis=1)
            np.clip(values, -_MAX, _MAX, out=rows[:, i], casting="unsafe")
        self._tokens.append(tokens)
        self._rows.append(rows.reshape(len(tokens), -1))
        self._end = start + len(tokens)

    def of(self, text: np.ndarray, start: int) -> np.ndarray | None:
        """The rows of a text (T,) int32 from `start` on, of all tokens but the last; None where they are not known."""
        known = slice(start - self.first, len(text) - 1 - self.first)
        is_known = known.start >= 0 and np.array_equal(_joined(self._tokens)[known], text[start:-1])
        return _joined(self._rows)[known] if is_known else None


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """All of an array's parts, which become one."""
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0] if parts else np.empty(0, np.int32)


def write_rows(file: BinaryIO, rows: np.ndarray) -> None:
    """Write rows to an empty file, with a checksum."""
    np.save(file, rows)
    n_bytes = file.tell()
    file.seek(0)
    found = checksum(file, n_bytes)
    file.seek(n_bytes)
    file.write(found)


def read_rows(path: Path, width: int) -> np.ndarray | None:
    """The rows (n, width) float16 of a file, mapped; None where there is none. One that is damaged is told of."""
    try:
        found = np.load(path, mmap_mode="r")
        if found.shape[1:] == (width,) and found.dtype == np.float16:
            with path.open("rb") as file:
                if checksum(file, path.stat().st_size - _N_CHECKSUM) == file.read():
                    return np.asarray(found)
            reason = "its checksum is another"
        else:
            reason = f"it holds {found.shape} {found.dtype}, expected (n, {width}) float16"
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - a damaged header raises anything
        reason = str(error)
    warn_of_damage(path, reason)
    return None


def warn_of_damage(path: Path, reason: str) -> None:
    """Tell of a damaged file, which is made anew."""
    get_logger("augury.learn").warning("damaged, and made anew", path=str(path), reason=reason)
