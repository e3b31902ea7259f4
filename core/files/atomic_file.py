"""Files that appear whole or not at all, each written by one process at a time, however that process ends.

The content goes into a part beside the file, `.NAME.part`, which its writer has locked with flock(2). The system releases
the lock when the process ends, in any way: a part without a lock is left over; the next writer of the file takes it over, or
`sweep` removes it. So the part is temporary file and lock in one, and no process ids are compared.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import BinaryIO, Self

from augury.log import get_logger

_SUFFIX = ".part"
_ABANDONED_S = 24 * 3600.0  # the age at which a part is left over where the file system has no locks to tell by
_MODE = 0o666  # less the umask
_CACHE = "XDG_CACHE_HOME"  # the variable that names another


class AtomicFile:
    """The writer of `path`, in a `with` statement; `publish` gives the file its name, otherwise nothing of it stays.

    A second process that wants to write the same file waits for the first, and says so; it should look then whether the file is
    there. On file systems without locks nobody waits, and each writes a part of its own.

    Attributes:
        path: The file to be.
        file: The file to write to, from the start of the `with` block, open for reading, too.
        part: Its name until it is published, for a library that opens files itself.

    An OSError that leaves the block names `path`, where it names no file.
    """

    file: BinaryIO

    def __init__(self, path: Path, *, waits: bool = True) -> None:
        """Do nothing yet. While another process is writing the file, one that `waits` waits, others raise BlockingIOError."""
        self.path = path
        self._waits = waits
        self._has_waited = False
        self.part = _part_of(path)

    def __enter__(self) -> Self:
        """Raises OSError where there can be no such file."""
        try:
            while not self._claim():
                pass
        except OSError as error:
            error.filename = str(self.path)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self.path)
        if _is_at(self.file, self.part):
            _remove(self.part)
        with suppress(OSError):
            unlock(self.file)
        with suppress(OSError):  # of buffered bytes of a file that is not wanted
            self.file.close()

    def scratch(self) -> Path:
        """A new folder beside the file for other temporary files; it is removed with the part."""
        folder = _scratch_of(self.part)
        folder.mkdir()
        return folder

    def publish(self, *, is_durable: bool = False) -> None:
        """Give the file its name, in place of one that was there.

        If it `is_durable`, it survives a crash of the machine; files with a checksum need not.
        """
        self.file.flush()
        if is_durable:
            os.fsync(self.file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(self.path, self.part)
        shutil.rmtree(_scratch_of(self.part), ignore_errors=True)
        self.part.replace(self.path)

    def _claim(self) -> bool:
        """Open and lock the part; False if that was renamed or removed meanwhile, so that it is another file's or nobody's."""
        self.file = _opened(self.part, os.O_CREAT)
        try:
            is_ours = locked(self.file)
            if is_ours is None:
                self.file.close()
                _remove(self.part)
                self.part = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}{_SUFFIX}")
                self.file = _opened(self.part, os.O_CREAT | os.O_EXCL)
                return True
            if not is_ours:
                self._wait()
            if _is_at(self.file, self.part):
                self.file.truncate(0)
                shutil.rmtree(_scratch_of(self.part), ignore_errors=True)
                return True
        except BaseException:
            self.file.close()
            raise
        self.file.close()
        return False

    def _wait(self) -> None:
        if not self._waits:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing this file")
        if not self._has_waited:
            log = get_logger("augury.files.atomic_file")
            log.warning("waiting for another process that makes this file", path=str(self.path))
        self._has_waited = True
        locked(self.file, waits=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file; if that fails, by an OSError that names it, the old file stays, and no part of the new one.

    A pipe or device is written as it is; a link stays one.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        with AtomicFile(path.resolve()) as out:
            out.file.write(data)
            out.publish(is_durable=True)
    except OSError as error:
        error.filename = str(path)
        raise


def is_being_written(path: Path) -> bool:
    """Whether an `AtomicFile` is writing this file, in this process or another, as far as anyone can see."""
    with suppress(OSError), _opened(_part_of(path)) as part:
        return locked(part) is False
    return False


def sweep(folder: Path) -> None:
    """Remove the parts below `folder` that ended processes left; parts that cannot be removed wait for the next sweep."""
    with suppress(OSError):
        for part in folder.rglob(f"*{_SUFFIX}"):
            with suppress(OSError), _opened(part) as file:
                is_free = locked(file)
                if is_free is None:
                    is_free = time.time() - part.stat().st_mtime > _ABANDONED_S
                if is_free and _is_at(file, part):
                    _remove(part)


def no_room(folder: Path, n_bytes: int | None, variable: str = _CACHE) -> str:
    """The message for a full disk: the bytes needed, if they are known, the bytes free, and the place."""
    there = next(path for path in (folder, *folder.parents) if path.exists())  # it could not be made, perhaps
    free = f"{shutil.disk_usage(there).free / 2**20:.0f} MiB are free"
    found = free if n_bytes is None else f"{n_bytes / 2**20:.0f} MiB are needed, {free}"
    return f"the disk has no room in {folder}: {found}; make room, or name another cache folder in {variable}"


def not_stored(folder: Path, error: OSError, n_bytes: int | None, variable: str = _CACHE) -> str:
    """The message for a cache folder, which a variable names, that cannot be written or has no room for these bytes."""
    if error.errno == errno.ENOSPC:
        return no_room(folder, n_bytes, variable)
    return f"cannot be stored in {folder}: {error.strerror or error}; name another cache folder in {variable}"


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}{_SUFFIX}")


def _opened(part: Path, flags: int = 0) -> BinaryIO:
    # another thing in place of a part, such as a link to a file of value, is not opened
    return os.fdopen(os.open(part, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | flags, _MODE), "r+b")


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        there, here = path.lstat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    return stat.S_ISREG(there.st_mode) and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _scratch_of(part: Path) -> Path:
    return part.with_suffix(".scratch")


def _remove(part: Path) -> None:
    """Remove a part, its folder first: a folder without a part would not be found again."""
    shutil.rmtree(_scratch_of(part), ignore_errors=True)
    part.unlink(missing_ok=True)


_fcntl: ModuleType | None
try:
    _fcntl = import_module("fcntl")
except ImportError:  # Windows
    _fcntl = None


def locked(file: BinaryIO | int, *, waits: bool = False) -> bool | None:
    """Lock an open file, or its descriptor, unless another process has, or when it has released it if this `waits`.

    None where there are no locks.
    """
    if _fcntl is None:
        return None
    try:
        _fcntl.flock(file, _fcntl.LOCK_EX | (0 if waits else _fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # of many kinds, by file system: ENOLCK, ENOTSUP, ENOSYS, EINVAL, EIO
        return None
    return True


def unlock(file: BinaryIO) -> None:
    """Release a file that may be locked: closing is not enough where a mapping of it keeps the lock. Raises OSError."""
    if _fcntl is not None:
        _fcntl.flock(file, _fcntl.LOCK_UN)
