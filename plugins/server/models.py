"""The models of a server: requests load them, and those that nobody asks for make room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from anyio import to_thread
from attrs import define, field
from fastapi import Depends
from starlette.requests import Request

from augury.cli import say
from augury.errors import AuguryError, CapacityError
from augury.log import get_logger
from augury.memory_limit import n_bytes_of_machine
from augury.plugins.server.config import path_of
from augury.plugins.server.errors import RequestError, as_request_error
from augury.plugins.server.generation import unless_left
from augury.plugins.server.server import Events, LoadingProgress, Server, ServerOptions, run_watched
from augury.registry import Registry

if TYPE_CHECKING:
    from augury.plugins.server.learner import Learner

_N_SHOWN = 100  # characters of a name
_ENDING = "the server ends"


@define(eq=False, kw_only=True, repr=False)
class Models:
    """Loads models for requests, and closes those that are idle: to make room, or after a time. Used on the event loop.

    Models are loaded one after the other, in the order in which they were asked for. One for which there is no room waits until
    enough of the others have no requests; that which has had none for longest is unloaded first.
    """

    servers: Sequence[Server] = field(kw_only=False)  # at least one; a request that names none is for the first
    n_most: int = 1  # so many of them are loaded at a time; 0: any number
    loads: bool = True  # requests load the models that they name
    registry: Registry | None = None  # knows the models that clients may have downloaded; None: they may change nothing here
    _is_lazy: bool = False  # the first is loaded when it is asked for, and not when the server starts
    _is_strict: bool = False  # unknown names are refused where there is one model, too
    _find: Callable[[], Sequence[Server]] | None = None  # looks which models there are now, for `reload`
    events: Events = field(factory=Events, init=False)  # what happens to the models
    url: str = field(default="", init=False)  # where the server listens
    failure: AuguryError | None = field(default=None, init=False)  # why the server ends: its only model cannot be loaded
    on_failure: Callable[[], object] = field(default=lambda: None, init=False)  # called then
    options: ServerOptions = field(init=False)  # those of the first model, as far as they are the server's
    _starting: Server | None = field(init=False)  # the only model, until it is loaded: whoever asks is told how far it is
    _removed: Sequence[Server] = field(default=(), init=False)  # of which some still answer
    _reloading: asyncio.Lock = field(factory=asyncio.Lock, init=False)
    _changing: asyncio.Lock = field(factory=asyncio.Lock, init=False)  # held while an engine is loaded or closed, in order
    _queued: set[Server] = field(factory=set, init=False)  # those for which that lock, or room, is waited for
    _is_freed: asyncio.Event = field(factory=asyncio.Event, init=False)
    _is_ending: bool = field(default=False, init=False)
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.options = self.servers[0].options
        self._starting = None if self._is_lazy or self.are_several else self.servers[0]
        for server in self.servers:
            server.idle_s = server.options.sleep_idle_s

    @property
    def are_several(self) -> bool:
        """Whether there is more than one model, or may be."""
        return len(self.servers) > 1 or self.registry is not None

    @property
    def names(self) -> list[str]:
        """All names of all models that are listed."""
        return [name for server in self.servers if not server.is_hidden for name in server.options.names]

    def check_started(self) -> None:
        """Raises RequestError while the only model is loaded for the first time."""
        if self._starting is not None and not self._starting.is_ready:
            _ = self._starting.engine

    def find(self, name: object, *, is_strict: bool = False) -> Server:
        """The model of a name; a server of one model answers to any.

        Raises:
            RequestError: There is no such model, or the only one is loaded for the first time.
        """
        self.check_started()
        if not isinstance(name, str):
            return self.servers[0]
        found = self.known(name)
        if found is None and (self._is_strict or self.are_several or is_strict):
            message = f"model {name[:_N_SHOWN]!r} not found; this server has {', '.join(self.names)}"
            raise RequestError(404, message, param="model", code="model_not_found")
        return found or self.servers[0]

    def known(self, name: str) -> Server | None:
        """The model of a name, or the file that a client has named in another way, if there is one."""
        wanted = {name, name.removesuffix(":latest")}  # as Ollama's clients call a model without a tag
        found = next((server for server in self.servers if wanted & {*server.options.names}), None)
        if found is None and self.registry is not None and (path := path_of(min(wanted), self.registry)) is not None:
            found = next((server for server in self.servers if path in server.files), None)
        return found

    async def reload(self) -> None:
        """Look again which models there are. Those that are as they were stay loaded, others end when they have answered.

        Raises:
            AuguryError: They are not what can be served; then all stays as it was.
        """
        if self._find is None:
            return
        async with self._reloading:
            self._take(await to_thread.run_sync(self._find))

    def _take(self, found: Sequence[Server]) -> None:
        before = {server.key: server for server in self.servers}
        for server in found:
            if (same := before.get(server.key)) is not None:
                same.options, same.is_hidden = server.options, server.is_hidden  # it may have other names
        self.servers = [before.get(server.key, server) for server in found]
        for server in before.values():
            if server not in self.servers:
                self._removed = [*(each for each in self._removed if each.is_ready), server]
                server.progress.is_stopped = True
                self.unload(server)
                self.events.tell(server.name, "model_remove")
        self.events.tell("*", "models_reload")

    def start(self) -> None:
        """Say what is served, and begin to load the first model."""
        names = ", ".join(server.name for server in self.servers)
        say(f"augury listens on {self.url} and {'serves' if self.are_several else 'loads'} {names}")
        if not self._is_lazy:
            self.load(self.servers[0])
        self._rest()

    def load(self, server: Server) -> None:
        """Begin to load a model that nobody waits for."""

        async def load() -> None:
            with self._held(server), suppress(RequestError):
                if not server.is_ready:
                    await self._loading(server)

        self._spawn(load())

    def unload(self, server: Server) -> None:
        """Close a model's engine as soon as it has no requests."""
        server.idle_s = 0.0
        if not server.n_requests:
            self._watch(server)

    @asynccontextmanager
    async def using(self, server: Server, http: Request) -> AsyncIterator[Server]:
        """Keep a model loaded for a request, and wait for it if it has to be loaded.

        Raises:
            RequestError: It cannot be loaded, is not to be, or the time is up.
        """
        loads = http.query_params.get("autoload", str(self.loads)).lower() in ("true", "1")
        if not loads and not server.is_ready and server.loading is None:
            message = f"{server.name} is not loaded, and no request loads it here; ask POST /models/load to"
            raise RequestError(400, message, param="model", code="model_not_loaded")
        with self._held(server):
            server.idle_s = server.options.sleep_idle_s
            if not server.is_ready:
                await self._wait_for(server, http)
            yield server

    async def end_requests(self) -> None:
        """Cancel running requests: each client is told that the server ends."""
        self._is_ending = True
        self._is_freed.set()
        for server in self._all:
            server.progress.is_stopped = True
        for server in self._all:
            if server.is_ready:
                await to_thread.run_sync(server.engine.close)

    async def close(self) -> None:
        """Stop loading, or close all engines, which cancels running requests."""
        for learner in self._learners:
            await learner.close()
        await self.end_requests()
        for server in self._all:
            if server.timer is not None:
                server.timer.cancel()
            if server.loading is not None:
                await asyncio.wait([server.loading])
            if server.is_ready:
                await self._close(server)

    @property
    def _learners(self) -> list[Learner]:
        return [server.learner for server in self._all if server.learner is not None]

    def _rest(self) -> None:
        """Let heads be trained while no model has requests."""
        if not any(server.n_requests for server in self._all):
            for learner in self._learners:
                learner.rest()

    @property
    def _all(self) -> Sequence[Server]:
        return (*self.servers, *self._removed)

    def _tell(self, server: Server) -> None:
        data: dict[str, Any] = {"status": server.status}
        if server.state == "loading":
            data["progress"] = server.progress.seen
        if server.status == "unloaded":
            data["exit_code"] = int(server.failure is not None)
        self.events.tell(server.name, "model_status", **data)

    @contextmanager
    def _held(self, server: Server) -> Iterator[None]:
        """Count a request, and let the idle time begin when it was the last."""
        server.n_requests += 1
        for learner in self._learners:
            learner.pause()
        if server.timer is not None:
            server.timer.cancel()
        try:
            yield
        finally:
            server.n_requests -= 1
            if not server.n_requests:
                server.idle_since = asyncio.get_running_loop().time()
                self._is_freed.set()
                self._rest()
                self._watch(server)

    def _watch(self, server: Server) -> None:
        """Close an idle engine when its time is over."""
        if server.idle_s is not None and server.is_ready:
            close = partial(self._close_idle, server, server.idle_since)
            server.timer = asyncio.get_running_loop().call_later(server.idle_s, lambda: self._spawn(close()))

    async def _close_idle(self, server: Server, since: float) -> None:
        async with self._changing:
            if server.is_ready and not server.n_requests and server.idle_since == since:
                await self._close(server, is_sleeping=bool(server.idle_s))

    async def _wait_for(self, server: Server, http: Request) -> None:
        """Wait until a model is loaded; where its last client leaves before it has room, it is not."""
        loading = self._loading(server)
        try:
            await unless_left(self.options.timeout_s, http, asyncio.shield(loading))
        finally:
            if server.n_requests == 1 and server in self._queued:
                loading.cancel()
                server.loading = None

    def _loading(self, server: Server) -> asyncio.Task[None]:
        """The task that loads a model, for all who wait for it."""
        if server.loading is None:
            server.progress = LoadingProgress()
            server.loading = asyncio.create_task(self._open(server))
            server.loading.add_done_callback(partial(self._end_loading, server))
        return server.loading

    async def _open(self, server: Server) -> None:
        try:
            server.n_bytes = await run_watched(partial(server.measure, server.progress), partial(self._tell, server))
            self._queued.add(server)
            async with self._changing:
                await self._make_room(server)
                self._queued.discard(server)
                await run_watched(server.open, partial(self._tell, server))
            self._starting = None
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001 - of a plugin, perhaps; told in the log
            raise self._failed(server, error) from None
        finally:
            self._queued.discard(server)

    def _end_loading(self, server: Server, task: asyncio.Task[None]) -> None:
        if server.loading is task:
            server.loading = None
        if not task.cancelled():
            task.exception()  # it was told to those who waited, of whom there may be none
        self._tell(server)

    def _failed(self, server: Server, error: Exception) -> RequestError:
        """What clients are told where a model could not be loaded; without another model the server ends."""
        if self._is_ending:
            return RequestError(503, _ENDING)
        server.failure = error if isinstance(error, AuguryError) else AuguryError(f"{type(error).__name__}: {error}")
        if not self.are_several:
            self.failure = server.failure
            self.on_failure()
        else:
            say(f"{server.name} cannot be loaded: {server.failure}")
        if isinstance(error, CapacityError):
            return as_request_error(error)
        return RequestError(500, f"{server.name} cannot be loaded; the server's log says why")

    async def _make_room(self, server: Server) -> None:
        """Unload idle models until a further one may be loaded.

        Raises:
            RequestError: It would not fit alone, or the server ends.
        """
        n_there = n_bytes_of_machine()
        if server.n_bytes > n_there:
            sizes = f"{server.n_bytes / 2**30:.2f} GiB with its context, this machine has {n_there / 2**30:.2f} GiB"
            raise RequestError(503, f"{server.name} needs {sizes}; give it a smaller context (-c) or fewer slots (-np)")
        while not self._is_ending:
            held = [each for each in self._all if each.is_ready]
            if (not self.n_most or len(held) < self.n_most) and sum(each.n_bytes for each in (*held, server)) <= n_there:
                return
            self._is_freed.clear()
            if idle := [each for each in held if not each.n_requests]:
                await self._close(min(idle, key=lambda each: each.idle_since))
            else:
                await self._is_freed.wait()
        raise RequestError(503, _ENDING)

    async def _close(self, server: Server, *, is_sleeping: bool = False) -> None:
        """Close an engine to which nobody has a request. Where that fails, it is not used again either."""
        engine = server.take_engine(is_sleeping=is_sleeping)
        try:
            await to_thread.run_sync(engine.close)
        except Exception as error:  # noqa: BLE001 - of a plugin; the next request does without the plugin's leftovers
            message = f"{type(error).__name__}: {error}"
            get_logger("augury.server").error("the model could not be unloaded cleanly", error=message)
        self._tell(server)
        if not self._is_ending:
            say(f"{server.name} {'sleeps' if is_sleeping else 'is unloaded'}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._tasks.discard)


async def _models_of(request: Request) -> Models:
    request.app.state.models.check_started()
    return request.app.state.models


AllModels = Annotated[Models, Depends(_models_of)]
"""The models of the server, as soon as it has started."""
