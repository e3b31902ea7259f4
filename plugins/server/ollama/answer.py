"""The fields that Ollama's requests share, and how answers are told, at once or as they stream."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Annotated, Any, Literal
from uuid import uuid4

from attrs import frozen
from fastapi import Depends
from pydantic import AliasChoices, Field
from starlette.requests import Request

from augury.plugins.server.conversation import AnswerReader
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import line, stream
from augury.plugins.server.fields import EngineFields, Fields, RequestFields
from augury.plugins.server.generation import Pieces, generate
from augury.plugins.server.openai.answer import logprob_entry
from augury.plugins.server.server import Server, fields_of
from augury.plugins.server.timings import receipts
from augury.plugins.server.tools.delta import Call
from augury.types import Result, Token

_OF_LOADING = (  # the server's flags choose these when it loads a model
    *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_thread"),
    *("num_gqa", "numa", "rope_frequency_base", "rope_frequency_scale", "use_mlock", "use_mmap", "vocab_only"),
    "keep_alive",  # a field of the request, which LiteLLM's `ollama/` puts among the options; Ollama leaves it out, too
)
_N_SHOWN = 100  # characters of a value
_LONGEST_S = 1e9  # a longer time is for ever
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = rf"(\d+\.?\d*)({'|'.join(_SECONDS)})"


class Options(EngineFields):
    """How to sample, and how far; beside Ollama's options all fields of `/completion` that the engine knows."""

    max_tokens: int | None = Field(
        None, ge=-2, validation_alias=AliasChoices("num_predict", "max_tokens"), description="below 0 without a limit"
    )
    n_keep: int | None = Field(None, ge=-1, validation_alias=AliasChoices("num_keep", "n_keep"))

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        return super()._read({key: value for key, value in data.items() if key not in _OF_LOADING})

    def over(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().over(params)
        if self.max_tokens is not None:
            found["max_tokens"] = None if self.max_tokens < 0 else max(self.max_tokens, 1)
        return found


class ModelRequest(RequestFields):
    """A request that names a model."""

    model: str
    keep_alive: str | float | None = Field(None, description="how long the model stays loaded afterwards: 5m; -1: for ever")


class GenerationRequest(ModelRequest):
    """The fields of conversations and prompts."""

    stream: bool = True
    options: Options = Options()
    truncate: bool = Field(default=False, description="without effect: nothing is left out of a prompt that is too long")
    shift: bool | None = Field(None, description="as context_shift: whether the answer goes on when the context is full")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="json, or a schema")
    think: bool | str | None = Field(None, description="whether the model is to think first, or how hard")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    def asked(self, params: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `Engine.submit`, beside which these come from the request."""
        if self.logprobs:
            params = params | {"logprobs": self.top_logprobs}
        elif self.top_logprobs:
            raise RequestError(400, "top_logprobs needs logprobs, which is not true", param="top_logprobs")
        found = self.options.over(params)
        return found if self.shift is None else {"context_shift": self.shift} | found

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The form of the answer."""
        return {"type": "object"} if self.format == "json" else self.format or None

    @property
    def thinking(self) -> dict[str, Any]:
        """Variables of chat templates that know them, and how hard to think."""
        if self.think is None:
            return {}
        return {"enable_thinking": self.think is not False} | (
            {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        )


class Pictures(Fields):
    """What may come with a picture."""

    images: list[str] | None = Field(None, max_length=0, description="none: models here read text alone")


def keep_alive_s(value: Any) -> float | None:
    """The seconds of a `keep_alive`: a number of them, or a text such as 1h30m; None of one below 0, which means for ever.

    Raises:
        RequestError: It is neither.
    """
    text = str(value)
    try:
        found = float(text)
    except ValueError:
        if re.fullmatch(f"-?({_PART})+", text) is None:
            message = f"keep_alive is {text[:_N_SHOWN]!r}, expected seconds, or a time such as 5m"
            raise RequestError(400, message, param="keep_alive") from None
        found = sum(float(n) * _SECONDS[unit] for n, unit in re.findall(_PART, text))
        found = -found if text.startswith("-") else found
    return found if 0 <= found < _LONGEST_S else None


async def named(request: Request) -> Server:
    """The model that a request names, loaded or not."""
    fields = fields_of(request)
    if not (name := fields.get("model") or fields.get("name")):
        raise RequestError(400, "model is missing", param="model")
    return request.app.state.models.find(name, is_strict=True)


async def _serving(request: Request) -> AsyncIterator[Server]:
    models, fields, server = request.app.state.models, fields_of(request), await named(request)
    keep = fields.get("keep_alive")
    idle_s = server.options.sleep_idle_s if keep is None else keep_alive_s(keep)
    if idle_s == 0 and not any(fields.get(name) for name in ("messages", "prompt", "input")):
        models.unload(server)
        yield server
        return
    was_ready, begun = server.is_ready, perf_counter_ns()
    async with models.using(server, request):
        request.state.load_ns = 0 if was_ready else perf_counter_ns() - begun
        server.idle_s = idle_s
        yield server


Serving = Annotated[Server, Depends(_serving)]
"""The model that a request names, loaded unless it is only to be unloaded; it stays as long as `keep_alive` says."""
Named = Annotated[Server, Depends(named)]
"""The model that a request names, loaded or not."""


def tagged(name: str) -> str:
    """A model's name with a tag, as Ollama writes all of them."""
    return name if ":" in name else f"{name}:latest"


def written(at: datetime) -> str:
    """A time of UTC, as answers tell it."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def now() -> str:
    """The time at which it is asked."""
    return written(datetime.now(UTC))


class Clock:
    """The time that a request takes, from when this is made on, and that for which its model was loaded before."""

    def __init__(self, http: Request) -> None:
        self._load_ns: int = getattr(http.state, "load_ns", 0)  # of one that is only unloaded
        self._begun = perf_counter_ns() - self._load_ns

    def durations(self) -> dict[str, int]:
        """The time so far, in nanoseconds."""
        return {"total_duration": perf_counter_ns() - self._begun, "load_duration": self._load_ns}

    def end(self, result: Result) -> dict[str, Any]:
        """The fields with which an answer ends."""
        stats, times = result.stats, result.stats.timings
        return {
            "done": True,
            "done_reason": "stop" if result.finish_reason == "stop" else "length",
            **self.durations(),
            "prompt_eval_count": stats.n_prompt,
            "prompt_eval_duration": int(times.prompt_s * 1e9),
            "eval_count": stats.n_emitted,
            "eval_duration": int(times.predict_s * 1e9),
            **receipts([result]),
        }


def logprobs_of(token: Token) -> dict[str, Any]:
    """A token's log-probability, as Ollama writes it."""
    found = logprob_entry(token, token.top_logprobs)
    for each in (found, *found["top_logprobs"]):
        del each["id"]
    return found


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
    reader: AnswerReader
    said: Callable[..., dict[str, Any]]
    clock: Clock
    ended: Callable[[Result], dict[str, Any]] = lambda _: {}

    async def tell(self, body: GenerationRequest, params: dict[str, Any], http: Request, server: Server) -> Any:
        """Ask for it and tell it."""
        asked = [body.asked(params)]
        if body.stream:
            return await stream(server, http, body.options, asked, self.lines, as_lines=True)
        (result,) = await generate(server, http, asked)
        answer = self.reader.read_whole(result)
        more = {"logprobs": [logprobs_of(token) for token in result.pieces]} if body.logprobs else {}
        calls = [called(*each) for each in enumerate(answer.calls)]
        return self._head(answer.content, answer.reasoning, calls=calls) | more | self.clock.end(result) | self.ended(result)

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
    function = {"index": index, "name": call.name, "arguments": call.given}
    return {"id": f"call_{uuid4().hex[:24]}", "function": function}
