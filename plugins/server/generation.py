"""The one way from a checked request to the engine, and back: answers as a whole or token by token.

A client that leaves cancels its answers within a round; so does the time limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from anyio import to_thread
from fastapi.sse import format_sse_event
from starlette.requests import Request
from starlette.responses import StreamingResponse

from augury.errors import AuguryError
from augury.plugins.server.errors import RequestError, as_request_error, error_body
from augury.plugins.server.server import Server
from augury.types import Result, Token

if TYPE_CHECKING:
    from augury.engine.running import Running

__all__ = ["STREAMED", "Generation", "Until", "embed", "event", "generate", "stream"]

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""What the OpenAPI document says of routes that may answer by server-sent events."""

_N_TEXTS = 2048  # of one request for embeddings, as OpenAI's server takes

Pieces = AsyncIterator[tuple[int, Token | Result]]
Until = Callable[[int, Token], bool]
"""Whether an answer ends, by its number, with a token of it."""


class Generation:
    """The answers to one request. When nobody holds it any more, they are cancelled."""

    def __init__(self, runnings: Sequence[Running], timeout_s: float) -> None:
        self._runnings = runnings
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._is_expired = False
        self._ended: set[int] = set()  # answers that a token ended

    @classmethod
    async def begin(cls, server: Server, asked: Sequence[Mapping[str, Any]]) -> Generation:
        """Submit the answers that a request asks for.

        Args:
            server: Whose engine is to answer.
            asked: Arguments of `Engine.submit`, with `n` for several answers; what they lack is as the server's flags say.

        Raises:
            AuguryError: As `Engine.submit` does; then none of them runs.
        """
        submit = partial(_submit, server.engine.submit, [{**server.options.params, **each} for each in asked])
        # encoding a long prompt, and rendering a template, take too long for the event loop
        return cls(await to_thread.run_sync(submit), server.options.timeout_s)

    async def results(self, http: Request, until: Until | None = None) -> list[Result]:
        """Wait for all of them, or for the tokens with which they are to end.

        Raises:
            AuguryError: One of them failed.
            RequestError: The time is up, or the server ends.
        """
        watching = asyncio.create_task(self._cancel_on_disconnect(http))
        try:
            if until is None:
                with self._limited():
                    return [self._whole(i, await running) for i, running in enumerate(self._runnings)]
            found = {i: piece async for i, piece in self.pieces(until) if isinstance(piece, Result)}
            return [found[i] for i in range(len(found))]
        finally:
            watching.cancel()

    async def pieces(self, until: Until | None = None) -> Pieces:
        """Tokens as they come, each with the number of its answer, and at the end of each answer its result."""
        with self._limited():
            if len(self._runnings) == 1:
                async for token in self._runnings[0]:
                    yield 0, token
                    self._end_with(until, 0, token)
                yield 0, self._whole(0, self._runnings[0].result())
                return
            found: asyncio.Queue[Any] = asyncio.Queue()
            tasks = [asyncio.create_task(_forward(i, running, found)) for i, running in enumerate(self._runnings)]
            try:
                n_left = len(tasks)
                while n_left:
                    i, piece = await found.get()
                    if isinstance(piece, BaseException):
                        raise piece
                    if isinstance(piece, Result):
                        n_left -= 1
                        self._whole(i, piece)
                    yield i, piece
                    self._end_with(until, i, piece)
            finally:
                for task in tasks:
                    task.cancel()

    def _end_with(self, until: Until | None, i: int, piece: Token | Result) -> None:
        if until is not None and isinstance(piece, Token) and until(i, piece):
            self._ended.add(i)
            self._runnings[i].cancel()

    def cancel(self) -> None:
        """End all answers after the round in progress; no effect on those that have ended."""
        for running in self._runnings:
            running.cancel()

    def _expire(self) -> None:
        self._is_expired = True
        self.cancel()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Cancel what still runs when the time is up, and whenever this is left."""
        timer = self._loop.call_at(self._deadline, self._expire)
        try:
            yield
        finally:
            timer.cancel()
            self.cancel()

    def _whole(self, i: int, result: Result) -> Result:
        if result.finish_reason != "cancelled" or i in self._ended:
            return result
        if self._is_expired:
            raise _too_long(self._timeout_s)
        raise RequestError(503, "the server ends, and with it the answer")  # or the client has gone, and nobody reads this

    async def _cancel_on_disconnect(self, http: Request) -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        self.cancel()


def _submit(submit: Callable[..., list[Running]], asked: Sequence[Mapping[str, Any]]) -> list[Running]:
    runnings: list[Running] = []
    try:
        for each in asked:
            runnings += submit(**{"n": 1, **each})
    except BaseException:
        for running in runnings:
            running.cancel()
        raise
    return runnings


async def _forward(i: int, running: Running, found: asyncio.Queue[Any]) -> None:
    """Put the pieces of one answer where those of all are read."""
    try:
        async for token in running:
            found.put_nowait((i, token))
        found.put_nowait((i, running.result()))
    except Exception as error:  # noqa: BLE001 - raised again by who reads
        found.put_nowait((i, error))


async def generate(
    server: Server, http: Request, asked: Sequence[Mapping[str, Any]], until: Until | None = None
) -> list[Result]:
    """Answer as a whole; see `Generation`."""
    return await (await Generation.begin(server, asked)).results(http, until)


async def embed(server: Server, http: Request, texts: Sequence[Sequence[int]], **how: Any) -> list[np.ndarray]:
    """Embed token ids, as many texts at once as there are slots: in between others have their turn, and the request may end.

    Args:
        server: Whose engine is to embed.
        http: The request.
        texts: At least one.
        **how: Arguments of `Engine.embed`.

    Raises:
        AuguryError: As `Engine.embed` does.
        RequestError: There are too many, or the time is up.
    """
    n_slots, n_ctx = server.engine.config["n_slots"], server.engine.config["n_ctx"]
    if len(texts) > _N_TEXTS:
        raise RequestError(400, f"there are {len(texts)} texts, expected at most {_N_TEXTS}")
    if how.get("pooling") == "none" and (n := sum(map(len, texts))) > n_slots * n_ctx:
        raise RequestError(400, f"there are {n} tokens, expected at most {n_slots * n_ctx} where each has an embedding")
    found: list[np.ndarray] = []
    deadline = asyncio.get_running_loop().time() + server.options.timeout_s
    while len(found) < len(texts) and not await http.is_disconnected():
        if asyncio.get_running_loop().time() > deadline:
            raise _too_long(server.options.timeout_s)
        some = partial(server.engine.embed, texts[len(found) : len(found) + n_slots], **how)
        found.extend(await to_thread.run_sync(some, limiter=server.embedding))
    return found


def _too_long(timeout_s: float) -> RequestError:
    told = f"the request took longer than the {timeout_s:g} s that the server allows (--timeout)"
    return RequestError(504, told, code="timeout")


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event with JSON, or with a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return format_sse_event(data_str=text, event=name)


async def stream(
    server: Server,
    http: Request,
    asked: Sequence[Mapping[str, Any]],
    events: Callable[[Pieces], AsyncIterator[bytes]],
    *,
    error_event: str | None = None,
    until: Until | None = None,
) -> StreamingResponse:
    """Answer by server-sent events. What goes wrong before the first of them is a status, later an event.

    Args:
        server: Whose engine is to answer.
        http: The request.
        asked: As `Generation.begin` takes it.
        events: What pieces come to, each made by `event`.
        error_event: The name of the event that tells of an error.
        until: With which token an answer ends before its time.
    """
    generation = await Generation.begin(server, asked)

    async def body() -> AsyncIterator[bytes]:
        try:
            async for each in events(generation.pieces(until)):
                yield each
        except (AuguryError, RequestError) as error:
            yield event(error_body(as_request_error(error), http.url.path), error_event)
        finally:
            with suppress(RuntimeError):  # no loop any more
                generation.cancel()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second is for nginx
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)
