"""The fields that Ollama's requests share, and the figures that its answers share."""

from __future__ import annotations

from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, Literal

from pydantic import Field

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import EngineFields, Fields, RequestFields
from augury.plugins.server.openai.answer import logprob_entry
from augury.plugins.server.server import Server
from augury.types import Result, Token

_OF_LOADING = (  # the server's flags choose these when it loads a model
    *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_thread"),
    *("numa", "use_mlock", "use_mmap", "vocab_only"),
)
_NAMES = {"num_keep": "n_keep", "num_predict": "max_tokens"}


class Options(EngineFields):
    """How to sample, and how far; beside Ollama's options all fields of `/completion` that the engine knows."""

    max_tokens: int | None = Field(None, ge=-2, description="num_predict: below 0 without a limit")

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        return super()._read({_NAMES.get(key, key): value for key, value in data.items() if key not in _OF_LOADING})

    def over(self, params: dict[str, Any]) -> dict[str, Any]:
        """These arguments of `Engine.submit`, and the request's."""
        found = super().over(params)
        if self.max_tokens is not None:
            found["max_tokens"] = None if self.max_tokens < 0 else max(self.max_tokens, 1)
        return found


class ModelRequest(RequestFields):
    """A request that names a model."""

    keep_alive: str | float | None = Field(None, description="without effect: a flag says when models are unloaded")


class GenerationRequest(ModelRequest):
    """The fields of conversations and prompts."""

    stream: bool = True
    options: Options = Options()
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
        return self.options.over(params)

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


def check_model(server: Server, name: str | None) -> str:
    """The name of a model as the client calls it.

    Raises:
        RequestError: The server has no such model.
    """
    if not name:
        raise RequestError(400, "model is missing")
    if name.removesuffix(":latest") not in server.options.names and name not in server.options.names:
        known = ", ".join(tagged(each) for each in server.options.names)
        raise RequestError(404, f"model {name!r} not found; this server has {known}")
    return name


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
    """The time that a request takes, from when this is made on."""

    def __init__(self) -> None:
        self._begun = perf_counter_ns()

    def durations(self) -> dict[str, int]:
        """The time so far, in nanoseconds; the model was loaded before."""
        return {"total_duration": perf_counter_ns() - self._begun, "load_duration": 0}

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
        }


def logprobs_of(token: Token) -> dict[str, Any]:
    """A token's log-probability, as Ollama writes it."""
    found = logprob_entry(token, token.top_logprobs)
    for each in (found, *found["top_logprobs"]):
        del each["id"]
    return found
