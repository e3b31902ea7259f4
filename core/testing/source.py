"""`check_source`: the conformance suite of sources of model files."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import CO_GENERATOR
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from warnings import catch_warnings

from attrs import define, frozen

from augury.errors import ModelFileError
from augury.interfaces import Progress, Source
from augury.registry import Registry
from augury.testing.contract import Checks, Contract, ContractError
from augury.testing.toys import registry_with_toys

HANDLES = Contract("`handles` says true or false of any text, and true of its names.", "augury.plugin.Source.handles")
FETCH = Contract("`fetch` returns the path of a file.", "augury.plugin.Source.fetch")
UNKNOWN = Contract("What cannot be fetched is a ModelFileError, and leaves nothing.", "augury.plugin.Source.fetch")
AGAIN = Contract("What is there already is not downloaded again.", "augury.plugin.Source.fetch")
WHOLE = Contract("A file has its name once it is whole, and nothing else is left.", "augury.plugin.Source.fetch")

_ANY_TEXTS = ("", " ", ":", "/", ".", "~", "a/b", "no-such-model", "\0", "x" * 5000, "é☃", "C:\\model.gguf", "http://[")
_N_INTERRUPTS = 25  # of each reference: spread over all calls that the source's own code makes
_N_AT_ONCE = 4
SOURCE_CHECKS = Checks()


@frozen(eq=False)
class SourceSubject:
    """A source, a reference that it can fetch, and one that it handles and cannot."""

    source: type[Source]
    reference: str
    unknown: str

    def fetch(self, folder: Path, progress: Progress | None = None) -> Path:
        """Fetch the reference, which must work."""
        with FETCH.kept(self.source.name):
            path = self.source.fetch(self.reference, folder, progress or Progress())
        if not isinstance(path, Path) or not path.is_file():
            raise self.broken(FETCH, f"{path!r} of {self.reference!r}")
        return path

    def broken(self, contract: Contract, seen: str) -> ContractError:
        """The error to raise."""
        return contract.broken(self.source.name, seen)


@SOURCE_CHECKS.add
def any_text(subject: SourceSubject) -> None:
    """Handles any text."""
    names = subject.source.names()
    for text in (*_ANY_TEXTS, *names, subject.reference, subject.unknown):
        with HANDLES.kept(subject.source.name, f", of {text!r}"):
            said: object = subject.source.handles(text)
        is_its_own = text in (*names, subject.reference, subject.unknown)
        if not isinstance(said, bool) or said < is_its_own:
            raise subject.broken(HANDLES, f"{said!r} of {text!r}")


@SOURCE_CHECKS.add
def unknown_reference(subject: SourceSubject) -> None:
    """Refuses what it cannot fetch, and leaves nothing."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "models"
        with suppress(ModelFileError), UNKNOWN.kept(subject.source.name, but=(ModelFileError,)):
            path = subject.source.fetch(subject.unknown, folder, Progress())
            raise subject.broken(UNKNOWN, f"{path} of {subject.unknown!r}")
        if left := _files(folder):
            raise subject.broken(UNKNOWN, f"{sorted(left)} are left")


@SOURCE_CHECKS.add
def fetched_again(subject: SourceSubject) -> None:
    """Fetches once.

    A second fetch gives the same file, which nobody touched, and reports no progress.
    """
    with TemporaryDirectory() as name:
        folder = Path(name) / "models"
        path = subject.fetch(folder)
        before, progress = path.stat(), _Interrupt(subject.source)
        again = subject.fetch(folder, progress)
        after = again.stat()
        if (again, after.st_ino, after.st_mtime_ns) != (path, before.st_ino, before.st_mtime_ns):
            raise subject.broken(AGAIN, f"{path} was written again, as {again}")
        if progress.task:
            raise subject.broken(AGAIN, f"{progress.task!r} at the second fetch")


@SOURCE_CHECKS.add
def interrupted(subject: SourceSubject) -> None:
    """Leaves nothing half done when it is interrupted.

    Ctrl-C, wherever it comes, leaves nothing or the whole file, and the next fetch works.
    """
    with TemporaryDirectory() as name:
        clean = Path(name) / "clean"
        counting = _Interrupt(subject.source)
        with counting:
            first = subject.fetch(clean, counting)
        whole = _files(clean)
        step = max(counting.n_calls // _N_INTERRUPTS, 1)
        for i in range(0, counting.n_calls, step):
            folder = Path(name) / f"interrupted-{i}"
            interrupt = _Interrupt(subject.source, i)
            with (
                catch_warnings(action="ignore", category=ResourceWarning),
                suppress(KeyboardInterrupt, ModelFileError),
                interrupt,
            ):
                subject.source.fetch(subject.reference, folder, interrupt)  # may leave a file open, as Ctrl-C does
            left = _files(folder)
            has_first = first.is_relative_to(clean) and first.relative_to(clean).as_posix() in left
            if left.items() - whole.items() or (has_first and left != whole):
                raise subject.broken(WHOLE, f"{sorted(left)} after Ctrl-C in a fetch")
            subject.fetch(folder)
            if _files(folder) != whole:
                raise subject.broken(WHOLE, f"{sorted(_files(folder))} after an interrupted fetch and another one")


@SOURCE_CHECKS.add
def fetched_at_once(subject: SourceSubject) -> None:
    """Gives several at once the same whole file."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "models"
        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            paths = set(pool.map(lambda _: subject.fetch(folder), range(_N_AT_ONCE)))
        left = _files(folder)
        (path, *others) = sorted(paths)
        subject.fetch(Path(name) / "alone")
        if others or left != _files(Path(name) / "alone"):
            raise subject.broken(WHOLE, f"{sorted(left)} after {_N_AT_ONCE} fetches of {path.name} at once")


@define(eq=False)
class _Interrupt(Progress):
    """Counts the calls that a source's own code makes, and reports of progress, and raises at the n-th of them."""

    source: type[Source]
    at: int | None = None  # None: never
    n_calls: int = 0
    task: str = ""  # the last that progress was reported of
    _profiler: Any = None  # that was in use before

    def __enter__(self) -> None:
        fetch: Any = self.source.fetch
        file = fetch.__func__.__code__.co_filename

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event in ("call", "c_call") and code.co_filename == file and not code.co_flags & CO_GENERATOR:
                self._count()  # not in generators: an exception in one that is being closed is lost

        self._profiler = sys.getprofile()
        sys.setprofile(profile)  # not settrace, which debuggers and coverage use

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._profiler)

    def __call__(self, task: str, done: int, total: int) -> None:  # noqa: ARG002 - see `Progress`
        self.task = task
        self._count()

    def _count(self) -> None:
        self.n_calls += 1
        if self.n_calls - 1 == self.at:
            raise KeyboardInterrupt


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_source(source: type[Source] | str, reference: str, unknown: str, *, registry: Registry | None = None) -> None:
    """Prove that a source keeps its contracts, in folders of its own.

    It is to fetch `reference`, some thirty times over: best a small file, from a server that the test stands in for. `unknown`
    is a reference that it handles and cannot fetch, such as a model that does not exist. For the rest see `augury.testing`.
    """
    found = (registry or registry_with_toys()).find("source", source)
    SOURCE_CHECKS.run(SourceSubject(found, reference, unknown))
