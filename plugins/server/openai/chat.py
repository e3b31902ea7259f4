"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal, Self
from uuid import uuid4

from pydantic import AliasChoices, Field, model_validator
from starlette.requests import Request

from augury.engine.params import PromptProgress
from augury.plugins.server.conversation import AnswerReader, plan_chat, prompt_of
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import N_MESSAGES, Fields, GivenDeep, TextPart, draft_origin, text_of
from augury.plugins.server.foreign_fields import of_chat
from augury.plugins.server.generation import Pieces, generate, score
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.openai.answer import OpenAIFields, finish_reason, head, is_end, logprob_entry, made_of, ranked, usage
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import counted, end_figures
from augury.plugins.server.tools import ChatPlan, Delta
from augury.types import Result, Token

router = api_router()

_UNTOLD = {"refusal", "annotations", "parsed", "reasoning_details", "cache_control"}  # of a message, to templates


class RefusalPart(Fields):
    """A part of an answer in which a model refused, as other servers tell it."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it said."""
        return self.refusal


class Message(Fields):
    """One message of a conversation, as a client writes it, or as it was received from this or another server."""

    role: str
    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    reasoning_content: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning", "thinking"))
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = Field(None, description="without effect: OpenAI's packages add it to what was answered")
    reasoning_details: Any = Field(None, description="without effect: OpenRouter's form of what `reasoning` tells")
    cache_control: dict[str, Any] | None = Field(None, description="without effect: every prompt is cached")

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        found = self.model_dump(exclude_none=True, exclude=_UNTOLD)
        if self.content is not None:
            found["content"] = text_of(self.content, "\n")  # as llama.cpp joins parts
        if self.role == "developer":  # OpenAI's newer word, which templates do not know
            found["role"] = "system"
        return found


class Schema(Fields):
    """A JSON schema, as `response_format` names it."""

    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="the answer fits the schema in any case")


class ResponseFormat(Fields):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="of a json_object, as llama.cpp has it")

    def schema_of_answer(self) -> dict[str, Any] | None:
        """The form of the answer."""
        if self.type == "json_schema" and self.json_schema is None:
            raise RequestError(400, "response_format lacks json_schema", param="response_format.json_schema")
        if self.json_schema is not None:
            return self.json_schema.schema_
        return self.schema_ or {"type": "object"} if self.type == "json_object" else None


class PredictedContent(Fields):
    """A text that the answer is expected to resemble."""

    type: Literal["content"]
    content: str | list[TextPart]


class ChatRequest(OpenAIFields):
    """A conversation that is to be continued."""

    messages: list[Message] = Field(min_length=1, max_length=N_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=-1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    prediction: PredictedContent | None = None
    tools: list[GivenDeep] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning_format: Literal["none", "deepseek", "auto"] | None = Field(
        None, description="none leaves reasoning in the content; by default as the server's flag says"
    )
    reasoning_budget_tokens: int | None = Field(
        None,
        ge=-1,
        validation_alias=AliasChoices("reasoning_budget_tokens", "thinking_budget_tokens"),
        description="after so many tokens reasoning ends; -1: as the server's flag says",
    )
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="without effect: no chat template knows it")
    reasoning_effort: str | None = Field(None, description="a variable of chat templates that know it")
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = Field(None, description="true where the assistant has the last message, else false")
    add_generation_prompt: bool | None = Field(
        None, description="false: the prompt does not end with the beginning of an answer"
    )

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        return super()._read(of_chat(data, cls.known()))

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        is_continued = self.messages[-1].role == "assistant"
        if is_continued and len(self.messages) > 1 and self.messages[-2].role == "assistant":
            raise ValueError("the last two messages are the assistant's, expected one that is to be continued; join them")
        for name, meant in (("continue_final_message", is_continued), ("add_generation_prompt", not is_continued)):
            if getattr(self, name) is (not meant) and (is_continued or name == "continue_final_message"):
                state = "is continued because it is" if is_continued else "cannot be continued because it is not"
                raise ValueError(f"{name} is {not meant}, but the last message {state} the assistant's; leave {name} out")
        return self

    @property
    def begins_answer(self) -> bool:
        """Whether the prompt ends with the beginning of the answer; see `ChatTemplate.render`."""
        return self.add_generation_prompt is not False or self.messages[-1].role == "assistant"

    async def plan(self, server: Server) -> tuple[ChatPlan, dict[str, Any]]:
        """How the answer is read, and a conversation's arguments of `Engine.submit`."""
        plan, params = await plan_chat(
            self,
            server,
            [message.for_template() for message in self.messages],
            tools=self.tools,
            tool_choice=self.tool_choice,
            is_parallel=self.parallel_tool_calls,
            reasoning=self.reasoning_format,
            budget=self.reasoning_budget_tokens,
            json_schema=None if self.response_format is None else self.response_format.schema_of_answer(),
            effort=self.reasoning_effort,
            kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.begins_answer,
        )
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if limit is not None:
            params["max_tokens"] = limit
        if self.prediction is not None:
            params["prediction"] = text_of(self.prediction.content)
        if self.logprobs:
            params["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError(400, "top_logprobs needs logprobs, which is not true", param="top_logprobs")
        return plan, params


@router.post("/v1/chat/completions", responses=STREAMED)
@router.post("/chat/completions", include_in_schema=False)
async def chat(body: ChatRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    plan, params = await body.plan(server)
    begun = head(server, "chat.completion", "chatcmpl")
    asked = [body.asked(server, begun["id"], **params)]
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError(400, "prompt_logprobs cannot be streamed; leave out stream", param="stream")
    if body.stream:
        begun["object"] = "chat.completion.chunk"
        return await stream(server, http, body, asked, partial(_events, body, server, plan, begun, asked[0]))
    scored = []
    if body.prompt_logprobs is not None:
        scored = await score(server, http, [await prompt_of(server, params)], body.prompt_logprobs)
    results = await generate(server, http, asked)
    readers = [AnswerReader(plan) for _ in results]
    choices = [_choice(body, server, *each) for each in enumerate(zip(readers, results, strict=True))]
    used = usage(results, body.n, sum(reader.n_reasoning for reader in readers))
    found = begun | {"choices": choices, "usage": used} | end_figures(results) | made_of(body, server, asked[0], 0, results[0])
    for prompt in scored:
        found["prompt_logprobs"] = (ranked(token, body.prompt_logprobs or 0) for token in prompt)
    return long_answer(pieces_of(found)) if body.logprobs or scored else found


def _choice(body: ChatRequest, server: Server, index: int, read: tuple[AnswerReader, Result]) -> dict[str, Any]:
    reader, result = read
    answer = reader.read_whole(result)
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": _call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    entries = (logprob_entry(token, token.top_logprobs) for token in result.pieces if not is_end(server, token))
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": entries} if body.logprobs else None,
        "finish_reason": finish_reason(result, has_calls=bool(answer.calls) and not reader.is_cut),
    }


async def _events(
    body: ChatRequest, server: Server, plan: ChatPlan, begun: dict[str, Any], asked: dict[str, Any], pieces: Pieces
) -> AsyncIterator[bytes]:
    results: dict[int, Result] = {}
    readers: dict[int, AnswerReader] = {}
    has_calls = [False] * body.n

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return begun | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | more]}

    async for index, piece, count in counted(body, pieces):
        figures = count.asked_figures(body, piece)
        if isinstance(piece, PromptProgress):
            yield event(chunk(index, {}) | figures)
            continue
        if index not in readers:
            readers[index] = AnswerReader(plan)
            yield event(chunk(index, {"role": "assistant", "content": None}))
        added = readers[index].read(piece)
        has_calls[index] |= any(delta.call is not None for delta in added)
        more = {} if isinstance(piece, Result) else _more(body, server, piece)
        for number, delta in enumerate([_delta(each) for each in added] or [{}] * bool(more)):
            yield event(chunk(index, delta, **(more if number == 0 else {})) | figures)
        if isinstance(piece, Result):
            results[index] = piece
            reason = finish_reason(piece, has_calls=has_calls[index] and not readers[index].is_cut)
            ended = chunk(index, {}, finish_reason=reason)
            yield event(ended | end_figures([piece]) | made_of(body, server, asked, index, piece))
    if body.stream_options.include_usage:
        n_reasoning = sum(reader.n_reasoning for reader in readers.values())
        whole = [results[i] for i in range(body.n)]
        yield event(begun | {"choices": [], "usage": usage(whole, body.n, n_reasoning)} | end_figures(whole))
    yield event("[DONE]")


def _delta(delta: Delta) -> dict[str, Any]:
    """A piece of an answer, in OpenAI's words."""
    if delta.call is None:
        return {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}
    begin = {} if delta.name is None else {"id": _call_id(), "type": "function"}
    function = {"arguments": delta.arguments} if delta.name is None else {"name": delta.name, "arguments": delta.arguments}
    return {"tool_calls": [{"index": delta.call, **begin, "function": function}]}


def _more(body: ChatRequest, server: Server, token: Token) -> dict[str, Any]:
    """The figures of a token that the request asked for."""
    found: dict[str, Any] = {}
    if body.logprobs and not is_end(server, token):
        found["logprobs"] = {"content": [logprob_entry(token, token.top_logprobs)]}
    if body.return_draft_origin:
        found["draft_origin"] = draft_origin(token)
    return found


def _call_id() -> str:
    return f"call_{uuid4().hex[:24]}"
