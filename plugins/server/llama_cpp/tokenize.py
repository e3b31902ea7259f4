"""`/tokenize`, `/detokenize`, `/apply-template`, and how many tokens a conversation has."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from anyio import to_thread
from pydantic import AliasChoices, Field, model_validator
from starlette.responses import Response

from augury.plugins.server.conversation import mixed_tokens, needed, prompt_of
from augury.plugins.server.errors import RequestError
from augury.plugins.server.fields import N_MESSAGES, RequestFields
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.openai.chat import ChatRequest, Message
from augury.plugins.server.openai.responses import ResponsesRequest
from augury.plugins.server.server import Server, Serving

router = api_router()


class TokenizeRequest(ChatRequest):
    """A text, tokens and texts, or a conversation; with vLLM's names, too."""

    messages: list[Message] = Field([], max_length=N_MESSAGES)
    content: str | list[int | str] | None = Field(None, validation_alias=AliasChoices("content", "prompt"))
    add_special: bool = Field(default=False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = Field(default=False, description="tell the vocabulary's own texts, too")

    @property
    def begins_answer(self) -> bool:
        """The same; an assistant's last message is continued only where that is said."""
        return self.add_generation_prompt is not False or bool(self.continue_final_message)

    @classmethod
    def _read(cls, data: dict[str, Any]) -> dict[str, Any]:
        if "prompt" in data and "add_special" not in data:  # as vLLM's clients mean it
            data = {"add_special_tokens": True, **data}
        return super()._read(data)

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.continue_final_message and (not self.messages or self.messages[-1].role != "assistant"):
            raise ValueError("continue_final_message is true, but the last message is not the assistant's; leave it out")
        return self


class DetokenizeRequest(RequestFields):
    """Tokens."""

    tokens: list[int]


@router.post("/tokenize", response_model=dict[str, Any])
async def tokenize(body: TokenizeRequest, server: Serving) -> Response:
    """Give the tokens of a text, or of a conversation as a prompt."""
    tokenizer = needed(server.engine.tokenizer)
    if bool(body.messages) == (body.content is not None):
        raise RequestError(400, "expected either content, also called prompt, or messages")
    if body.messages:
        _, params = await body.plan(server)
        tokens = await prompt_of(server, params)
    else:
        special = {"add_special": body.add_special, "parse_special": body.parse_special}
        tokens = await to_thread.run_sync(partial(mixed_tokens, body.content, tokenizer, **special))
    told: Any = tokens
    if body.with_pieces:
        told = ({"id": token, "piece": _piece(tokenizer.piece(token))} for token in tokens)
    found = {"count": len(tokens), "max_model_len": server.engine.config["n_ctx"], "tokens": iter(told)}
    if body.return_token_strs:
        texts = map(tokenizer.text, tokens)
        found["token_strs"] = (text.encode(errors="surrogateescape").decode(errors="replace") for text in texts)
    return long_answer(pieces_of(found))


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
