"""`/v1/messages`: conversations in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BeforeValidator, Field, model_validator
from starlette.requests import Request

from augury.engine.params import PromptProgress
from augury.plugins.server.conversation import AnswerReader, plan_chat, prompt_of
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import N_MESSAGES, EngineFields, Fields, Texts, text_of
from augury.plugins.server.generation import Pieces, generate
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.completion import stop_type
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import own_figures
from augury.plugins.server.tools import ChatPlan, Delta
from augury.types import Result, Summary

router = api_router()
_PING = event({"type": "ping"}, "ping")
_BLOCKS = {"content": {"type": "text", "text": ""}, "reasoning": {"type": "thinking", "thinking": "", "signature": ""}}
_DELTAS = {
    "content": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class Block(Fields):
    """A part of a message. Every prompt is cached as far as it can be, whether a block asks for it or not."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = Field(None, max_length=0)


class TextSource(Fields):
    """The text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(Block):
    """A document that is text."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = Field(None, description="what the document is, for the model")

    @property
    def text(self) -> str:
        """The document as the model reads it."""
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


class ThinkingBlock(Block):
    """The model's reasoning; the signature is that of another server, or empty, and what it has redacted cannot be read."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: str = ""
    data: str = ""


class Caller(Fields):
    """Who called: the model itself."""

    type: Literal["direct"]


class ToolUseBlock(Block):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Caller | None = None


class ToolResultBlock(Block):
    """The answer of a tool."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock | DocumentBlock, Field(discriminator="type")]] = ""
    is_error: bool = False


def _blocks(content: Any) -> Any:
    """A text as one block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


AnyBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | DocumentBlock, Field(discriminator="type")]


class Message(Fields):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[AnyBlock], BeforeValidator(_blocks, json_schema_input_type=str | list[AnyBlock])]

    def for_template(self) -> list[dict[str, Any]]:
        """The messages that it is to a chat template: the answers of tools are messages of their own."""
        found: list[dict[str, Any]] = []
        message: dict[str, Any] = {"role": self.role, "content": ""}
        for block in self.content:
            if isinstance(block, TextBlock):
                message["content"] += block.text
            elif isinstance(block, DocumentBlock):
                message["content"] += f"{block.text}\n\n"
            elif isinstance(block, ThinkingBlock):
                message["reasoning_content"] = message.get("reasoning_content", "") + block.thinking
            elif isinstance(block, ToolUseBlock):
                function = {"name": block.name, "arguments": json.dumps(block.input)}
                message.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": function})
            else:
                text = text_of(block.content, "\n")
                content = f"Error: {text}" if block.is_error else text
                found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        return [*found, message] if len(message) > 2 or message["content"] or not found else found


class Tool(Block):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, description="arguments fit the schema in any case")
    input_examples: list[dict[str, Any]] | None = Field(None, description="without effect: no chat template knows them")
    eager_input_streaming: Literal[True] | None = Field(None, description="arguments always come as they are written")
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates know it."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.input_schema}
        return {"type": "function", "function": function | ({"strict": True} if self.strict else {})}


class ToolChoice(Fields):
    """Whether tools are to be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def as_openai(self) -> str | dict[str, Any]:
        """The same in OpenAI's words."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(Fields):
    """Whether the model is to think first."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=1, description="after so many tokens thinking ends; max_tokens counts them, too")
    display: Literal["summarized", "omitted"] | None = Field(None, description="omitted: blocks of thinking are told empty")


class OutputFormat(Fields):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """How the answer is to be written."""

    format: OutputFormat | None = None
    effort: str | None = Field(default=None, description="a variable of chat templates that know it, `reasoning_effort`")


class CountRequest(EngineFields):
    """A conversation."""

    messages: list[Message] = Field(min_length=1, max_length=N_MESSAGES)
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, in the words of chat."""
        messages = [each for message in self.messages for each in message.for_template()]
        return [{"role": "system", "content": text_of(self.system, "\n")}, *messages] if self.system else messages

    async def plan(self, server: Server) -> tuple[ChatPlan, dict[str, Any]]:
        """How the answer is read, and the conversation's arguments of `Engine.submit`."""
        kwargs: dict[str, Any] = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        form = self.output_config.format
        return await plan_chat(
            self,
            server,
            self.conversation(),
            tools=[tool.for_template() for tool in self.tools or ()] or None,
            tool_choice=self.tool_choice.as_openai(),
            is_parallel=not self.tool_choice.disable_parallel_tool_use,
            json_schema=None if form is None else form.schema_,
            budget=None if self.thinking is None or self.thinking.type != "enabled" else self.thinking.budget_tokens,
            effort=self.output_config.effort,
            kwargs=kwargs | (self.chat_template_kwargs or {}),
        )


class MessagesRequest(CountRequest):
    """A conversation that is to be answered."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Texts = Field(default_factory=list)
    stream: bool = False

    @property
    def tells_thinking(self) -> bool:
        """Whether the answer holds what the model thought."""
        return self.thinking is None or self.thinking.display != "omitted"

    @model_validator(mode="after")
    def _check(self) -> MessagesRequest:
        for name in ("stop", "return_draft_origin", "return_progress", "timings_per_token"):
            if getattr(self, name):
                other = "stop_sequences" if name == "stop" else "/v1/chat/completions"
                raise ValueError(f"{name} has no place in this form; use {other}")
        return self


@router.post("/v1/messages", responses=STREAMED)
async def messages(body: MessagesRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    plan, params = await body.plan(server)
    begun = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": server.options.names[0]}
    stops = [stop for stop in body.stop_sequences if stop]
    params = body.over(params) | {"max_tokens": body.max_tokens, "stop": stops, "id": begun["id"]}
    if body.stream:
        events = partial(_events, plan, begun, server, stops, _Blocks(tells_thinking=body.tells_thinking))
        return await stream(server, http, body, [params], events, error_event="error", ping=_PING, has_progress=True)
    (result,) = await generate(server, http, [params])
    answer = AnswerReader(plan).read_whole(result)
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning * body.tells_thinking, "signature": ""})
    if answer.content or not (answer.reasoning or answer.calls):
        content.append({"type": "text", "text": answer.content})
    content += [_tool_use(call.name, call.given) for call in answer.calls]
    end = _end(result, server, stops, has_calls=bool(answer.calls))
    return begun | {"content": content} | end | {"usage": _usage(result.stats, result.stats.n_emitted)} | own_figures([result])


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, server: Serving) -> dict[str, int]:
    """Say how many tokens a conversation has as a prompt."""
    _, params = await body.plan(server)
    return {"input_tokens": len(await prompt_of(server, params))}


async def _events(
    plan: ChatPlan, begun: dict[str, Any], server: Server, stops: list[str], blocks: _Blocks, pieces: Pieces
) -> AsyncIterator[bytes]:
    nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    reader, has_begun = AnswerReader(plan), False
    async for _, piece in pieces:
        if isinstance(piece, PromptProgress):  # the first has the prompt's counts
            if not has_begun:
                yield _event("message_start", message=begun | nothing | {"usage": _usage(piece, 0)})
            has_begun = True
            continue
        for delta in reader.read(piece):
            for each in blocks.add(delta):
                yield each
        if isinstance(piece, Result):
            for each in blocks.end():
                yield each
            end = _end(piece, server, stops, has_calls=blocks.has_calls)
            yield _event("message_delta", delta=end, usage=_usage(piece.stats, piece.stats.n_emitted), **own_figures([piece]))
            yield _event("message_stop")


class _Blocks:
    """The blocks of an answer as it streams, one open at a time."""

    def __init__(self, *, tells_thinking: bool) -> None:
        self.has_calls = False
        self._tells_thinking = tells_thinking
        self._index = -1
        self._open: tuple[str, int | None] | None = None  # its kind, and which call it is

    def add(self, delta: Delta) -> Iterator[bytes]:
        """The events that a piece of the answer comes to."""
        if (delta.kind, delta.call) != self._open:
            yield from self._close()
            self._open = (delta.kind, delta.call)
            self._index += 1
            self.has_calls |= delta.kind == "call"
            block = _BLOCKS[delta.kind] if delta.name is None else _tool_use(delta.name, {})
            yield _event("content_block_start", index=self._index, content_block=block)
        if delta.text and (self._tells_thinking or delta.kind != "reasoning"):
            name, field = _DELTAS[delta.kind]
            yield _event("content_block_delta", index=self._index, delta={"type": name, field: delta.text})

    def end(self) -> Iterator[bytes]:
        """The events after the last piece; an answer of nothing is one empty text."""
        if self._open is None:
            yield from self.add(Delta())
        yield from self._close()

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name)


def _tool_use(name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": name, "input": given}


def _end(result: Result, server: Server, stops: list[str], *, has_calls: bool) -> dict[str, Any]:
    """Why an answer ended."""
    kind, word = stop_type(result, server.engine.tokenizer, stops)
    if kind == "limit":
        return {
            "stop_reason": "model_context_window_exceeded" if result.finish_reason == "context" else "max_tokens",
            "stop_sequence": None,
        }
    if kind == "word":
        return {"stop_reason": "stop_sequence", "stop_sequence": word}
    return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def _usage(prompt: PromptProgress | Summary, n_emitted: int) -> dict[str, int]:
    """Tokens of a request; reused tokens of the prompt are counted apart."""
    return {
        "input_tokens": prompt.n_prompt - prompt.n_reused,
        "cache_read_input_tokens": prompt.n_reused,
        "cache_creation_input_tokens": 0,
        "output_tokens": n_emitted,
    }
