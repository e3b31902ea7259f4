"""The data of a head's training, on disk: texts, the target's features of them, and how far the training has come.

All of it lies in a folder beside the head to be, `HEAD.gguf.learn`. Each file appears whole or not at all, so that a run that
ended, however it did, is taken up where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augury.errors import AuguryError, CapacityError
from augury.files.atomic_file import AtomicFile, write_atomically
from augury.plugins.learn.head import HeadSizes

_SETUP = "setup.json"
_MAX = float(np.finfo(np.float16).max)


class Recorded:
    """The folder of one training, which is made when something is to be kept.

    Attributes:
        folder: Which.
        sizes: The sizes of the head; they determine the recorded features.
    """

    def __init__(self, folder: Path, sizes: HeadSizes, setup: Mapping[str, Any]) -> None:
        """Take it up, where there is one.

        Args:
            folder: Beside the head.
            sizes: The sizes of the head.
            setup: All that the training depends on, as JSON.

        Raises:
            AuguryError: The folder holds another training.
        """
        self.folder, self.sizes, self._setup = folder, sizes, json.dumps(setup, sort_keys=True)
        stated = folder / _SETUP
        if folder.exists() and not (stated.exists() and stated.read_text(encoding="utf-8") == self._setup):
            raise AuguryError(
                f"{folder} holds the beginning of another training, with other texts or settings; "
                "go on with those, remove the folder, or name another file with -o"
            )

    def answers(self) -> list[np.ndarray]:
        """The texts that the model has written so far, (T,) int32 each."""
        path = self.folder / "answers.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []  # a last one without end was cut
        return [np.array(json.loads(line), np.int32) for line in lines]

    def add_answers(self, texts: Sequence[np.ndarray]) -> None:
        """Keep further ones."""
        written = "".join(f"{json.dumps(text.tolist())}\n" for text in [*self.answers(), *texts])
        write_atomically(self._place("answers.jsonl"), written)

    def has_features(self, number: int) -> bool:
        """Whether those of a text are there."""
        return self._features(number).exists()

    def add_features(self, number: int, features: Mapping[str, np.ndarray]) -> None:
        """Keep the target's features of a text, of several residual streams the mean."""
        n_embd = self.sizes.n_embd
        columns = [features[name] for name in (*self.sizes.features, "output")]
        means = [values.reshape(len(values), -1, n_embd).mean(axis=1) for values in columns]
        with AtomicFile(self._place(self._features(number).name)) as out:
            np.save(out.file, np.clip(np.hstack(means), -_MAX, _MAX).astype(np.float16))
            out.publish(is_durable=True)

    def window(self, number: int, start: int, n: int) -> np.ndarray:
        """Features (m, 4 E) float16 of up to n tokens of a text from `start` on, those of the output last."""
        values: np.ndarray = np.load(self._features(number), mmap_mode="r")[start : start + n]
        return values

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays that were saved last under a name."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return None
        with np.load(path) as saved:
            return {key: saved[key] for key in saved.files}

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Save arrays, in place of earlier ones."""
        with AtomicFile(self._place(f"{name}.npz")) as out:
            np.savez(out.file, allow_pickle=False, **arrays)
            out.publish(is_durable=True)

    def remove(self) -> None:
        """The head is written: let go of all of it."""
        shutil.rmtree(self.folder)

    def _features(self, number: int) -> Path:
        return self.folder / f"{number:06}.npy"

    def _place(self, name: str) -> Path:
        """Where to write a file; the first is the one that says which training this is."""
        if not self.folder.exists():
            self.folder.mkdir()
            write_atomically(self.folder / _SETUP, self._setup)
        return (self.folder / name).resolve()


def recorded_bytes(sizes: HeadSizes) -> int:
    """The bytes of each token on disk for a head."""
    return 2 * sizes.n_embd * (len(sizes.layers) + 1)


def check_disk(folder: Path, n_bytes: int) -> None:
    """See that a disk has room.

    Raises:
        CapacityError: It has not.
    """
    if (found := shutil.disk_usage(folder).free) < n_bytes:
        raise CapacityError(
            f"learning keeps up to {n_bytes >> 20} MiB beside the head, but {folder} has {found >> 20} MiB free; "
            "make room, lower --disk, or name another place with -o"
        )
