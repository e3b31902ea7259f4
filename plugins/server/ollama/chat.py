"""`/api/chat`: conversations in Ollama's form."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import Field
from pydantic_core import from_json, to_json
from starlette.requests import Request

from augury.plugins.server.conversation import AnswerReader, plan_chat
from augury.plugins.server.event_stream import LINES, line, stream
from augury.plugins.server.fields import N_MESSAGES, Fields, GivenDeep
from augury.plugins.server.generation import Pieces, generate
from augury.plugins.server.json_route import api_router
from augury.plugins.server.ollama.fields import (
    Clock,
    GenerationRequest,
    Pictures,
    check_model,
    logprobs_of,
    now,
)
from augury.plugins.server.server import Serving
from augury.plugins.server.tools import Delta
from augury.plugins.server.tools.delta import Call, collect
from augury.types import Result, Token

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
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest):
    """A conversation that is to be continued; one without messages loads the model."""

    messages: list[Message] = Field(default_factory=list, max_length=N_MESSAGES)
    tools: list[GivenDeep] | None = None


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in the words of OpenAI's chat, where every call has an id and every answer of a tool names one.

    Ids that clients leave out are the calls' numbers: the same in every request, so that slots hold what was rendered before.
    """
    found: list[dict[str, Any]] = []
    n_calls = 0
    unanswered = deque[tuple[str, str]]()  # ids of calls, and their tools
    for message in messages:
        each: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            each["reasoning_content"] = message.thinking
        if message.tool_calls:
            each["tool_calls"] = []
            unanswered.clear()
        for call in message.tool_calls or ():
            name, n_calls = call.id or f"call_{n_calls}", n_calls + 1
            function = {"name": call.function.name, "arguments": to_json(call.function.arguments).decode()}
            each["tool_calls"].append({"id": name, "type": "function", "function": function})
            unanswered.append((name, call.function.name))
        if message.role == "tool":
            own = [pair for pair in unanswered if message.tool_name in {None, pair[1]}] or [*unanswered]
            answered = message.tool_call_id or (own[0][0] if own else "")
            unanswered = deque(pair for pair in unanswered if pair[0] != answered)
            each |= {"tool_call_id": answered} | ({"name": message.tool_name} if message.tool_name else {})
        found.append(each)
    return found


@router.post("/api/chat", responses=LINES)
async def chat(body: ChatRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    clock, head = Clock(), {"model": check_model(server, body.model), "created_at": now()}
    if not body.messages:
        return head | {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "load"}
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
    asked = [body.asked(params)]
    reader = AnswerReader(plan)
    if body.stream:
        return await stream(server, http, body.options, asked, partial(_lines, reader, head, clock), as_lines=True)
    (result,) = await generate(server, http, asked)
    answer = collect(reader.read_whole(result))
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["thinking"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(i, call) for i, call in enumerate(answer.calls)]
    more = {"logprobs": [logprobs_of(token) for token in result.pieces]} if body.logprobs else {}
    return head | {"message": message} | more | clock.end(result)


async def _lines(reader: AnswerReader, head: dict[str, Any], clock: Clock, pieces: Pieces) -> AsyncIterator[bytes]:
    calls, pending = list[Call](), list[dict[str, Any]]()

    def written(more: dict[str, Any], content: str = "") -> bytes:
        found = {"model": head["model"], "created_at": now(), "message": {"role": "assistant", "content": content} | more}
        if pending:
            found["logprobs"] = [*pending]
            pending.clear()
        return line(found | {"done": False})

    async for _, piece in pieces:
        if isinstance(piece, Token) and piece.logprob is not None:
            pending.append(logprobs_of(piece))
        if not isinstance(piece, Token | Result):
            continue
        for delta in reader.read(piece):
            for i in _ended(calls, delta):  # whole, as clients expect them
                yield written({"tool_calls": [_call(i, calls[i])]})
            if delta.reasoning:
                yield written({"thinking": delta.reasoning})
            elif delta.call is None:
                yield written({}, delta.content)
        if isinstance(piece, Result):
            if calls:
                yield written({"tool_calls": [_call(len(calls) - 1, calls[-1])]})
            message = {"message": {"role": "assistant", "content": ""}}
            yield line({"model": head["model"], "created_at": now()} | message | clock.end(piece))


def _ended(calls: list[Call], delta: Delta) -> Iterator[int]:
    """Add a delta to the calls of an answer, and tell which one it ends: that before a new one."""
    if delta.name is not None:
        if calls:
            yield len(calls) - 1
        calls.append(Call(delta.name))
    if delta.call is not None:
        calls[delta.call].arguments += delta.arguments


def _call(index: int, call: Call) -> dict[str, Any]:
    try:
        given = from_json(call.arguments or "{}")
    except ValueError:  # it was cut off
        given = {}
    function = {"index": index, "name": call.name, "arguments": given if isinstance(given, dict) else {}}
    return {"id": f"call_{uuid4().hex[:24]}", "function": function}
