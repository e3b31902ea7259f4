"""Fields of requests of every family: sampling, limits, speculation; checked before the engine sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core.core_schema import no_info_before_validator_function

from augury.plugins.server.errors import RequestError
from augury.plugins.server.foreign_fields import with_forms, without_neutral
from augury.sampling import SAMPLER_LETTERS, sampling_options
from augury.types import Token

N_FIELDS = 256  # of an object; none has as many
N_MESSAGES = 1 << 14  # of a conversation
_N_ERRORS = 100  # that are searched for one to report; a body of many megabytes can have millions


def _relaxed(schema: Any) -> Any:
    """A schema that reads lists as far as their first wrong item, and 3.0 as 3, which JSON does not tell apart."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_relaxed, schema))
    if not isinstance(schema, dict):
        return schema
    schema = {key: _relaxed(value) for key, value in schema.items()}
    if schema.get("type") == "list":
        schema["fail_fast"] = True
    return no_info_before_validator_function(_whole, schema) if schema.get("type") == "int" else schema


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Fields(BaseModel):
    """A JSON object whose fields are all known, and of the right type. A field that is null is one that is left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _relaxed(handler(source))

    @classmethod
    @cache
    def names(cls) -> list[list[str]]:
        """The names of each field, those of llama.cpp for OpenAI's fields among them."""
        fields = cls.model_fields.items()
        return [getattr(each.validation_alias, "choices", [each.validation_alias or name]) for name, each in fields]

    @classmethod
    @cache
    def known(cls) -> frozenset[str]:
        """All of these names."""
        return frozenset(chain.from_iterable(cls.names()))

    @model_validator(mode="wrap")
    @classmethod
    def _limit_errors(cls, data: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(data, dict):
            if len(data) > N_FIELDS:
                raise ValueError(f"there are {len(data)} fields, expected {N_FIELDS} at most")
            data = cls._read({key: value for key, value in data.items() if value is not None})
        try:
            return handler(data)
        except ValidationError as error:
            if (n := error.error_count()) <= _N_ERRORS:
                raise
            raise ValueError(f"{n} fields or values are unknown or of the wrong type") from None

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The fields of an object, in the names and forms that are declared."""
        for names in cls.names():
            given = [name for name in names if name in data]
            for other in given[1:]:  # such as max_tokens and n_predict, of which some clients send both
                if data.pop(other) != data[given[0]]:
                    raise ValueError(f"{given[0]} and {other} mean the same here, but differ; leave one of them out")
        return data


class TextPart(Fields):
    """A part of a message. Texts are the only ones."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = Field(None, description="without effect: every prompt is cached as far as it can be")


class RequestFields(Fields):
    """A request as OpenAI's clients send it."""

    model: str | None = Field(None, description="the first of the server, if none is named")

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        return super()._read(without_neutral(data, cls.known()))


_OFF_SAMPLER = "adaptive_p"  # which does nothing unless adaptive_target says so

_SAMPLING: dict[str, Any] = {
    each.name: (Annotated[each.kind | None, Field(ge=each.ge, le=each.le, description=each.help)], None)
    for each in sampling_options().values()
}


def _given(found: dict[str, Any], depth: int) -> dict[str, Any]:
    """An object without what is null in it, or in its objects down to a depth."""
    return {
        key: _given(value, depth - 1) if depth and isinstance(value, dict) else value
        for key, value in found.items()
        if value is not None
    }


Given = Annotated[dict[str, Any], AfterValidator(partial(_given, depth=0))]
"""An object whose fields are not declared: those that are null are left out, but not inside its values."""
GivenDeep = Annotated[dict[str, Any], AfterValidator(partial(_given, depth=1))]
"""The same, and so the objects that it holds, such as a tool's `function`."""
Texts = Annotated[list[str], Field(max_length=128)]  # each of them is looked for at every token


class AdapterScale(Fields):
    """How much an adapter counts, by its number in `/lora-adapters`."""

    id: int = Field(ge=0)
    scale: float = Field(allow_inf_nan=False)


class EngineFields(create_model("_SamplingFields", __base__=RequestFields, **_SAMPLING)):  # type: ignore[misc] # made of the options
    """Fields with the same meaning for every endpoint and for `Engine.submit`; omitted ones follow the server's flags."""

    stop: str | Texts | None = None
    samplers: Texts | None = Field(None, description="names in order, or a text of llama.cpp's letters")
    dry_sequence_breakers: Texts | None = None
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    context_shift: bool | None = None
    n_keep: int | None = Field(None, ge=-1)
    n_discard: int | None = Field(None, ge=0)
    post_sampling_probs: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: str | list[str] | None = None
    constraint: str | GivenDeep | None = None
    speculative: bool | GivenDeep | None = Field(None, description="false, or options by drafter; see Drafters")
    store: bool | None = Field(None, description="false: --collect does not keep the request")
    lora: list[AdapterScale] | None = Field(None, description="how much each adapter counts, others not at all; as loaded")
    receipt: bool | None = Field(None, description="tell a receipt of the answer, by which it can be checked")
    id_slot: int = Field(-1, ge=-1, description="the slot to wait for; -1: any")
    return_draft_origin: bool = Field(default=False, description="tell of each token in a stream who drafted it")
    return_progress: bool = Field(default=False, description="tell in a stream how far the prompt is processed")
    timings_per_token: bool = Field(default=False, description="tell the timings so far with each token of a stream")
    sse_ping_interval: int | None = Field(None, ge=-1, description="seconds of silence before a stream sends a keep-alive")
    t_max_prompt_ms: int | None = Field(None, description="without effect, as in llama.cpp")

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        data = with_forms(_undotted(data))
        if isinstance(letters := data.get("samplers"), str):
            data["samplers"] = [SAMPLER_LETTERS.get(letter, letter) for letter in letters]
        return super()._read(data)

    @property
    def is_usage_continuous(self) -> bool:
        """Whether each event of a stream tells the usage so far."""
        return False

    @property
    def has_form(self) -> bool:
        """Whether it has a form for the whole output."""
        return any(getattr(self, name) is not None for name in ("json_schema", "regex", "grammar", "choice", "constraint"))

    def engine_params(self) -> dict[str, Any]:
        """The arguments of `Engine.submit` that the request gives."""
        params = {name: value for name in _ENGINE_NAMES if (value := getattr(self, name)) is not None}
        if self.samplers is not None:
            params["samplers"] = [name for name in dict.fromkeys(self.samplers) if name != _OFF_SAMPLER]
        if self.lora is not None:
            params["lora"] = [dict(each) for each in self.lora]
        return params | ({"slot": self.id_slot} if self.id_slot >= 0 else {})

    def over(self, params: dict[str, Any]) -> dict[str, Any]:
        """These arguments, and the request's."""
        given = self.engine_params()
        if taken := params.keys() & given.keys():
            message = f"{min(taken)} cannot be honoured beside the form that tools or response_format ask for; leave one out"
            raise RequestError(400, message, param=min(taken))
        return params | given


_SERVER_NAMES = {"model", "id_slot", "return_draft_origin", "return_progress", "timings_per_token", "sse_ping_interval"}
_ENGINE_NAMES = [name for name in EngineFields.model_fields if name not in _SERVER_NAMES | {"t_max_prompt_ms"}]


def _undotted(data: dict[str, Any]) -> dict[str, Any]:
    """Read llama.cpp's `speculative.n_max` as `{"speculative": {"n_max": ...}}`."""
    dotted = {key: value for key, value in data.items() if isinstance(key, str) and key.startswith("speculative.")}
    if not dotted:
        return data
    given = data.get("speculative")
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"{next(iter(dotted))} is given as well as speculative, which is {given!r}; give one of them")
    merged = {**(given or {}), **{key.partition(".")[2]: value for key, value in dotted.items()}}
    return {key: value for key, value in data.items() if key not in dotted} | {"speculative": merged}


def draft_origin(token: Token) -> list[dict[str, Any]]:
    """The drafter of a token, and on the first token of a round how many were drafted in it."""
    return [{"text": token.text, "token": token.token, "drafter": token.drafter, "n_drafted": token.n_drafted}]


def text_of(content: str | list[Any], between: str = "") -> str:
    """A content's text, whole or in parts with a `text` each."""
    return content if isinstance(content, str) else between.join(part.text for part in content)
