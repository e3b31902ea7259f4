"""`/tokenize`, `/detokenize`, `/apply-template`, and how many tokens a conversation has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import AliasChoices, Field
from pydantic_core import to_json
from starlette.responses import Response

from augury.plugins.server.conversation import prompt_of
from augury.plugins.server.fields import RequestFields
from augury.plugins.server.json_route import api_router, long_answer
from augury.plugins.server.llama_cpp.prompts import mixed_tokens, needed
from augury.plugins.server.openai.chat import ChatRequest
from augury.plugins.server.openai.responses import ResponsesRequest
from augury.plugins.server.server import Server, Serving
from augury.text.tokenizer import Tokenizer

router = api_router()


class TokenizeRequest(RequestFields):
    """A text, or tokens and texts; with vLLM's names, too."""

    content: str | list[int | str] = Field(validation_alias=AliasChoices("content", "prompt"))
    add_special: bool = Field(default=False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestFields):
    """Tokens."""

    tokens: list[int]


@router.post("/tokenize", response_model=dict[str, Any])
def tokenize(body: TokenizeRequest, server: Serving) -> Response:
    """Give the tokens of a text."""
    tokenizer = needed(server.engine.tokenizer)
    tokens = mixed_tokens(body.content, tokenizer, add_special=body.add_special, parse_special=body.parse_special)
    return long_answer(_as_json(tokens, tokenizer if body.with_pieces else None))


def _as_json(tokens: Sequence[int], tokenizer: Tokenizer | None) -> Iterator[str]:
    """The answer's JSON, a thousand tokens at a time, with their pieces where there is a tokenizer."""
    yield '{"tokens":['
    for start in range(0, len(tokens), 1000):
        part: list[Any] = list(tokens[start : start + 1000])
        if tokenizer is not None:
            part = [{"id": token, "piece": _piece(tokenizer.piece(token))} for token in part]
        yield ("," if start else "") + to_json(part).decode()[1:-1]
    yield "]}"


@router.post("/detokenize")
def detokenize(body: DetokenizeRequest, server: Serving) -> dict[str, str]:
    """Give the text of tokens, special ones included."""
    text = needed(server.engine.tokenizer).decode(body.tokens, skip_special=False)
    return {"content": text, "prompt": text}


@router.get("/tokenizer_info")
async def tokenizer_info(server: Serving) -> dict[str, str | None]:
    """Describe the tokenizer in vLLM's form, of which evaluation harnesses ask."""
    tokenizer, template = needed(server.engine.tokenizer), server.engine.chat_template
    ends = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    found = {name: None if token is None else tokenizer.text(token) for name, token in ends.items()}
    return {"tokenizer_class": tokenizer.kind, **found, "chat_template": None if template is None else template.source}


@router.post("/apply-template")
async def apply_template(body: ChatRequest, server: Serving) -> dict[str, str]:
    """Give the prompt that a conversation is to the model."""
    _, params = await body.plan(server)
    return {"prompt": str(params["prompt"])}


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def chat_input_tokens(body: ChatRequest, server: Serving) -> dict[str, Any]:
    """Say how many tokens a conversation has as a prompt."""
    return await _input_tokens(body, server)


@router.post("/v1/responses/input_tokens")
@router.post("/responses/input_tokens", include_in_schema=False)
async def responses_input_tokens(body: ResponsesRequest, server: Serving) -> dict[str, Any]:
    """Say the same of a conversation in the form of `/v1/responses`."""
    return await _input_tokens(body, server)


async def _input_tokens(body: ChatRequest | ResponsesRequest, server: Server) -> dict[str, Any]:
    _, params = await body.plan(server)
    return {"object": "response.input_tokens", "input_tokens": len(await prompt_of(server, params))}


def _piece(found: bytes) -> str | list[int]:
    """Text, or bytes that are none by themselves."""
    try:
        return found.decode()
    except UnicodeDecodeError:
        return list(found)
