"""Packed weights in files of the user's cache: the next start maps them instead of packing again.

A file holds the matrices of a plan, and after them a checksum of each. Its name stands for all that its content depends on:
the model's files in the state they are in, the tensors, and the sources that pack them. It gets the name when it is complete;
the checksums detect the damage of a crash of the machine. One of several processes that start at once packs.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from xxhash import xxh3_64_intdigest

from augury.backends.numba_cpu import packing
from augury.backends.numba_cpu.kernels.jit import sources_key
from augury.backends.numba_cpu.packing import PackedLayout, aligned
from augury.errors import CapacityError, ModelFileError
from augury.files.atomic_file import AtomicFile, no_room
from augury.files.cache import cache_folder, packed_name
from augury.files.gguf import ModelFile, Tensor
from augury.interfaces import Progress
from augury.log import get_logger

_CHECKSUM = np.dtype(np.uint64)
WORTH_BYTES = 64 << 20  # smaller models are packed within a tenth of a second
_SUFFIX = ".packed"
_KEPT_FILES = 4  # those used last: each takes as much of the disk as its model
_SPARED = 2.0  # a dispensable file is made only if so many times its size is free
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # these say nothing about a file, which may be good
_LOGGER = "augury.backends.numba_cpu"


def packed_folder() -> Path:
    """Where packed weights lie, beside downloaded models."""
    return cache_folder("packed")


class PackedFile:
    """The file for one plan's packed matrices, whether it is there or not."""

    def __init__(
        self, file: ModelFile, tensors: Mapping[str, Tensor], layout: PackedLayout, *, is_needed: bool = False
    ) -> None:
        """Find its name; nothing is read.

        It `is_needed` where the matrices do not fit into memory. No start then reads them all to compare checksums: the file
        gets its name once it is on the disk, and not the name of one that might have been cut short by a crash.
        """
        self._is_needed = is_needed
        described = [(name, tensor.type.name, tensor.shape, layout.spans[name]) for name, tensor in tensors.items()]
        sources = sources_key() + Path(packing.__file__).read_bytes()
        owners = dict.fromkeys(file.owner(name)[0].identity for name in tensors)
        key = hashlib.sha256(repr((sum(owners, ()), described, is_needed)).encode() + sources)
        self.path = packed_folder() / packed_name(file.paths[0], key.hexdigest())
        self._layout = layout
        self._n_bytes = layout.n_bytes + _CHECKSUM.itemsize * len(layout.spans)
        self._mapped: tuple[os.stat_result, np.ndarray] | None = None  # the file as it was then, and all its bytes

    def matrices(self, pack: Callable[[np.ndarray], None], threads: int, progress: Progress) -> np.ndarray:
        """The matrices, (n_bytes,) uint8: mapped where they are kept, otherwise filled by `pack`, and kept if possible.

        An error of `pack` passes through, and nothing is left.

        Raises:
            CapacityError: They cannot be kept, and there is no memory for them otherwise.
        """
        folder = self.path.parent
        found = self._status()
        if (kept := self._open(threads, progress)) is not None:
            return kept
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(AtomicFile(self.path))
                if self._status() != found and (kept := self._open(threads, progress)) is not None:
                    return kept  # another process has packed them meanwhile
                memory = self._reserved(file)
            except OSError as error:
                stack.close()
                if self._is_needed:
                    raise CapacityError(
                        f"{self._n_bytes / 2**30:.1f} GiB of weights do not fit into memory, and cannot be kept in {folder}: "
                        f"{error}; make room there, or take a smaller model"
                    ) from error
                get_logger(_LOGGER).warning("packed weights are not kept", path=str(self.path), reason=str(error))
                memory = aligned(self._layout.n_bytes)
                pack(memory)
                return memory
            matrices, checksums = self._divided(memory)
            pack(matrices)
            checksums[:] = self._checksums(matrices, threads, Progress())
            with suppress(OSError):  # another process may prune, too
                file.publish(is_durable=self._is_needed)
                _prune(folder)
            self._mapped = os.fstat(file.file.fileno()), memory
        return matrices

    def check(self, threads: int) -> None:
        """Check that the mapped file is unchanged; a file that was only touched has its checksums computed again.

        Raises:
            ModelFileError: The file was cut short or written over.
        """
        try:
            status = self.path.stat()
        except OSError:  # a mapping stays when its file's name goes
            return
        if self._mapped is None or not os.path.samestat(status, self._mapped[0]):
            return
        before, memory = self._mapped
        changed = f"{self.path}: was changed while a model reads its weights from it"
        if status.st_size != self._n_bytes:
            raise ModelFileError(f"{changed}: it has {status.st_size} bytes, expected {self._n_bytes}; load the model again")
        if status.st_mtime_ns != before.st_mtime_ns:
            matrices, expected = self._divided(memory)
            if not np.array_equal(self._checksums(matrices, threads, Progress()), expected):
                raise ModelFileError(f"{changed}: its checksums are wrong; load the model again")
            self._mapped = status, memory

    def _status(self) -> tuple[int, int] | None:
        """Which file is there."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _open(self, threads: int, progress: Progress) -> np.ndarray | None:
        """Map the matrices, read-only; None where there is no such file, or a damaged one."""
        try:
            matrices = self._checked(threads, progress)
            with suppress(OSError):  # a folder that may only be read serves as well
                # the time of use, not that of change: others may have the file mapped, see `check`
                os.utime(self.path, ns=(time.time_ns(), self.path.stat().st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in _TRANSIENT:
                raise
            get_logger(_LOGGER).warning("packed weights are made anew", path=str(self.path), reason=str(error))
            return None
        return matrices

    def _checked(self, threads: int, progress: Progress) -> np.ndarray:
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size != self._n_bytes:
                raise OSError(f"it has {status.st_size} bytes, expected {self._n_bytes}")
            memory = _mapped(file, mmap.ACCESS_READ)
        matrices, expected = self._divided(memory)
        if not self._is_needed and not np.array_equal(self._checksums(matrices, threads, progress), expected):
            raise OSError("its checksums are wrong")
        self._mapped = status, memory
        return matrices

    def _reserved(self, file: AtomicFile) -> np.ndarray:
        """Make the file as large as needed and map it, with its room on the disk reserved: no write may find the disk full."""
        if not hasattr(os, "posix_fallocate"):
            raise OSError("this system cannot reserve room on the disk")
        n_bytes = self._n_bytes if self._is_needed else int(_SPARED * self._n_bytes)
        if shutil.disk_usage(self.path.parent).free < n_bytes:
            raise OSError(no_room(self.path.parent, n_bytes))
        os.posix_fallocate(file.file.fileno(), 0, self._n_bytes)
        return _mapped(file.file, mmap.ACCESS_WRITE)

    def _divided(self, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The matrices of a mapped file, and their checksums."""
        return memory[: self._layout.n_bytes], memory[self._layout.n_bytes :].view(_CHECKSUM)

    def _checksums(self, matrices: np.ndarray, threads: int, progress: Progress) -> list[int]:
        spans, done = self._layout.spans.values(), 0
        sums = []
        with ThreadPoolExecutor(threads) as pool:
            for span, checksum in zip(spans, pool.map(lambda span: xxh3_64_intdigest(matrices[span].data), spans), strict=True):
                sums.append(checksum)
                done += span.stop - span.start
                progress("load", done, len(matrices))
        return sums


def _mapped(file: BinaryIO, access: int) -> np.ndarray:
    """Map a file, (n_bytes,) uint8, in huge pages if the system can: filling them takes a fifth of the time."""
    mapped = mmap.mmap(file.fileno(), 0, access=access)
    with suppress(AttributeError, OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def _prune(folder: Path) -> None:
    """Remove the files that were not used for the longest time; others' parts are not counted."""
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_atime, reverse=True)
    for path in files[_KEPT_FILES:]:
        path.unlink(missing_ok=True)
