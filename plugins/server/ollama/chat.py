"""`/api/chat`: conversations in Ollama's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, Field
from pydantic_core import to_json
from starlette.requests import Request

from augury.plugins.server.conversation import AnswerReader, plan_chat
from augury.plugins.server.event_stream import LINES
from augury.plugins.server.fields import N_MESSAGES, Fields, GivenDeep
from augury.plugins.server.json_route import api_router
from augury.plugins.server.ollama.answer import Answer, loaded
from augury.plugins.server.ollama.fields import Clock, GenerationRequest, Pictures, Serving
from augury.text.template_habits import with_ids

router = api_router(ignores_type=True)


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
        tool_choice="auto",
        is_parallel=True,
        json_schema=body.schema_of_answer,
        kwargs=body.thinking,
    )
    return await Answer(model, AnswerReader(plan), _said, clock).tell(body, params, http, server)


def _said(content: str = "", thinking: str = "", calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    more = {"thinking": thinking} if thinking else {}
    return {"message": {"role": "assistant", "content": content} | more | ({"tool_calls": calls} if calls else {})}
