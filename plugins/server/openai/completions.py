"""`/v1/completions`: texts that go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

from pydantic import Field
from starlette.requests import Request

from augury.engine.stats import PromptProgress
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import draft_origin
from augury.plugins.server.generation import Pieces, check_texts, generate
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.openai.answer import OpenAIFields, finish_reason, head, logprob_entry, timings_of, usage
from augury.plugins.server.server import Serving
from augury.plugins.server.timings import StreamTimings, prompt_progress, timings
from augury.types import Result, Token

__all__ = ["CompletionRequest", "router"]

router = api_router()


class CompletionRequest(OpenAIFields):
    """Prompts that are to be continued: a text, token ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool = False
    best_of: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def prompts(self) -> list[Any]:
        """The prompts."""
        is_several = isinstance(self.prompt, list) and bool(self.prompt) and not isinstance(self.prompt[0], int)
        return list(self.prompt) if is_several else [self.prompt]


@router.post("/v1/completions", responses=STREAMED)
async def completions(body: CompletionRequest, http: Request, server: Serving) -> Any:
    """Continue one prompt, or several."""
    if body.best_of not in {None, body.n}:
        raise RequestError(
            400, f"best_of is {body.best_of}, expected n, which is {body.n}: all answers are sent", param="best_of"
        )
    check_texts(body.prompts)
    begun = head(server, "text_completion", "cmpl")
    params = {"echo": body.echo, "max_tokens": body.max_tokens, "logprobs": body.logprobs}
    params = {name: value for name, value in params.items() if value is not None}
    asked = [body.asked(begun["id"], prompt=prompt, **params) for prompt in body.prompts]
    if body.stream:
        return await stream(server, http, body, asked, partial(_events, body, begun))
    results = await generate(server, http, asked)
    choices = [_choice(body, i, result) for i, result in enumerate(results)]
    found = begun | {"choices": choices, "usage": _usage(body, results), "timings": timings_of(results)}
    return found if body.logprobs is None else long_answer(pieces_of(found))


def _choice(body: CompletionRequest, index: int, result: Result) -> dict[str, Any]:
    echoed = result.prompt_text or "" if body.echo else ""
    return {
        "index": index,
        "text": echoed + result.text,
        "logprobs": None if body.logprobs is None else _logprobs(result.pieces, len(echoed)),
        "finish_reason": finish_reason(result),
    }


def _logprobs(tokens: tuple[Token, ...], offset: int) -> dict[str, Iterator[Any]]:
    """Tokens' log-probabilities, in the form of this endpoint; `offset` is where the first token's text begins."""
    offsets = accumulate((len(token.text) for token in tokens), initial=offset)
    return {
        "tokens": (logprob_entry(token)["token"] for token in tokens),
        "token_logprobs": (logprob_entry(token)["logprob"] for token in tokens),
        "top_logprobs": (
            {each["token"]: each["logprob"] for each in map(logprob_entry, token.top_logprobs)} for token in tokens
        ),
        "text_offset": (at for at, _ in zip(offsets, tokens, strict=False)),
    }


def _usage(body: CompletionRequest, results: list[Result]) -> dict[str, Any]:
    """The usage of all prompts together."""
    total: dict[str, Any] = {}
    for i in range(0, len(results), body.n):
        total = _sum(total, usage(results[i : i + body.n]))
    return total


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _sum(one.get(key, {}), value) if isinstance(value, dict) else one.get(key, 0) + value
        for key, value in other.items()
    }


async def _events(body: CompletionRequest, begun: dict[str, Any], pieces: Pieces) -> AsyncIterator[bytes]:
    n = len(body.prompts) * body.n
    results: dict[int, Result] = {}
    offsets = [0] * n
    counts = [StreamTimings() for _ in range(n)]
    async for index, piece in pieces:
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        found = begun | {"choices": [choice]}
        if isinstance(piece, Result):
            results[index] = piece
            choice["finish_reason"] = finish_reason(piece)
            found["timings"] = timings(piece.stats)
        elif isinstance(piece, PromptProgress):
            counts[index].add(piece)
            if not body.return_progress:
                continue
            found["prompt_progress"] = prompt_progress(piece)
        else:
            counts[index].add(piece)
            choice["text"] = piece.text
            if body.timings_per_token:
                found["timings"] = counts[index].timings()
            if body.logprobs is not None:
                choice["logprobs"] = {name: list(told) for name, told in _logprobs((piece,), offsets[index]).items()}
                offsets[index] += len(piece.text)
            if body.return_draft_origin:
                choice["draft_origin"] = draft_origin(piece)
            elif not (piece.text or choice["logprobs"]):
                continue
        yield event(found)
    if body.is_usage_streamed:
        whole = [results[i] for i in range(n)]
        yield event(begun | {"choices": [], "usage": _usage(body, whole), "timings": timings_of(whole)})
    yield event("[DONE]")
