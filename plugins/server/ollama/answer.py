"""How Ollama's interface tells an answer, at once or as it streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol
from uuid import uuid4

from attrs import frozen
from pydantic_core import from_json
from starlette.requests import Request

from augury.plugins.server.event_stream import line, stream
from augury.plugins.server.generation import Pieces, generate
from augury.plugins.server.ollama.fields import Clock, GenerationRequest, logprobs_of, now
from augury.plugins.server.server import Server
from augury.plugins.server.tools import Delta
from augury.plugins.server.tools.delta import Call, collect
from augury.types import Result, Token


class Reader(Protocol):
    """What reads an answer, as `AnswerReader` does."""

    def read(self, piece: Token | Result) -> list[Delta]:
        """The deltas of a token, or of the answer's end."""

    def read_whole(self, result: Result) -> Iterator[Delta]:
        """All that an answer comes to."""


@frozen
class Answer:
    """The answer to one request.

    Attributes:
        model: What the client calls the model.
        reader: Reads it.
        said: Writes the fields of a part of it: its text, its reasoning and its calls.
        clock: Began with the request.
        ended: Writes fields with which it ends, beside those of all answers.
    """

    model: str
    reader: Reader
    said: Callable[..., dict[str, Any]]
    clock: Clock
    ended: Callable[[Result], dict[str, Any]] = lambda _: {}

    async def tell(self, body: GenerationRequest, params: dict[str, Any], http: Request, server: Server) -> Any:
        """Ask for it and tell it."""
        asked = [body.asked(params)]
        if body.stream:
            return await stream(server, http, body.options, asked, self.lines, as_lines=True)
        (result,) = await generate(server, http, asked)
        answer = collect(self.reader.read_whole(result))
        more = {"logprobs": [logprobs_of(token) for token in result.pieces]} if body.logprobs else {}
        calls = [called(*each) for each in enumerate(answer.calls)]
        return self._head(answer.content, answer.reasoning, calls) | more | self.clock.end(result) | self.ended(result)

    async def lines(self, pieces: Pieces) -> AsyncIterator[bytes]:
        """Tell it as it streams; calls are told whole, as clients expect them."""
        calls, pending = list[Call](), list[dict[str, Any]]()
        async for _, piece in pieces:
            if not isinstance(piece, Token | Result):
                continue
            if isinstance(piece, Token) and piece.logprob is not None:
                pending.append(logprobs_of(piece))
            for part in self._parts(calls, piece):
                yield line(part | ({"logprobs": [*pending]} if pending else {}) | {"done": False})
                pending.clear()
            if isinstance(piece, Result):
                yield line(self._head() | self.clock.end(piece) | self.ended(piece))

    def _parts(self, calls: list[Call], piece: Token | Result) -> Iterator[dict[str, Any]]:
        """What a piece adds; a call is told with what comes after it."""
        for delta in self.reader.read(piece):
            if delta.name is not None:
                yield from self._last(calls)
                calls.append(Call(delta.name))
            if delta.call is not None:
                calls[delta.call].arguments += delta.arguments
            else:
                yield self._head(delta.content, delta.reasoning)
        if isinstance(piece, Result):
            yield from self._last(calls)

    def _last(self, calls: list[Call]) -> Iterator[dict[str, Any]]:
        if calls:
            yield self._head(calls=[called(len(calls) - 1, calls[-1])])

    def _head(self, *said: Any, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "created_at": now()} | self.said(*said, **more)


def loaded(model: str, said: Callable[..., dict[str, Any]], server: Server) -> dict[str, Any]:
    """The answer to a request that asks for nothing but a model to be loaded, or unloaded."""
    reason = "unload" if server.idle_s == 0 else "load"
    return {"model": model, "created_at": now()} | said() | {"done": True, "done_reason": reason}


def called(index: int, call: Call) -> dict[str, Any]:
    """A call, as Ollama writes it."""
    try:
        given = from_json(call.arguments or "{}")
    except ValueError:  # it was cut off
        given = {}
    function = {"index": index, "name": call.name, "arguments": given if isinstance(given, dict) else {}}
    return {"id": f"call_{uuid4().hex[:24]}", "function": function}
