"""One server: its options, its engine as soon as that is loaded, and how far loading has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import Factory, define, frozen
from fastapi import Depends
from starlette.requests import Request

from augury.cli import ProgressDisplay, say
from augury.errors import AuguryError
from augury.plugins.server.errors import RequestError
from augury.plugins.server.file_facts import FileFacts
from augury.plugins.server.tools import ChatFormat

if TYPE_CHECKING:
    from augury import Engine
    from augury.plugins.server.collection import Collection
    from augury.plugins.server.metrics import Metrics

_PATIENCE_S = 30.0
_BODY_S = 60.0


@frozen
class ServerOptions:
    """The options of the command line."""

    names: Sequence[str] = ("augury",)  # of the model; answers have the first
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
    shows_slots: bool = True
    takes_props: bool = False
    slot_save_path: Path | None = None  # the folder of saved slots, and the only one; None: there are none
    sleep_idle_s: float | None = None  # after which the engine is closed until somebody asks; None: never
    has_page: bool = True
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


@define(eq=False)
class Server:
    """A model that is served. The app holds it as `app.state.server`; routes get it by `server: Serving`."""

    options: ServerOptions
    load: Callable[[LoadingProgress], Engine]
    progress: LoadingProgress = Factory(LoadingProgress)
    facts: Callable[[], FileFacts] = FileFacts  # of the model's file
    metrics: Metrics | None = None  # None: nobody counts
    collection: Collection | None = None  # None: no request is kept
    url: str = ""
    failure: AuguryError | None = None  # why there will be no engine
    on_failure: Callable[[], object] = lambda: None
    is_sleeping: bool = False  # the engine is closed, and still has its figures
    _engine: Engine | None = None
    _chat_format: ChatFormat | None = None
    _loader: threading.Thread | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RequestError: It is not loaded yet.
        """
        if self._engine is None:
            raise RequestError(503, "the model is being loaded", retry_after=1, more={"progress": self.progress.seen})
        return self._engine

    @property
    def chat_format(self) -> ChatFormat:
        """How the model's chats call tools and reason."""
        if self._chat_format is None or self._chat_format.template is not self.engine.chat_template:  # of an engine that slept
            self._chat_format = ChatFormat(self.engine.chat_template, self.engine.tokenizer)
        return self._chat_format

    def start(self) -> None:
        """Begin to load, on a thread of its own."""
        say(f"augury listens on {self.url} and loads {self.options.names[0]}")
        self._loader = threading.Thread(target=self._load, name="augury-load", daemon=True)
        self._loader.start()

    def sleep(self) -> None:
        """Close the engine, to which nobody has a request. Where that fails, it is not used again either."""
        try:
            self.engine.close()
        finally:
            self.is_sleeping = True
        say(f"{self.options.names[0]} sleeps: nobody has asked for {self.options.sleep_idle_s:g} s")

    def wake(self) -> None:
        """Load the engine again, and wait for it.

        Raises:
            RequestError: The server is ending.
        """
        self.progress = LoadingProgress()
        self._loader = threading.Thread(target=self._load, name="augury-load", daemon=True)
        self._loader.start()
        self._loader.join()
        if self.failure is not None:
            raise RequestError(500, "the model cannot be loaded again")
        self.is_sleeping = False

    def end_requests(self) -> None:
        """Cancel running requests: each client is told that the server ends."""
        if self._engine is not None:
            self._engine.close()

    def close(self) -> None:
        """Stop loading, or close the engine, which cancels running requests."""
        self.progress.is_stopped = True
        if self._loader is not None:
            self._loader.join()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _load(self) -> None:
        try:
            with self.progress:
                self._engine = self.load(self.progress)
        except Exception as error:  # noqa: BLE001 - told where the command ends
            known = error if isinstance(error, AuguryError) else AuguryError(f"{type(error).__name__}: {error}")
            self.failure = None if self.progress.is_stopped else known
            self.on_failure()
            return
        say(f"{self.options.names[0]} is ready, loaded in {self._engine.load_s:.1f} s")


async def _server_of(request: Request) -> Server:  # a function that is not async would be called on a thread
    return request.app.state.server


Serving = Annotated[Server, Depends(_server_of)]
