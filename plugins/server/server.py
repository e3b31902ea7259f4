"""A model that is served: its options, its engine while that is loaded, how far loading has come, and who is told of it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from anyio import to_thread
from attrs import Factory, define, frozen
from fastapi import Depends
from starlette.requests import Request

from augury.cli import ProgressDisplay, say
from augury.errors import AuguryError, OptionError
from augury.files.gguf import ModelFile
from augury.plugins.server.errors import RequestError
from augury.plugins.server.tools import ChatFormat

if TYPE_CHECKING:
    from augury import Engine
    from augury.plugins.server.collection import Collection
    from augury.plugins.server.learner import Learner
    from augury.plugins.server.metrics import Metrics

session = ContextVar("session", default="")
"""What a request says in `x-session-id`: requests of one session go to one replica."""
_PATIENCE_S = 30.0
_BODY_S = 60.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_N_WAITING = 1000  # events of a listener that does not read; it misses those after them
_EVERY_S = 0.2  # progress is told so often


@frozen
class FileFacts:
    """What a model's file tells."""

    n_bytes: int = 0
    digest: str = ""
    architecture: str = "unknown"
    n_parameters: int = 0
    quant: str = "unknown"  # the type of most of its bytes
    modified_at: datetime = _EPOCH
    metadata: Mapping[str, Any] = Factory(dict)  # for JSON: lists are left out, which have a value for each token

    @classmethod
    def of(cls, path: Path, override_kv: Mapping[str, Any] | None) -> FileFacts:
        """The facts of a file. Raises ModelFileError: it cannot be read."""
        with ModelFile.open(path, override_kv) as file:
            n_bytes = Counter[str]()
            for tensor in file.tensors.values():
                n_bytes[tensor.type.name] += tensor.n_bytes
            return cls(
                n_bytes=file.n_bytes,
                digest=file.digest,
                architecture=file.architecture,
                n_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
                quant=n_bytes.most_common(1)[0][0] if n_bytes else "unknown",
                modified_at=datetime.fromtimestamp(max(each.stat().st_mtime for each in file.paths), UTC),
                metadata={key: value for key, value in file.metadata.items() if _is_single(value)},
            )


def _is_single(value: object) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


@frozen
class VertexRoutes:
    """Where Vertex AI asks."""

    port: int
    predict: str
    health: str | None  # None: at `/health` alone

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> VertexRoutes | None:
        """Those that environment variables name; None where the process is no container of Vertex AI.

        Raises:
            OptionError: The port is none.
        """
        if variables.get("AIP_MODE") != "PREDICTION":
            return None
        port = variables.get("AIP_HTTP_PORT") or "8080"
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise OptionError(f"the variable AIP_HTTP_PORT is {port!r}, expected a port: 1 to 65535")
        predict, health = ((variables.get(f"AIP_{name}_ROUTE") or "").strip("/") for name in ("PREDICT", "HEALTH"))
        return cls(int(port), f"/{predict or 'predict'}", f"/{health}" if health else None)


@frozen
class ServerOptions:
    """The options of the command line."""

    names: Sequence[str] = ("augury",)  # of the model; answers have the first
    tags: Sequence[str] = ()  # words about the model, for lists of models
    api_keys: Sequence[str] = ()  # none: everyone is served
    cors_origins: Sequence[str] = ()
    timeout_s: float = 3600.0  # of a request
    sse_ping_interval: int = 30  # seconds of silence before a stream sends a keep-alive; -1: never
    shutdown_timeout_s: int = 30
    max_body_bytes: int = 16 << 20
    params: Mapping[str, Any] = Factory(dict)  # of `Engine.submit`, for requests that say nothing else
    chat_template_kwargs: Mapping[str, Any] = Factory(dict)  # the same for chat templates
    reasoning_format: Literal["none", "deepseek", "auto"] = "auto"  # for requests that say nothing else
    reasoning_budget: int = -1  # the same: tokens that reasoning may take; -1: any number
    pooling: str | None = None  # the same, of embeddings; None: as the model's file says
    is_verbose: bool = False  # OpenAI's answers tell how they were made, unless a request says otherwise
    shows_slots: bool = True
    takes_props: bool = False
    has_strict_fields: bool = False  # fields that mean nothing here are refused, too
    slot_save_path: Path | None = None  # the folder of saved slots, and the only one; None: there are none
    sleep_idle_s: float | None = None  # after which the engine is closed until somebody asks; None: never
    has_page: bool = True
    vertex: VertexRoutes | None = None  # where Vertex AI asks; None: nowhere
    ssl_key_file: Path | None = None
    ssl_cert_file: Path | None = None

    @property
    def patience_s(self) -> float:
        """Seconds that a client may take for the head of a request, and for each further part of its body."""
        return min(self.timeout_s, _PATIENCE_S)

    @property
    def body_s(self) -> float:
        """Seconds that a client may take for a whole body."""
        return min(self.timeout_s, _BODY_S)


class LoadingProgress(ProgressDisplay):
    """Shows progress as every command does, and keeps the last report for clients that ask the server meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.seen: dict[str, Any] = {"task": "starting", "done": 0, "total": 0}

    def __call__(self, task: str, done: int, total: int) -> None:
        """See `Progress`; loading ends here where the server has been told to end."""
        if self.is_stopped:
            raise AuguryError("loading was stopped")
        self.seen = {"task": task, "done": done, "total": total}
        super().__call__(task, done, total)

    @property
    def by_task(self) -> dict[str, Any]:
        """The last report of a download, in the form of llama.cpp's router."""
        return {self.seen["task"]: {"done": self.seen["done"], "total": self.seen["total"]}}


@define(eq=False)
class Server:
    """A model that is served. The app holds all of them as `app.state.models`; routes get theirs by `server: Serving`.

    What does not load or close the engine is changed on the event loop alone, by `Models`.
    """

    options: ServerOptions
    load: Callable[[LoadingProgress], Engine]
    measure: Callable[[LoadingProgress], int] = lambda _: 0  # bytes of memory that the engine will take; fetches the file
    progress: LoadingProgress = Factory(LoadingProgress)
    facts: Callable[[], FileFacts] = FileFacts  # of the model's file
    metrics: Metrics | None = None  # None: nobody counts
    collection: Collection | None = None  # None: no request is kept
    learner: Learner | None = None  # trains heads on those
    key: object = Factory(object)  # equal for models of one name, file and flags
    files: Sequence[Path] = ()  # that the model was found in
    is_given: bool = True  # by the operator; else it was found among those that are stored on this machine
    is_hidden: bool = False  # from lists
    failure: AuguryError | None = None  # why there is no engine
    loading: asyncio.Task[None] | None = None
    is_sleeping: bool = False  # the engine is closed, and still has its figures
    n_bytes: int = 0  # of memory, as measured
    n_requests: int = 0  # that have the engine, or wait for it
    idle_since: float = 0.0  # on the event loop's clock
    idle_s: float | None = None  # see `ServerOptions.sleep_idle_s`; a request may ask for another time
    timer: asyncio.TimerHandle | None = None  # of that time
    _engine: Engine | None = None
    _chat_format: ChatFormat | None = None

    @property
    def name(self) -> str:
        """The first of its names, which answers have."""
        return self.options.names[0]

    @property
    def state(self) -> Literal["unloaded", "loading", "loaded", "sleeping", "failed"]:
        """In a word."""
        if self.is_ready:
            return "loaded"
        if self.loading is not None:
            return "loading"
        if self._engine is not None:
            return "sleeping"
        return "unloaded" if self.failure is None else "failed"

    @property
    def status(self) -> str:
        """The same in llama.cpp's words."""
        return "unloaded" if self.state == "failed" else self.state

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self._engine is not None and not self.is_sleeping

    @property
    def is_here(self) -> bool:
        """Whether its file needs no download."""
        return bool(self.files) or self.has_figures

    @property
    def has_figures(self) -> bool:
        """Whether the engine is there, be it closed."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The engine. Raises RequestError: it is not loaded yet."""
        if self._engine is None:
            raise RequestError(503, "the model is being loaded", retry_after=1, more={"progress": self.progress.seen})
        return self._engine

    @property
    def chat_format(self) -> ChatFormat:
        """How the model's chats call tools and reason."""
        if self._chat_format is None or self._chat_format.template is not self.engine.chat_template:  # of an engine before
            self._chat_format = ChatFormat(self.engine.chat_template, self.engine.tokenizer)
        return self._chat_format

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of requests that say nothing else: a head that has learnt nothing costs time, and drafts nothing."""
        if self.learner is None or self.learner.newest is not None:
            return dict(self.options.params)
        from augury.plugins.server.learner import DRAFTER

        kinds = self.engine.config["speculative"]["type"].split(";")
        return {**self.options.params, "speculative": {"type": ";".join(each for each in kinds if each != DRAFTER) or "none"}}

    def take_over(self, head: Path) -> None:
        """Let a new head draft, if the model is loaded; else it is loaded with it.

        Raises:
            AuguryError: As `Engine.replace_draft_model` does.
        """
        if self.is_ready:
            self.engine.replace_draft_model(head)

    def open(self) -> None:
        """Load the engine; called on a thread. Raises AuguryError: as `Engine.load` does."""
        with self.progress:
            self._engine = self.load(self.progress)
        self.is_sleeping, self.failure = False, None
        say(f"{self.name} is ready, loaded in {self._engine.load_s:.1f} s")

    def take_engine(self, *, is_sleeping: bool = False) -> Engine:
        """The engine, which is to be closed; if the model is to sleep, its figures stay."""
        engine, self.is_sleeping = self.engine, is_sleeping
        if not is_sleeping:
            self._engine = self._chat_format = None
        return engine


def fields_of(request: Request) -> Mapping[str, Any]:
    """The fields that a request came with, before any is checked: those of its body, or else of its query."""
    return getattr(request.state, "fields", None) or request.query_params


async def _serving(request: Request) -> AsyncIterator[Server]:  # until the answer has been sent, streams included
    models = request.app.state.models
    async with models.using(models.find(fields_of(request).get("model")), request) as server:
        yield server


async def _named(request: Request) -> Server:  # a function that is not async would be called on a thread
    return request.app.state.models.find(fields_of(request).get("model"))


Serving = Annotated[Server, Depends(_serving)]
"""The model that a request names, loaded."""
Named = Annotated[Server, Depends(_named)]
"""The model that a request names, loaded or not."""


T = TypeVar("T")


class Events:
    """Hands each event to every listener. Used on the event loop."""

    def __init__(self) -> None:
        self._listeners = set[asyncio.Queue[dict[str, Any] | None]]()

    def tell(self, model: str, event: str, **data: Any) -> None:
        """Hand out an event of a model; `*` is all of them."""
        for each in self._listeners:
            if not each.full():
                each.put_nowait({"model": model, "event": event, "data": data})

    def end(self) -> None:
        """Let all listeners go."""
        for each in self._listeners:
            each.put_nowait(None)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Queue[dict[str, Any] | None]]:
        """The events from now on; None is their end."""
        queue = asyncio.Queue[dict[str, Any] | None](_N_WAITING + 1)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)


async def run_watched(work: Callable[[], T], tell: Callable[[], None]) -> T:
    """Do work on another thread, and tell how far it is until it is done."""
    running = asyncio.ensure_future(to_thread.run_sync(work))
    while not running.done():
        await asyncio.wait({running}, timeout=_EVERY_S)
        tell()
    return running.result()
