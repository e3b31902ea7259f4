"""The data of a head's training, on disk: texts, the target's features of them, and how far the training has come.

All of it lies in a folder beside the head to be, `HEAD.gguf.learn`. Each file appears whole or not at all, so that a run that
ended, however it did, is taken up where it was. One run at a time has the folder. What is damaged is made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from augury.errors import AuguryError, CapacityError
from augury.files.atomic_file import AtomicFile, write_atomically
from augury.plugins.learn.head import HeadSizes
from augury.plugins.learn.hidden_states import Piece, read_rows, warn_of_damage, write_rows

_SETUP = "setup.json"


class Recorded:
    """The folder of one training, which is made when something is to be kept, in a `with` statement: no other run may have it.

    `take_up` comes before all else.
    """

    sizes: HeadSizes  # of the head, which determine the recorded features

    def __init__(self, folder: Path) -> None:
        """Do nothing yet; the folder is beside the head."""
        self.folder = folder
        self._lock = AtomicFile(folder, waits=False)  # whose part is beside the folder; it is never published

    def __enter__(self) -> Self:
        """Keep other runs out. Raises AuguryError: one has the folder."""
        try:
            self._lock.__enter__()
        except BlockingIOError:
            message = "another augury learn is writing this head; wait until it has ended, or name another file with -o"
            raise AuguryError(f"{self.folder}: {message}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.__exit__(kind, error, trace)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is kept yet; a file that a killed run had begun is nothing."""
        return not self.folder.exists() or all(path.name.startswith(".") for path in self.folder.iterdir())

    def take_up(self, sizes: HeadSizes, setup: Mapping[str, Any]) -> None:
        """Take up what is in the folder, where there is one; `setup` is all that the training depends on.

        Raises:
            AuguryError: It holds another training, or is no folder.
        """
        self.sizes, self._setup = sizes, json.dumps(setup, sort_keys=True)
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise AuguryError(
                f"{self.folder} is no folder, but stands where one is needed; remove it, or name another file with -o"
            )
        if self.is_fresh:
            return
        path = self.folder / _SETUP
        try:
            found = path.read_text(encoding="utf-8")
            json.loads(found)
        except (OSError, ValueError) as error:
            message = f"{path} is damaged or missing ({error}); remove the folder, or name another file with -o"
            raise AuguryError(message) from error
        if found != self._setup:
            raise AuguryError(
                f"{self.folder} holds the beginning of another training, with other texts or settings; "
                "go on with those, remove the folder, or name another file with -o"
            )

    def answers(self) -> list[np.ndarray]:
        """The texts that the model has written so far, (T,) int32 each; those from a damaged one on are left out."""
        path = self.folder / "answers.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # a last one without end was cut
        texts: list[np.ndarray] = []
        for line in lines:
            try:
                texts.append(np.array(json.loads(line), np.int32).reshape(-1))
            except (ValueError, TypeError, OverflowError) as error:
                warn_of_damage(path, f"line {len(texts) + 1}: {error}")
                break
        return texts

    def add_answers(self, texts: Sequence[np.ndarray]) -> None:
        """Keep further ones."""
        written = "".join(f"{json.dumps(text.tolist())}\n" for text in [*self.answers(), *texts])
        write_atomically(self._place("answers.jsonl"), written)

    def has_rows(self, piece: Piece) -> bool:
        """Whether the hidden states of a piece are there, whole."""
        path, n = self._rows(piece), len(piece.tokens) - 1
        rows = read_rows(path, self.sizes.n_embd * len(self.sizes.columns))
        if rows is not None and len(rows) != n:
            warn_of_damage(path, f"it holds {len(rows)} rows, expected {n}")
        return rows is not None and len(rows) == n

    def add_rows(self, piece: Piece, rows: np.ndarray) -> None:
        """Keep the hidden states of a piece; see `HiddenStates`."""
        with AtomicFile(self._place(self._rows(piece).name)) as out:
            write_rows(out.file, rows)
            out.publish(is_durable=True)

    def copy_rows(self, piece: Piece, places: Mapping[str, tuple[Path, slice]]) -> bool:
        """Keep those of a piece that are in a file of others, by its name; returns whether they are."""
        if piece.name not in places:
            return False
        path, place = places[piece.name]
        if (rows := read_rows(path, self.sizes.n_embd * len(self.sizes.columns))) is not None:
            self.add_rows(piece, rows[place])
        return rows is not None

    def window(self, piece: Piece, start: int, n: int) -> np.ndarray:
        """Rows (m, 4 E) float16 of up to n tokens of a piece from `start` on, those of the output last."""
        values: np.ndarray = np.load(self._rows(piece), mmap_mode="r")[start : start + n]
        return values

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays that were saved last under a name; None where there are none, or damaged ones."""
        path = self.folder / f"{name}.npz"
        try:
            with path.open("rb") as file, np.load(file) as saved:
                return {key: saved[key] for key in saved.files}
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - as above
            warn_of_damage(path, str(error))
            return None

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Save arrays, in place of earlier ones."""
        with AtomicFile(self._place(f"{name}.npz")) as out:
            np.savez(out.file, allow_pickle=False, **arrays)
            out.publish(is_durable=True)

    def remove(self) -> None:
        """The head is written: let go of all of it, at once, as whatever ends the process may leave no half of it."""
        self.folder.rename(self._lock.scratch() / self.folder.name)

    def _rows(self, piece: Piece) -> Path:
        return self.folder / f"{piece.name}.npy"

    def _place(self, name: str) -> Path:
        """Where to write a file; the first is the one that says which training this is."""
        if self.is_fresh:
            self.folder.mkdir(exist_ok=True)
            write_atomically(self.folder / _SETUP, self._setup)
        return self.folder / name


def recorded_bytes(sizes: HeadSizes) -> int:
    """The bytes of each token on disk for a head."""
    return 2 * sizes.n_embd * len(sizes.columns)


def check_disk(folder: Path, n_bytes: int) -> None:
    """See that a disk has room. Raises CapacityError: it has not."""
    if (found := shutil.disk_usage(folder).free) < n_bytes:
        raise CapacityError(
            f"learning keeps up to {n_bytes >> 20} MiB beside the head, but {folder} has {found >> 20} MiB free; "
            "make room, lower --disk, or name another place with -o"
        )
