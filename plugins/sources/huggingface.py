"""Models of the Hugging Face Hub: `hf:owner/repo:quant`, or `hf:owner/repo` where there is one choice or a Q4_K_M."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from augury.errors import ModelFileError
from augury.files.atomic_file import AtomicFile, not_stored
from augury.hookspecs import hookimpl
from augury.interfaces import Progress, Source

_PREFIX = "hf:"
_REFERENCE = re.compile(r"hf:(?P<repo>[\w.-]*\w[\w.-]*/[\w.-]*\w[\w.-]*)(?::(?P<quant>[\w.-]+))?")
_PART = re.compile(r"-\d{5}-of-(?P<count>\d{5})$")
_QUANT = re.compile(r"(?:^|[-._/])((?:I?Q\d|TQ\d|BF16|F16|F32|MXFP4|NVFP4)\w*)$", re.IGNORECASE)
_DEFAULT_QUANT = "Q4_K_M"
_ANSWER_S = 4.0  # for the list of files; a user who is offline learns it soon
T = TypeVar("T")


class HuggingFaceSource(Source):
    """Downloads through huggingface_hub, which retries, and knows the user's token and mirror."""

    name = "huggingface"

    @classmethod
    def handles(cls, reference: str) -> bool:
        return reference.startswith(_PREFIX)

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress) -> Path:
        """The file, or the first of a split model's, below `folder`; what is there already needs no network.

        Raises:
            ModelFileError: The reference is malformed, nothing or too much fits it, or the download failed.
        """
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise ModelFileError(
                f"{reference!r} names no model of the Hub, expected hf:OWNER/REPOSITORY or hf:OWNER/REPOSITORY:QUANT"
            )
        repo, quant = match["repo"], match["quant"]
        home = folder / "huggingface" / repo
        if quant and (local := _local(home, quant)):
            return local

        import huggingface_hub

        hub = huggingface_hub.HfApi()
        n_bytes = None
        try:
            files = _in_time(lambda: hub.model_info(repo, timeout=_ANSWER_S, files_metadata=True)).siblings or []
            names = choose([file.rfilename for file in files], reference, quant)
            n_bytes = sum(file.size or 0 for file in files if file.rfilename in names)
            first = home / names[0]
            first.parent.mkdir(parents=True, exist_ok=True)
            with AtomicFile(first) as lock:  # others wait here, and find the files
                if not all((home / name).is_file() for name in names):
                    scratch = lock.scratch()
                    for name in names:
                        hub.hf_hub_download(repo, name, local_dir=scratch, tqdm_class=_bar(f"download {name}", progress))
                    for name in reversed(names):  # the first, which stands for all, comes last
                        (scratch / name).replace(home / name)
        except ModelFileError:
            raise
        except Exception as error:  # the HTTP library that it uses, and with it the errors, differ between its versions
            if n_bytes is None and (local := _local(home, quant)):
                return local
            if isinstance(error, TimeoutError):
                raise ModelFileError(
                    f"{reference}: the Hub did not answer within {_ANSWER_S} s; check the connection"
                ) from error
            if isinstance(error, OSError) and (error.errno == errno.ENOSPC or error.filename is not None):  # not the network
                raise ModelFileError(f"{reference}: {not_stored(folder, error, n_bytes)}") from error
            said = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise ModelFileError(f"{reference}: cannot be downloaded: {said[0]}; check the name and the connection") from error
        return first


def _in_time(ask: Callable[[], T]) -> T:
    """The result of `ask` within `_ANSWER_S`: a lookup of names that fails has no time limit of its own."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(_ANSWER_S)


def choose(files: Iterable[str], reference: str, quant: str | None) -> list[str]:
    """Choose among the files of a repository those of one model, in the order of its parts.

    Raises:
        ModelFileError: No model fits, or more than one.

    >>> choose(["README.md", "m-Q4_0.gguf", "m-Q8_0.gguf"], "hf:o/m:q8_0", "q8_0")
    ['m-Q8_0.gguf']
    """
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        stem = name.removesuffix(".gguf")
        if stem != name and "mmproj" not in name.rsplit("/", 1)[-1]:  # an encoder of images is no language model
            models.setdefault(_PART.sub("", stem), []).append(name)
    if not models:
        raise ModelFileError(f"{reference}: the repository has no .gguf files; look for one whose name ends in -GGUF")
    found = [stem for stem in models if quant is None or _fits(stem, quant)]
    if quant is None and len(found) > 1:
        found = [stem for stem in found if _fits(stem, _DEFAULT_QUANT)] or found
    if len(found) != 1:
        offered = "; ".join(_quant_of(stem) for stem in models)
        problem = "nothing fits" if not found else f"{len(found)} models fit ({', '.join(found)})"
        raise ModelFileError(f"{reference}: {problem}, expected one; add :QUANT, of which there are: {offered}")
    parts = models[found[0]]
    if (split := _PART.search(parts[0].removesuffix(".gguf"))) and len(parts) != int(split["count"]):
        raise ModelFileError(f"{reference}: the repository has {len(parts)} of the {int(split['count'])} parts of {found[0]}")
    return parts


def _fits(stem: str, quant: str) -> bool:
    """Whether a file's name, without its end, says that it is of this quant; capitals do not matter."""
    return re.search(rf"(?:^|[-./]){re.escape(quant)}$", stem, re.IGNORECASE) is not None or (
        _quant_of(stem).lower() == quant.lower()
    )


def _quant_of(stem: str) -> str:
    return match[1] if (match := _QUANT.search(stem)) else stem


def _local(home: Path, quant: str | None) -> Path | None:
    """The first file of a model that was downloaded whole before, as `choose` finds it."""
    files = []
    for folder, inner, names in os.walk(home):
        inner[:] = [name for name in inner if not name.startswith(".")]  # where another process may be downloading it
        files += [(Path(folder) / name).relative_to(home).as_posix() for name in names if name.endswith(".gguf")]
    try:
        return home / choose(files, str(home), quant)[0]
    except ModelFileError:
        return None


def _bar(task: str, progress: Progress) -> type[Any]:
    """A progress bar without a screen, which huggingface_hub reports to."""
    import huggingface_hub.utils

    base: Any = huggingface_hub.utils.tqdm  # type: ignore[attr-defined]  # offered, but not listed

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"file": io.StringIO(), "disable": False}))

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            progress(task, int(self.n), int(self.total or 0))
            return shown

    return Bar


@hookimpl
def augury_sources() -> list[type[Source]]:
    """Offer `huggingface`."""
    return [HuggingFaceSource]
