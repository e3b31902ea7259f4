"""What requests of every family may say: sampling, limits, speculation; checked before the engine sees it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from augury.engine.sampling import sampling_options
from augury.plugins.server.errors import RequestError
from augury.types import Token

__all__ = ["IGNORED", "EngineFields", "Fields", "RequestFields", "draft_origin"]

IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
"""Fields that OpenAI's clients send and that mean nothing to a server of one's own: the only ones that are ignored."""


class Fields(BaseModel):
    """A JSON object whose fields are all known, and of the right type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class RequestFields(Fields):
    """A request as OpenAI's clients send it."""

    model: str | None = Field(None, description="any: the server has one model")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_ignored(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if key not in IGNORED} if isinstance(data, dict) else data


_SAMPLING: dict[str, Any] = {
    each.name: (Annotated[each.kind | None, Field(ge=each.ge, le=each.le, description=each.help)], None)
    for each in sampling_options().values()
}


_Texts = Annotated[list[str], Field(max_length=128)]  # each of them is looked for at every token


class EngineFields(create_model("_SamplingFields", __base__=RequestFields, **_SAMPLING)):  # type: ignore[misc] # made of the options
    """Fields that mean to every endpoint what they mean to `Engine.submit`; what is left out is as the server's flags say."""

    stop: str | _Texts | None = None
    samplers: _Texts | None = None
    dry_sequence_breakers: _Texts | None = None
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: str | list[str] | None = None
    constraint: str | dict[str, Any] | None = None
    speculative: bool | dict[str, Any] | None = Field(None, description="false, or options by drafter; see Drafters")
    return_draft_origin: bool = Field(default=False, description="tell of each token in a stream who drafted it")

    @model_validator(mode="before")
    @classmethod
    def _read_foreign(cls, data: Any) -> Any:
        """Read llama.cpp's `speculative.n_max` as `{"speculative": {"n_max": ...}}`."""
        if not isinstance(data, dict):
            return data
        dotted = {key: value for key, value in data.items() if isinstance(key, str) and key.startswith("speculative.")}
        if not dotted:
            return data
        given = data.get("speculative")
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"{next(iter(dotted))} is given as well as speculative, which is {given!r}; give one of them")
        merged = {**(given or {}), **{key.partition(".")[2]: value for key, value in dotted.items()}}
        return {key: value for key, value in data.items() if key not in dotted} | {"speculative": merged}

    def engine_params(self) -> dict[str, Any]:
        """The arguments of `Engine.submit` that the request gives."""
        names = [name for name in EngineFields.model_fields if name not in {"model", "return_draft_origin"}]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def over(self, params: dict[str, Any]) -> dict[str, Any]:
        """These arguments, and those that the request gives."""
        given = self.engine_params()
        if taken := params.keys() & given.keys():
            told = f"{min(taken)} cannot be honoured beside the form that tools or response_format ask for; leave one out"
            raise RequestError(400, told, param=min(taken))
        return params | given


def draft_origin(token: Token) -> list[dict[str, Any]]:
    """Who drafted a token, and on the first token of a round how many were drafted in it."""
    return [{"text": token.text, "token": token.token, "drafter": token.drafter, "n_drafted": token.n_drafted}]
