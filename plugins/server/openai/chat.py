"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import Fields, draft_origin
from augury.plugins.server.generation import Pieces, event, generate, stream
from augury.plugins.server.openai.answer import OpenAIFields, finish_reason, head, is_end, logprob_entry, usage
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import timings
from augury.types import Result, Token

__all__ = ["ChatFields", "ChatRequest", "Message", "router"]

router = APIRouter()


class TextPart(Fields):
    """A part of a message. Texts are the only ones."""

    type: Literal["text"]
    text: str


def text_of(content: str | list[TextPart]) -> str:
    """A content's text, whole or in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(Fields):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it."""
        found = self.model_dump(exclude_none=True, exclude={"refusal"})
        if self.content is not None:
            found["content"] = text_of(self.content)
        if self.role == "developer":  # OpenAI's newer word, which templates do not know
            found["role"] = "system"
        return found


class Schema(Fields):
    """A JSON schema, as `response_format` names it."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="the answer fits the schema in any case")


class ResponseFormat(Fields):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    def params(self) -> dict[str, Any]:
        """The same for `Engine.submit`."""
        if self.type == "json_schema" and self.json_schema is None:
            raise RequestError(400, "response_format lacks json_schema", param="response_format.json_schema")
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        return {"json_schema": {"type": "object"}} if self.type == "json_object" else {}


class Prediction(Fields):
    """A text that the answer is expected to resemble."""

    type: Literal["content"]
    content: str | list[TextPart]


class ChatFields(OpenAIFields):
    """What a conversation's request says beside its messages."""

    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(ChatFields):
    """A conversation that is to be continued."""

    messages: list[Message] = Field(min_length=1)


@router.post("/v1/chat/completions")
@router.post("/chat/completions", include_in_schema=False)
async def chat(body: ChatRequest, http: Request, server: Serving) -> Any:
    """Answer a conversation."""
    begun = head(server, "chat.completion", "chatcmpl")
    asked = body.answers(begun["id"], **_params(body, server))
    if body.stream:
        begun["object"] = "chat.completion.chunk"
        return await stream(server, http, asked, partial(_events, body, server, begun))
    results = await generate(server, http, asked)
    choices = [_choice(body, server, i, result) for i, result in enumerate(results)]
    return begun | {"choices": choices, "usage": usage(results)} | _timings(results)


def _params(body: ChatRequest, server: Server) -> dict[str, Any]:
    """What a conversation adds to the arguments of `Engine.submit`."""
    params: dict[str, Any] = {"messages": [message.for_template() for message in body.messages]}
    if kwargs := {**server.options.chat_template_kwargs, **(body.chat_template_kwargs or {})}:
        params["chat_template_kwargs"] = kwargs
    if (limit := body.max_completion_tokens or body.max_tokens) is not None:
        params["max_tokens"] = limit
    if body.response_format is not None:
        params |= body.response_format.params()
    if body.prediction is not None:
        params["prediction"] = text_of(body.prediction.content)
    if body.logprobs:
        params["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs is not None:
        raise RequestError(400, "top_logprobs needs logprobs, which is not true", param="top_logprobs")
    return params


def _choice(body: ChatRequest, server: Server, index: int, result: Result) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": result.text},
        "logprobs": {"content": [_logprob(piece) for piece in result.pieces if not is_end(server, piece)]}
        if body.logprobs
        else None,
        "finish_reason": finish_reason(result),
    }


def _timings(results: list[Result]) -> dict[str, Any]:
    """Of one answer its timings; of several a list of them."""
    found = [timings(result.stats) for result in results]
    return {"timings": found[0] if len(found) == 1 else found}


async def _events(body: ChatRequest, server: Server, begun: dict[str, Any], pieces: Pieces) -> AsyncIterator[bytes]:
    results: dict[int, Result] = {}
    has_begun = [False] * body.n
    async for index, piece in pieces:
        delta: dict[str, Any] = {}
        if not has_begun[index]:
            has_begun[index] = True
            delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if isinstance(piece, Result):
            results[index] = piece
            choice["finish_reason"] = finish_reason(piece)
        else:
            _fill(body, server, choice, piece)
            if not (delta or choice["logprobs"] or "draft_origin" in choice):
                continue
        found = begun | {"choices": [choice]}
        if isinstance(piece, Result):
            found["timings"] = timings(piece.stats)
        yield event(found)
    if body.is_usage_streamed:
        yield event(begun | {"choices": [], "usage": usage([results[i] for i in range(body.n)])})
    yield event("[DONE]")


def _fill(body: ChatRequest, server: Server, choice: dict[str, Any], token: Token) -> None:
    """Put what a token is into its event."""
    if token.text:
        choice["delta"]["content"] = token.text
    if body.logprobs and not is_end(server, token):
        choice["logprobs"] = {"content": [_logprob(token)]}
    if body.return_draft_origin:
        choice["draft_origin"] = draft_origin(token)


def _logprob(token: Token) -> dict[str, Any]:
    return logprob_entry(token, token.top_logprobs)
