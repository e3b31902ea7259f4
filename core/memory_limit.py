"""How much memory this process may have, and the error if that is too little."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator

from augury.errors import AuguryError, CapacityError

TYPE_CHECKING = False  # typing's own would be imported for this alone, at the very start of a command

# Messages of the loader of shared libraries and of Python when memory has run out, beside MemoryError and ENOMEM.
_SIGNS = ("failed to map segment", "cannot allocate memory", "can't start new thread")
_OF_PROMPTS = 4  # they have that part of the memory at most: models, their slots and others need the rest
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ADVICE = "ask for less context, fewer slots or threads, or raise the limit (ulimit -v, or the container's)"


def n_bytes_of_machine(process: str = "/proc/self") -> int:
    """How much memory this process can ever have: the machine's, or the limit of the narrowest of its control groups."""
    n_bytes = _n_bytes_installed()
    try:
        return min((n_bytes, *_limits(process)))
    except (OSError, ValueError):  # no control groups
        return n_bytes


def _n_bytes_installed() -> int:
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import ctypes  # on Windows

    n_kib = ctypes.c_ulonglong()
    ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(n_kib))  # type: ignore[attr-defined]
    return n_kib.value << 10


def size_text(n_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} bytes"


def n_bytes_for_prompts(n_mib: int, n_taken: int = 0) -> int:
    """What kept prompts may take of the machine's memory, if they are to take so many MiB at most; -1: as much as they may."""
    n_bytes = n_bytes_of_machine()
    most = min(n_bytes // _OF_PROMPTS, max(n_bytes - n_taken, 0))
    return most if n_mib < 0 else min(n_mib << 20, most)


def _limits(process: str) -> Iterator[int]:
    """The limits of the process' control groups of both versions, and of all groups above them that can be seen."""
    groups = {}
    for line in _read(f"{process}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = path
    for line in _read(f"{process}/mountinfo").splitlines():
        words, _, (kind, _, options, *_) = (part.split() for part in line.partition(" - "))
        if kind not in groups or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, mount = map(_unescaped, words[3:5])
        path = os.path.relpath(groups[kind], root)
        folder = mount if path.startswith("..") else os.path.normpath(os.path.join(mount, path))  # noqa: PTH118
        while len(folder) >= len(mount) and folder != "/":
            yield from _limits_of(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120 - pathlib would be imported for this alone


def _limits_of(folder: str) -> Iterator[int]:
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        if (limit := _read(f"{folder}/{name}").strip()).isdecimal():
            yield int(limit)
    for line in _read(f"{folder}/memory.stat").splitlines():  # version 1, of groups above the container's, too
        if line.startswith("hierarchical_memory_limit "):
            yield int(line.split()[1])


def _unescaped(word: str) -> str:
    r"""A path of mountinfo, in which a blank is \040."""
    return os.fsdecode(os.fsencode(word).decode("unicode_escape").encode("latin-1"))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def require_address_space(n_bytes: int, what: str) -> None:
    """Raise a CapacityError if the process may not map so many bytes more: many libraries end it if they get no memory."""
    if not hasattr(mmap, "PROT_READ"):  # on Windows, which has no such limit
        return
    try:  # not writable, so that it does not count towards the system's commit limit
        mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ).close()
    except OSError as error:
        raise CapacityError(f"{what} needs {n_bytes >> 20} MiB of address space, which is not there; {_ADVICE}") from error


def lack_of_memory(error: BaseException) -> CapacityError | None:
    """The error to raise in place of one that a lack of memory caused; None where something else did."""
    if isinstance(error, AuguryError):
        return None
    cause: BaseException | None = error
    seen: set[int] = set()  # an error may be its own cause
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        said = _said(cause)
        is_lack = isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        if is_lack or any(sign in said.lower() for sign in _SIGNS):
            lack = CapacityError(f"there is too little memory: {said or 'an allocation failed'}; {_ADVICE}")
            lack.__cause__ = error
            return lack
        cause = cause.__cause__ or cause.__context__
    return None


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a plugin's error may not be able to print itself
        return ""
