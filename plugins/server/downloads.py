"""Models that clients download and remove, and names that they give, where `--manage-models` lets them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from anyio import to_thread
from attrs import define
from fastapi import Depends
from starlette.requests import Request

from augury.cli import say
from augury.errors import AuguryError, ModelFileError
from augury.files.atomic_file import write_atomically
from augury.files.models import removable, remove_model, resolve, source_of
from augury.plugins.server.config import alias_file, aliases
from augury.plugins.server.errors import RequestError
from augury.plugins.server.models import Models
from augury.plugins.server.server import LoadingProgress, run_watched
from augury.registry import Registry

_NAME = re.compile(r"\w[\w.-]{0,63}(/\w[\w.-]{0,63}){0,2}(:\w[\w.-]{0,63})?")
_N_ALIASES = 1024
_PATH = re.compile(r"(?<![\w/:.])~?/\w")


@define(eq=False)
class Download:
    """A model that is being downloaded, and how many clients wait for it; where the last one leaves, it ends."""

    name: str
    progress: LoadingProgress
    task: asyncio.Task[None]
    n_clients: int = 0

    def cancel(self) -> None:
        """End it; what has arrived stays, and the next download goes on there."""
        self.progress.is_stopped = True


class Downloads:
    """Fetches one model after the other, each once for all who ask for it. Used on the event loop.

    Attributes:
        running: What is being downloaded, by its name.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self.running: dict[str, Download] = {}
        self._fetching, self._changing = asyncio.Lock(), asyncio.Lock()

    async def begin(self, name: str) -> Download:
        """Begin to download a model, or join those who wait for it. Raises RequestError: clients may not have it downloaded."""
        name = name.removesuffix(":latest")
        registry = self._allowed()
        await to_thread.run_sync(_check_public, name, registry)
        if (found := self.running.get(name)) is None:
            progress = LoadingProgress()
            found = self.running[name] = Download(name, progress, asyncio.create_task(self._fetch(name, registry, progress)))
            found.task.add_done_callback(_look_at)
        return found

    def cancel(self, name: str) -> bool:
        """End a download; False where there is none."""
        if (found := self.running.get(name)) is not None:
            found.cancel()
        return found is not None

    def close(self) -> None:
        """End all downloads."""
        for each in self.running.values():
            each.cancel()

    async def remove(self, name: str) -> None:
        """Remove a model that clients may have downloaded, or a name that a client gave.

        Raises:
            RequestError: There is none, it has other names, or it is not a client's to remove.
        """
        registry, server = self._allowed(), self._models.find(name, is_strict=True)
        if (alias := name.removesuffix(":latest")) in server.options.names[1:] and alias in aliases():
            await self._change(lambda: _write({name: model for name, model in aliases().items() if name != alias}))
            return
        others = [each for each in self._models.servers if each.is_given and {*each.files} & {*server.files}]
        if others:
            raise RequestError(403, f"{name!r} was given when the server was started; the operator alone may remove it")
        if more := server.options.names[1:]:
            raise RequestError(400, f"{name!r} is also called {', '.join(more)}; delete these names first")

        def remove() -> None:
            try:
                n_bytes = remove_model(*removable(server.name, registry))
            except ModelFileError as error:
                raise RequestError(403, _shown(error, name)) from None
            say(f"{server.name} was removed for a client: {n_bytes / 1e9:.2f} GB")

        await self._change(remove)

    async def copy(self, source: str, name: str) -> None:
        """Give a model one more name. Raises RequestError: there is no such model, or the name cannot be given."""
        self._allowed()
        server, name = self._models.find(source, is_strict=True), name.removesuffix(":latest")
        if name in self._models.names and name not in aliases():
            raise RequestError(400, f"there is a model {name!r} already", param="destination")
        await self._change(partial(_add_alias, name, server.name))

    def _allowed(self) -> Registry:
        if self._models.registry is None:
            message = "clients of this server may not download, remove or rename models; start it with --manage-models"
            raise RequestError(403, message)
        return self._models.registry

    async def _change(self, work: Callable[[], None]) -> None:
        async with self._changing:
            await to_thread.run_sync(work)
            await self._models.reload()

    async def _fetch(self, name: str, registry: Registry, progress: LoadingProgress) -> None:
        events, is_done = self._models.events, False

        try:
            async with self._fetching:
                with progress:
                    tell = lambda: events.tell(name, "download_progress", **progress.by_task)
                    await run_watched(partial(resolve, name, registry, progress), tell)
                await self._models.reload()
            is_done = True
        except AuguryError as error:
            say(f"{name} was not downloaded: {error}")
            raise RequestError(500, _shown(error, name), param="model") from error
        finally:
            del self.running[name]
            events.tell(name, "download_finished" if is_done else "download_failed")


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # it was told to those who waited, of whom there may be none


def _check_public(name: str, registry: Registry) -> None:
    """Raises RequestError where a client may not have a model fetched: it is no model of the catalogue or the Hub."""
    try:
        source = source_of(name, registry)
    except ModelFileError as error:
        raise RequestError(404, _shown(error, name), param="model") from None
    if not source.is_public:
        message = f"{name[:100]!r} is not fetched for clients, expected a short name or OWNER/REPOSITORY:QUANT of the Hub"
        raise RequestError(403, message, param="model")


def _add_alias(name: str, model: str) -> None:
    """Give a model one more name, for good. Raises RequestError: it is no name, or there are too many."""
    if _NAME.fullmatch(name) is None:
        raise RequestError(400, f"{name[:100]!r} is no name, expected letters, digits, - _ . and one : before a tag")
    if len(known := aliases()) >= _N_ALIASES:
        raise RequestError(400, f"there are {_N_ALIASES} aliases already; delete some first")
    _write(known | {name: model})


def _write(found: Mapping[str, str]) -> None:
    """Keep the names that clients gave."""
    alias_file().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(alias_file(), json.dumps(found, indent=1))


def _shown(error: Exception, name: str) -> str:
    """What a client may read of an error: no path of this machine."""
    return f"{name} cannot be fetched; the server's log says why" if _PATH.search(str(error)) else str(error)


async def _downloads_of(request: Request) -> Downloads:
    return request.app.state.downloads


AllDownloads = Annotated[Downloads, Depends(_downloads_of)]
"""The downloads of the server."""
