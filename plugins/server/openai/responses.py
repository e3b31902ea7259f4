"""`/v1/responses`: OpenAI's newer interface to conversations. Nothing is stored between requests."""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, Any, Literal, get_args
from uuid import uuid4

from pydantic import AliasChoices, Field
from starlette.requests import Request

from augury.engine.params import PromptProgress
from augury.plugins.server.conversation import AnswerReader, plan_chat
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import N_MESSAGES, EngineFields, Fields, Given, text_of
from augury.plugins.server.generation import Pieces, generate
from augury.plugins.server.json_route import api_router
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import counted, end_figures
from augury.plugins.server.tools import ChatPlan, Delta
from augury.types import Result

router = api_router()

_ITEMS = Literal["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"]
_OF_OTHER_TOOLS = re.compile(r"\w+_(?:call|output|list_tools)")  # which models are not told of either


class InputPart(Fields):
    """A part of a message. Texts are the only ones."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = Field(None, description="without effect: OpenAI's packages add it to what was answered")


class InputItem(Fields):
    """An earlier message, call of a tool, its result, or reasoning, as it was received; `other` of tools of other types."""

    type: Literal[_ITEMS, "other"] = "message"
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    parsed_arguments: Any = Field(None, description="without effect, as `parsed`")
    output: str | list[InputPart] | None = None
    phase: Literal["commentary", "final_answer"] | None = Field(None, description="without effect: no chat template knows it")

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        kind = data.get("type")
        if isinstance(kind, str) and kind not in get_args(_ITEMS) and _OF_OTHER_TOOLS.fullmatch(kind):
            return {"type": "other"}
        return super()._read(data)


class TextFormat(Fields):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(Fields):
    """How the answer is to be written."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description="without effect: no chat template knows it"
    )


class ReasoningOptions(Fields):
    """How hard to think: a variable of chat templates that know it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(Fields):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = Field(None, description="nothing is padded")


class ResponsesRequest(EngineFields):
    """A conversation that is to be continued."""

    input: Annotated[str, Field(min_length=1)] | Annotated[list[InputItem], Field(max_length=N_MESSAGES)] = Field([])
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions = TextOptions()
    tools: list[Given] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningOptions = ReasoningOptions()
    include: list[Literal["reasoning.encrypted_content"]] | None = Field(None, description="reasoning is never encrypted")
    background: Literal[False] | None = None
    previous_response_id: str | None = Field(None, description="of no use: nothing is stored")

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, in the words of chat."""
        if self.previous_response_id is not None:
            given = reprlib.repr(self.previous_response_id)
            message = f"previous_response_id is {given}, but nothing is stored here; send what went before as input"
            raise RequestError(400, message, param="previous_response_id")
        found: list[dict[str, Any]] = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            return [*found, {"role": "user", "content": self.input}]
        for i, item in enumerate(self.input):
            _append(found, item, f"input.{i}")
        if not found:
            raise RequestError(400, "input holds no message; send one, or instructions", param="input")
        return found

    async def plan(self, server: Server) -> tuple[ChatPlan, dict[str, Any]]:
        """How the answer is read, and the conversation's arguments of `Engine.submit`."""
        choice = self.tool_choice
        if not isinstance(choice, str) and choice.get("type") == "allowed_tools":
            allowed = choice.get("tools")
            tools = [_as_in_chat(tool) for tool in allowed] if isinstance(allowed, list) else allowed
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
        elif not isinstance(choice, str):
            choice = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
        return await plan_chat(
            self,
            server,
            self.messages(),
            tools=[_as_in_chat(tool) for tool in self.functions()],
            tool_choice=choice,
            is_parallel=self.parallel_tool_calls,
            json_schema=self.schema_of_answer(),
            effort=self.reasoning.effort,
        )

    def functions(self) -> list[dict[str, Any]]:
        """The tools that the model is told of: those of other types, which Codex sends, are left out."""
        return [tool for tool in self.tools or () if tool.get("type") == "function"]

    def schema_of_answer(self) -> dict[str, Any] | None:
        """The form of the answer."""
        form = self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_schema" and form.schema_ is None:
            raise RequestError(400, "text.format lacks schema", param="text.format.schema")
        return form.schema_ or {"type": "object"}


def _as_in_chat(tool: Any) -> Any:
    """A function, which stands one level deeper in chat."""
    if not isinstance(tool, dict):
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _append(messages: list[dict[str, Any]], item: InputItem, where: str) -> None:
    """Add an item to messages; calls and reasoning belong to the assistant's message that they surround."""
    follows = bool(messages) and messages[-1]["role"] == "assistant"
    if item.type == "reasoning":
        thought = "\n".join(
            part.text for part in [*(item.content if isinstance(item.content, list) else ()), *(item.summary or ())]
        )
        if thought:
            messages.append({"role": "assistant", "content": None, "reasoning_content": thought})
        return
    if item.type in ("function_call", "custom_tool_call"):
        if not follows:
            messages.append({"role": "assistant", "content": None})
        arguments = item.arguments if item.input is None else {"input": item.input}
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif item.type in ("function_call_output", "custom_tool_call_output"):
        if item.output is None:
            raise RequestError(400, f"{where} lacks output", param=f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
    elif item.type == "message":
        if item.role is None or item.content is None:
            raise RequestError(400, f"{where} is a message, and lacks its role or content", param=where)
        role, content = "system" if item.role == "developer" else item.role, text_of(item.content, "\n")
        if role == "assistant" and follows and messages[-1]["content"] is None and "tool_calls" not in messages[-1]:
            messages[-1]["content"] = content  # after its reasoning
        else:
            messages.append({"role": role, "content": content})


@router.post("/v1/responses", responses=STREAMED)
@router.post("/responses", include_in_schema=False)
async def responses(body: ResponsesRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    plan, params = await body.plan(server)
    if body.max_output_tokens is not None:
        params["max_tokens"] = body.max_output_tokens
    begun = _response(body, server)
    asked = [body.over(params) | {"id": begun["id"]}]
    if body.stream:
        return await stream(server, http, body, asked, partial(_events, body, plan, begun), error_event="error")
    (result,) = await generate(server, http, asked)
    output, reader = Output(), AnswerReader(plan)
    for delta in reader.deltas(result):
        list(output.add(delta))
    return _ended(begun, output, reader, result)[-1]["response"]


def _response(body: ResponsesRequest, server: Server) -> dict[str, Any]:
    """A response that has just begun."""
    form = body.text.format
    return {
        "id": item_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {},
        "model": server.options.names[0],
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": body.tool_choice,
        "tools": [{"strict": True, **tool} for tool in body.functions()],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _ended(begun: dict[str, Any], output: Output, reader: AnswerReader, result: Result) -> list[dict[str, Any]]:
    """The events that end a response; the last one holds it."""
    is_whole = result.finish_reason == "stop"
    status = "completed" if is_whole else "incomplete"
    events = list(output.end(status))
    stats = result.stats
    usage = {
        "input_tokens": stats.n_prompt,
        "input_tokens_details": {"cached_tokens": stats.n_reused},
        "output_tokens": len(result.tokens),
        "output_tokens_details": {"reasoning_tokens": reader.n_reasoning},
        "total_tokens": stats.n_prompt + len(result.tokens),
    }
    times = end_figures([result])
    more = {"status": status, "output": output.items, "usage": usage, "completed_at": int(time.time())} | times
    if not is_whole:
        more["incomplete_details"] = {"reason": "max_output_tokens"}
    return [*events, {"type": f"response.{status}", "response": begun | more} | times]


async def _events(body: ResponsesRequest, plan: ChatPlan, begun: dict[str, Any], pieces: Pieces) -> AsyncIterator[bytes]:
    output, reader, n_sent = Output(), AnswerReader(plan), 0

    def numbered(each: dict[str, Any]) -> bytes:
        nonlocal n_sent
        n_sent += 1
        return event({"type": each["type"], "sequence_number": n_sent - 1, **each}, each["type"])

    for kind in ("response.created", "response.in_progress"):
        yield numbered({"type": kind, "response": begun})
    async for _, piece, count in counted(body, pieces):
        figures = count.asked_figures(body, piece)
        if isinstance(piece, PromptProgress):
            yield numbered({"type": "response.in_progress", "response": begun, **figures})
            continue
        for delta in reader.read(piece):
            for each in output.add(delta):
                yield numbered(each | figures)
        if isinstance(piece, Result):
            for each in _ended(begun, output, reader, piece):
                yield numbered(each)


_PARTS: dict[str, tuple[str, dict[str, Any]]] = {  # by the item's type: the place of its text, and the name of that
    "message": ("output_text", {"annotations": [], "logprobs": []}),
    "reasoning": ("reasoning_text", {}),
}


def item_id(prefix: str) -> str:
    """A new id."""
    return f"{prefix}_{uuid4().hex}"


class Output:
    """Grows by pieces of an answer, with an event for each addition.

    Attributes:
        items: All so far; the last one may still grow.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._call: int | None = None  # which call the last item is

    def add(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Take a piece."""
        if delta.call is not None:
            if self._call != delta.call:
                yield from self.end()
                self._call = delta.call
                call = {"call_id": item_id("call"), "name": delta.name, "arguments": ""}
                yield from self._begin({"id": item_id("fc"), "type": "function_call", "status": "in_progress", **call})
            if delta.arguments:
                self.items[-1]["arguments"] += delta.arguments
                yield self._event("response.function_call_arguments.delta", delta=delta.arguments)
            return
        if delta.text:
            yield from self._add_text("reasoning" if delta.reasoning else "message", delta.text)

    def _add_text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        part_type, more = _PARTS[kind]
        if not self._is_open or self.items[-1]["type"] != kind:
            yield from self.end()
            own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            prefix = "msg" if kind == "message" else "rs"
            yield from self._begin({"id": item_id(prefix), "type": kind, "status": "in_progress", "content": [], **own})
            part = {"type": part_type, "text": "", **more}
            self.items[-1]["content"].append(part)
            yield self._event("response.content_part.added", content_index=0, part=dict(part))
        self.items[-1]["content"][0]["text"] += text
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{part_type}.delta", content_index=0, delta=text, **extra)

    def end(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """Complete the last item, if there is one that is not."""
        if not self._is_open:
            return
        item = self.items[-1]
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            (part,) = item["content"]
            extra: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **extra)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    @property
    def _is_open(self) -> bool:
        return bool(self.items) and self.items[-1]["status"] == "in_progress"

    def _begin(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **more}
