"""`PromptFiles`: the part of a prompt cache that outlives its process, in a folder that several processes may share.

Each file has the tokens of a block, the states of their positions, and perhaps that of the sequence. Its name says which block,
after which other, how many tokens, and what it costs to compute them again. It was changed when it was last used.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Self

import numpy as np
from attrs import define

from augury.errors import ModelFileError
from augury.files.atomic_file import AtomicFile, sweep
from augury.files.cache import cache_folder
from augury.log import get_logger
from augury.slot_states import LENGTH, split_parts

_MIB = 2**20
_N_PARTS = 3  # tokens, the states of their positions, and that of the sequence
_SUFFIX = ".states"
_SHARE = 0.1  # of the free space that files may take unless told otherwise
_N_LOOKS = 16  # while so much is written as may be: as much may be there too much, of each other process
_MOST_PENDING = 512 * _MIB  # bytes that wait to be written; beyond them a disk is too slow, and blocks are left out


@define(eq=False)
class KeptBlock:
    """The tokens of a part of a text, and their states: in memory, or in a file alone."""

    name: str
    parent: str  # the name of the block before; empty: there is none
    n: int  # tokens
    cost: int  # tokens that are computed again without it
    n_bytes: int
    used: float  # when it was last
    tokens: np.ndarray | None = None  # (n,) int32; None: to be read
    data: bytes | None = None  # what its file has; None: to be read

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.parent}-{self.n}-{self.cost}{_SUFFIX}"

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The block in a file, by its name. Raises ValueError: it is another file. Raises OSError: it is gone."""
        name, parent, n, cost = path.name.removesuffix(_SUFFIX).split("-")
        status = path.stat()
        return cls(name, parent, int(n), int(cost), status.st_size, status.st_mtime)

    def worth(self, now: float) -> float:
        """What it saves, by its size and by how long it was not used."""
        return self.cost / ((self.n_bytes + 1) * (max(now - self.used, 0.0) + 1.0))


def block_name(parent: str, tokens: bytes) -> str:
    """The name of a block of tokens, of int32, after another one: a digest of which nobody can make a second text."""
    return blake2b(parent.encode() + tokens, digest_size=16).hexdigest()


def prompt_files(identity: str, n_mib: int | None) -> PromptFiles | None:
    """The files of one model, none if they may take nothing, or if there can be none; arguments as of `PromptFiles`."""
    try:
        return PromptFiles(f"augury {version('augury')}, {identity}", n_mib) if n_mib != 0 else None
    except OSError as error:
        get_logger("augury.engine.prompt_files").warning("prompts are not kept on disk", reason=str(error))
        return None


class PromptFiles:
    """The files of one model's kept blocks. The thread that writes them is its own; everything else is for one other thread."""

    def __init__(self, identity: str, n_mib: int | None) -> None:
        """Begin with the files of this program and model. Those of all models may take `n_mib`, or a tenth of what is free."""
        self._root = cache_folder("prompts")
        self._folder = self._root / blake2b(identity.encode(), digest_size=16).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o700)  # texts can be read from them
        self._log = get_logger("augury.engine.prompt_files")
        sweep(self._folder)
        there = sum(block.n_bytes for block in blocks_of(self._root.rglob(f"*{_SUFFIX}")))
        free = shutil.disk_usage(self._folder).free + there
        self._n_most = int(free * _SHARE) if n_mib is None else n_mib * _MIB
        self._n_left = 0  # bytes that may be written before the next look at what all processes have written
        self._n_pending = 0
        self._is_failing = False
        self._listed_at = -1
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="augury-prompt-files", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until everything is written."""
        self._jobs.put(None)
        self._thread.join()

    def listing(self) -> dict[str, Path] | None:
        """The files that are there, by their blocks' names; None: the same as the last time."""
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at == self._listed_at:
                return None
            names = os.listdir(self._folder)  # noqa: PTH208 - there may be many thousands
        except OSError:  # somebody has removed it
            return {}
        self._listed_at = changed_at
        return {name.split("-", 1)[0]: self._folder / name for name in names if name.endswith(_SUFFIX)}

    def has(self, block: KeptBlock) -> bool:
        """Whether a block has a file."""
        return (self._folder / block.file_name).exists()

    def read(self, block: KeptBlock) -> list[bytes]:
        """The parts of a block's file. Raises ModelFileError: it is damaged, or another one, or cannot be read."""
        parts = split_parts(self._read(block))
        if len(parts) != _N_PARTS or block_name(block.parent, parts[0]) != block.name:
            raise ModelFileError(f"{self._folder / block.file_name}: is damaged, or no kept prompt of this name")
        return parts

    def read_tokens(self, block: KeptBlock) -> np.ndarray:
        """The tokens of a block's file (n,) int32; errors as in `read`."""
        tokens = self._read(block, LENGTH.size + 4 * block.n)[LENGTH.size :]
        if block_name(block.parent, tokens) != block.name:
            raise ModelFileError(f"{self._folder / block.file_name}: is damaged, or no kept prompt of this name")
        return np.frombuffer(tokens, np.int32)

    def _read(self, block: KeptBlock, n_bytes: int = -1) -> bytes:
        try:
            with (self._folder / block.file_name).open("rb") as file:
                return file.read(n_bytes)
        except OSError as error:
            raise ModelFileError(f"{self._folder / block.file_name}: {error.strerror}") from error

    # In the background

    def write(self, block: KeptBlock, data: bytes) -> None:
        """Write a block's file, unless it is there, or too much waits."""
        if not self._is_failing and self._n_pending + len(data) <= _MOST_PENDING:
            self._n_pending += len(data)
            self._jobs.put(partial(self._write, block, data))

    def touch(self, block: KeptBlock) -> None:
        """A block was used; its file may be gone."""
        self._jobs.put(partial(os.utime, self._folder / block.file_name, (block.used, block.used)))

    def remove(self, block: KeptBlock) -> None:
        """Remove a block's file, if it has one."""
        self._jobs.put((self._folder / block.file_name).unlink)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with suppress(OSError):  # of a file that another process has removed; writing tells of its own
                job()

    def _write(self, block: KeptBlock, data: bytes) -> None:
        path = self._folder / block.file_name
        self._n_pending -= len(data)
        if self._is_failing or path.exists() or len(data) > self._n_most:
            return
        if len(data) > self._n_left:
            self._make_room(len(data))
        try:
            with suppress(BlockingIOError), AtomicFile(path, waits=False) as out:
                out.file.write(data)
                out.publish()
                self._n_left -= len(data)
        except OSError as error:
            self._is_failing = True
            self._log.warning("prompts are no longer kept on disk", folder=str(self._folder), reason=error.strerror)

    def _make_room(self, n_bytes: int) -> None:
        """Remove the files that are worth least, of any model and process, where there are too many."""
        now, there = time(), {path: block for path in self._root.rglob(f"*{_SUFFIX}") for block in blocks_of([path])}
        n_there, step = sum(block.n_bytes for block in there.values()), max(n_bytes, self._n_most // _N_LOOKS)
        for path in sorted(there, key=lambda path: there[path].worth(now)):
            if n_there + step <= self._n_most:
                break
            path.unlink(missing_ok=True)
            n_there -= there[path].n_bytes
        self._n_left = min(step, self._n_most - n_there)


def blocks_of(paths: Iterable[Path]) -> Iterator[KeptBlock]:
    """The blocks in files, by their names; other files, and those that are removed meanwhile, are left out."""
    for path in paths:
        with suppress(ValueError, OSError):
            yield KeptBlock.of_file(path)
