"""Models of the Hugging Face Hub: `OWNER/REPOSITORY:QUANT`, or `OWNER/REPOSITORY` where there is one, a Q4_K_M or a head.

Files are kept in the Hub's own cache, which transformers, llama.cpp and vLLM share.
"""

from __future__ import annotations

import errno
import io
import logging
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from augury.errors import ModelFileError
from augury.files.atomic_file import not_stored
from augury.hookspecs import hookimpl
from augury.interfaces import FoundModel, Progress, Source, StoredModel
from augury.plugins.sources.repository import INDEX, MTP, SETTINGS, choose, head_of, models_of, mtp_of

if TYPE_CHECKING:
    from augury.plugins.sources.repository import KnownFile

_PREFIXES = ("hf:", "hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")
_REFERENCE = re.compile(r"(?P<repo>[\w.-]*\w[\w.-]*/[\w.-]*\w[\w.-]*)(?::(?P<quant>[\w.-]+(?:/[\w.-]+)*))?")
_DRAFTS = re.compile(r"draft|speculat|eagle|dflash|dspark", re.IGNORECASE)
_PRESETS = "preset.ini"
_ANSWER_S = 4.0  # for lists; a user who is offline learns it soon
_N_FOUND = 20
T = TypeVar("T")


class HuggingFaceSource(Source):
    """Downloads through huggingface_hub, which resumes and retries, and knows the user's token, mirror and cache."""

    name = "huggingface"
    is_public = True

    @classmethod
    def handles(cls, reference: str) -> bool:
        """Whether `reference` has a prefix, or is `OWNER/REPOSITORY` and no path."""
        if reference.startswith(_PREFIXES):
            return True
        if _REFERENCE.fullmatch(reference) is None or reference.startswith(".") or reference.endswith(".gguf"):
            return False
        return not Path(reference).exists()

    @classmethod
    def find(cls, reference: str, folder: Path) -> Path | None:  # noqa: ARG003 - the Hub's cache is elsewhere
        repo, quant = _parsed(reference)
        return _cached(repo, quant)

    @classmethod
    def fetch(cls, reference: str, folder: Path, progress: Progress, known: KnownFile | None = None) -> Path:  # noqa: ARG003
        """The file, or the first of a split model's, in the Hub's cache; a quant that is there already needs no network."""
        repo, quant = _parsed(reference)
        if quant and (local := _cached(repo, quant)):
            return local

        import huggingface_hub

        hub = huggingface_hub.HfApi()
        n_bytes = None
        try:
            info = _in_time(lambda: hub.model_info(repo, timeout=_ANSWER_S, files_metadata=True))
            files = {file.rfilename: file for file in info.siblings or []}

            def download(name: str) -> Path:
                return Path(hub.hf_hub_download(repo, name, tqdm_class=_bar(f"download {name}", progress)))

            of_gguf = models_of(files) and (quant or "").lower() != MTP
            names = (not of_gguf and _in_safetensors(files, quant, download)) or choose(files, reference, quant)
            if known is not None:
                known.check(reference, getattr(files[names[0]].lfs, "sha256", "that the Hub does not tell"))
            n_bytes = sum(files[name].size or 0 for name in names)
            paths = [download(name) for name in names]
        except ModelFileError:
            raise
        except Exception as error:  # the HTTP library that it uses, and with it the errors, differ between its versions
            if n_bytes is None and (local := _cached(repo, quant)):
                return local
            raise ModelFileError(f"{reference}: {_trouble(error, n_bytes)}") from error
        return paths[0].parent if paths[0].name == SETTINGS else paths[0]  # a head is its folder

    @classmethod
    def presets(cls, reference: str) -> Path | None:
        """The `preset.ini` of a repository. The Hub is asked only where the cache has no model of it."""
        repo, quant = _parsed(reference)
        if (snapshot := _snapshot(repo)) is not None and (path := snapshot / _PRESETS).is_file():
            return path
        if quant is not None or _cached(repo, None) is not None:
            return None

        import huggingface_hub

        with suppress(Exception):  # as in `fetch`, which tells what is wrong
            return Path(_in_time(lambda: huggingface_hub.hf_hub_download(repo, _PRESETS, etag_timeout=_ANSWER_S)))
        return None

    @classmethod
    def stored(cls, folder: Path) -> Iterator[StoredModel]:  # noqa: ARG003 - as in `find`
        from huggingface_hub import CacheNotFound, constants, scan_cache_dir

        try:
            repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
        except CacheNotFound:
            return
        for repo in sorted(repos, key=lambda each: each.repo_id):
            if repo.repo_type != "model" or (snapshot := _snapshot(repo.repo_id)) is None:
                continue
            for quant, names in models_of(_files(snapshot)).items():
                yield StoredModel(f"hf:{repo.repo_id}:{quant}", tuple(snapshot / name for name in names), is_removable=True)

    @classmethod
    def remove(cls, model: StoredModel, folder: Path) -> None:  # noqa: ARG003 - as in `find`
        from huggingface_hub import constants, scan_cache_dir

        repo, _ = _parsed(model.reference)
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
        revisions = [each for known in cache.repos if known.repo_id == repo for each in known.revisions]
        files = [file for each in revisions for file in each.files]
        unwanted = [file for file in files if file.file_path in model.files]
        if len(unwanted) == len(files):
            cache.delete_revisions(*(each.commit_hash for each in revisions)).execute()
        else:
            cache.delete_files(*unwanted).execute()

    @classmethod
    def search(cls, text: str) -> list[FoundModel]:
        """Repositories with GGUF files, those downloaded most first. Raises ModelFileError: the Hub cannot be asked."""
        if not text:
            return []

        import huggingface_hub

        hub = huggingface_hub.HfApi()
        try:
            found = _in_time(lambda: list(hub.list_models(search=text, filter="gguf", sort="downloads", limit=_N_FOUND)))
        except Exception as error:  # as in `fetch`
            raise ModelFileError(_trouble(error, None)) from error
        return [FoundModel(each.id, f"{each.downloads or 0:,} downloads") for each in found]


def _parsed(reference: str) -> tuple[str, str | None]:
    prefix = next((each for each in _PREFIXES if reference.startswith(each)), "")
    match = _REFERENCE.fullmatch(reference.removeprefix(prefix))
    if match is None:
        raise ModelFileError(
            f"{reference!r} names no model of the Hub, expected hf:OWNER/REPOSITORY or hf:OWNER/REPOSITORY:QUANT"
        )
    return match["repo"], match["quant"]


def _trouble(error: Exception, n_bytes: int | None) -> str:
    from huggingface_hub import constants

    if isinstance(error, TimeoutError):
        return f"the Hub did not answer within {_ANSWER_S} s; check the connection"
    if constants.HF_HUB_OFFLINE:
        return "the Hub is not asked, because HF_HUB_OFFLINE (--offline) is set, and the cache has no such model"
    if isinstance(error, OSError) and (error.errno == errno.ENOSPC or error.filename is not None):  # not the network
        return not_stored(Path(constants.HF_HUB_CACHE), error, n_bytes, "HF_HOME")
    said = str(error).strip().splitlines()[:1] or [type(error).__name__]
    return f"the Hub does not give it: {said[0]}; check the name and the connection"


def _in_time(ask: Callable[[], T]) -> T:
    """The result of `ask` within `_ANSWER_S`: a lookup of names that fails has no time limit of its own."""
    from huggingface_hub.utils import logging as hub_logging

    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            answer.set_exception(error)

    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)  # of each try it would write a line
    try:
        Thread(target=run, daemon=True).start()
        return answer.result(_ANSWER_S)
    finally:
        hub_logging.set_verbosity(level)


def _cached(repo: str, quant: str | None) -> Path | None:
    """The first file of a model that is whole in the Hub's cache, as `choose` finds it."""
    if (snapshot := _snapshot(repo)) is None:
        return None
    try:
        return snapshot / choose(_files(snapshot), repo, quant)[0]
    except ModelFileError:
        pass
    names = _in_safetensors([path.name for path in snapshot.iterdir() if path.is_file()], quant, snapshot.joinpath)
    return snapshot if names else None


def _in_safetensors(files: Collection[str], quant: str | None, file_of: Callable[[str], Path]) -> list[str]:
    """The files of a head, or for `MTP` of a model's layers for further tokens, its settings first; empty of other models."""
    if quant is not None and quant.lower() == MTP and {SETTINGS, INDEX} <= {*files}:
        return mtp_of(files, *(file_of(name).read_text("utf-8", "replace") for name in (SETTINGS, INDEX)))
    names = head_of(files) if quant is None or quant.lower() == MTP else []
    return names if names and (quant or _is_head(file_of(SETTINGS))) else []


def _is_head(settings: Path) -> bool:
    """Whether a repository's settings speak of drafting: other models are not downloaded as safetensors."""
    with suppress(OSError):
        return _DRAFTS.search(settings.read_text("utf-8", "replace")) is not None
    return False


def _snapshot(repo: str) -> Path | None:
    """The folder of a repository's files as they are on its main branch; of another revision where there is no such."""
    from huggingface_hub import constants

    home = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        main = home / "snapshots" / (home / "refs" / "main").read_text("utf-8").strip()
    except OSError:
        main = None
    others = sorted((home / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in ([main] if main is not None else []) + others if path.is_dir()), None)


def _files(snapshot: Path) -> list[str]:
    """The models of a snapshot; links whose file was removed do not count."""
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file()]


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
