"""`/api/generate`: an answer to one text in Ollama's form; as it stands with `raw`, between two texts with `suffix`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from anyio import to_thread
from pydantic import Field, model_validator
from starlette.requests import Request

from augury.plugins.server.conversation import AnswerReader, plan_chat, prompt_of
from augury.plugins.server.event_stream import LINES
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.infill import InfillRequest, infill_prompt
from augury.plugins.server.llama_cpp.prompts import mixed_tokens, needed
from augury.plugins.server.ollama.answer import Answer, Reader, loaded
from augury.plugins.server.ollama.fields import Clock, GenerationRequest, Pictures, Serving
from augury.plugins.server.server import Server
from augury.plugins.server.tools import Delta
from augury.types import Result, Token

router = api_router(ignores_type=True)


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


class _Reader:
    """Reads an answer whose text stands as it is."""

    @staticmethod
    def read(piece: Token | Result) -> list[Delta]:
        """See `AnswerReader.read`."""
        return [Delta(content=piece.text)] if isinstance(piece, Token) and piece.text else []

    @staticmethod
    def read_whole(result: Result) -> Iterator[Delta]:
        """See `AnswerReader.read_whole`."""
        yield Delta(content=result.text)


async def _plan(body: GenerateRequest, server: Server) -> tuple[Reader, dict[str, Any]]:
    """How the answer is read, and the prompt's arguments of `Engine.submit`."""
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    if body.suffix:
        gap = InfillRequest(input_prefix=body.prompt, input_suffix=body.suffix, n_predict=body.options.max_tokens)
        return _Reader(), {"prompt": await infill_prompt(gap, server)}
    if body.raw:
        tokens = partial(mixed_tokens, body.prompt, tokenizer, add_special=True, n_most=n_ctx)
        return _Reader(), {"prompt": await to_thread.run_sync(tokens)}
    messages = [{"role": "system", "content": body.system}] if body.system else []
    plan, params = await plan_chat(
        body.options,
        server,
        [*messages, {"role": "user", "content": body.prompt}],
        tools=None,
        tool_choice="auto",
        is_parallel=True,
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
        return loaded(model, _said, server)
    reader, params = await _plan(body, server)
    answer = Answer(model, reader, _said, clock, partial(_context, body))
    return await answer.tell(body, params | {"echo": True}, http, server)


def _said(content: str = "", thinking: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:  # noqa: ARG001 -- it has no tools
    return {"response": content} | ({"thinking": thinking} if thinking else {})


def _context(body: GenerateRequest, result: Result) -> dict[str, Any]:
    """The tokens of the exchange, for the next one; a prompt that stands as it is has none, as in Ollama."""
    return {} if body.raw else {"context": [*(result.prompt or ()), *result.tokens]}
