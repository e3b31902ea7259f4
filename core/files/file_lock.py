"""Locks of open files between processes, by flock(2). The system releases one when its process ends, in any way."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import BinaryIO

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
