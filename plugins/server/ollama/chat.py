"""`/api/chat` and `/api/generate`: conversations, and answers to one text, in Ollama's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anyio import to_thread
from pydantic import AliasChoices, Field, model_validator
from pydantic_core import to_json
from starlette.requests import Request

from augury.plugins.server.conversation import AnswerReader, mixed_tokens, needed, plan_chat, prompt_of
from augury.plugins.server.event_stream import LINES
from augury.plugins.server.fields import N_MESSAGES, Fields, GivenDeep
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.completion import InfillRequest, infill_prompt
from augury.plugins.server.ollama.answer import Answer, Clock, GenerationRequest, Pictures, Serving, loaded
from augury.plugins.server.server import Server
from augury.text.template_habits import with_ids
from augury.types import Result

router = api_router()


class Function(Fields):
    """What is called, and with what."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    description: str | None = None
    index: int | None = None


class ToolCall(Fields):
    """A call of a tool."""

    id: str | None = None
    function: Function


class Message(Pictures):
    """One message of a conversation, as a client writes it, or as it was received."""

    role: str
    content: str = ""
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = Field(None, validation_alias=AliasChoices("tool_name", "name"))
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest):
    """A conversation that is to be continued; one without messages loads the model."""

    messages: list[Message] = Field(default_factory=list, max_length=N_MESSAGES)
    tools: list[GivenDeep] | None = None


def conversation(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The messages in the words of OpenAI's chat, where every call has an id and every answer of a tool names one.

    Ids that clients leave out are the calls' numbers: the same in every request, so that slots hold what was rendered before.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        each: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            each["reasoning_content"] = message.thinking
        if message.tool_calls:
            each["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": to_json(call.function.arguments).decode()},
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            each |= {"tool_call_id": message.tool_call_id or ""} | ({"name": message.tool_name} if message.tool_name else {})
        found.append(each)
    return with_ids(found, lambda call, n: call["id"] or f"call_{n}")


@router.post("/api/chat", responses=LINES)
async def chat(body: ChatRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    clock, model = Clock(http), body.model
    if not body.messages:
        return loaded(model, _said, server)
    plan, params = await plan_chat(
        body.options,
        server,
        conversation(body.messages),
        tools=body.tools,
        json_schema=body.schema_of_answer,
        kwargs=body.thinking,
    )
    return await Answer(model, AnswerReader(plan), _said, clock).tell(body, params, http, server)


def _said(content: str = "", thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    more = {"thinking": thinking} if thinking else {}
    return {"message": {"role": "assistant", "content": content} | more | ({"tool_calls": calls} if calls else {})}


class GenerateRequest(GenerationRequest, Pictures):
    """A text that is to be answered or continued; an empty one loads the model."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = Field(default=False, description="the prompt stands as it is, without the model's chat template")
    context: list[int] | None = Field(None, description="tokens of the exchange before, as its answer told them")
    template: str | None = Field(None, max_length=0, description="none: the server's flag --chat-template-file has another")

    @model_validator(mode="after")
    def _check(self) -> GenerateRequest:
        for name in ("system", "context", "format", "think"):
            if getattr(self, name) and (self.raw or self.suffix):
                form = "raw" if self.raw else "suffix"
                raise ValueError(f"{name} has no place beside {form}, with which the prompt stands as it is; leave one out")
        return self


async def _plan(body: GenerateRequest, server: Server) -> tuple[AnswerReader, dict[str, Any]]:
    """How the answer is read, and the prompt's arguments of `Engine.submit`."""
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    if body.suffix:
        gap = InfillRequest(input_prefix=body.prompt, input_suffix=body.suffix, n_predict=body.options.max_tokens)
        return AnswerReader(None), {"prompt": await infill_prompt(gap, server)}
    if body.raw:
        tokens = partial(mixed_tokens, body.prompt, tokenizer, add_special=True, n_most=n_ctx)
        return AnswerReader(None), {"prompt": await to_thread.run_sync(tokens)}
    messages = [{"role": "system", "content": body.system}] if body.system else []
    plan, params = await plan_chat(
        body.options,
        server,
        [*messages, {"role": "user", "content": body.prompt}],
        json_schema=body.schema_of_answer,
        kwargs=body.thinking,
    )
    if body.context:
        tokens_of = await prompt_of(server, params)
        rest = tokens_of[1:] if tokens_of[:1] == [needed(tokenizer).bos] else tokens_of
        params["prompt"] = [*body.context, *rest]
    return AnswerReader(plan), params


@router.post("/api/generate", responses=LINES)
async def generate_text(body: GenerateRequest, http: Request, server: Serving) -> Any:
    """Answer a text."""
    clock, model = Clock(http), body.model
    if not body.prompt:
        return loaded(model, _responded, server)
    reader, params = await _plan(body, server)
    answer = Answer(model, reader, _responded, clock, partial(_context, body))
    return await answer.tell(body, params | {"echo": True}, http, server)


def _responded(content: str = "", thinking: str = "", **_: Any) -> dict[str, Any]:
    return {"response": content} | ({"thinking": thinking} if thinking else {})


def _context(body: GenerateRequest, result: Result) -> dict[str, Any]:
    """The tokens of the exchange, for the next one; a prompt that stands as it is has none, as in Ollama."""
    return {} if body.raw else {"context": [*(result.prompt or ()), *result.tokens]}
