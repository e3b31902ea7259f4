"""`/v1/completions`: texts that go on."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any

from pydantic import Field
from starlette.requests import Request

from augury.engine.stats import PromptToken
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import draft_origin
from augury.plugins.server.generation import Pieces, check_texts, generate, score
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.llama_cpp.completion import InfillRequest, infill_prompt
from augury.plugins.server.openai.answer import OpenAIFields, finish_reason, head, logprob_entry, made_of, ranked, usage
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import counted, end_figures
from augury.types import Result, Summary, Token

router = api_router()


class CompletionRequest(OpenAIFields):
    """Prompts that are to be continued: a text, token ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool = False
    suffix: str | None = Field(None, description="what follows the answer, which fills the gap, for models that can")
    best_of: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def n_scored(self) -> int | None:
        """How many alternatives to the prompt's tokens are wanted; None: their log-probabilities are not."""
        return max((n for n in (self.logprobs if self.echo else None, self.prompt_logprobs) if n is not None), default=None)

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
    if body.n_scored is None and body.max_tokens == 0:
        raise RequestError(400, "max_tokens is 0, which needs prompt_logprobs, or echo with logprobs", param="max_tokens")
    if body.n_scored is not None and body.stream:
        message = "the prompt's log-probabilities (prompt_logprobs, or echo with logprobs) cannot be streamed; leave out stream"
        raise RequestError(400, message, param="stream")
    if body.suffix and (body.echo or body.n_scored is not None):
        message = (
            "suffix with echo or prompt_logprobs, expected one of them: the prompt of a gap is other tokens; leave out suffix"
        )
        raise RequestError(400, message, param="suffix")
    check_texts(body.prompts)
    begun = head(server, "text_completion", "cmpl")
    params = {"echo": body.echo, "max_tokens": body.max_tokens, "logprobs": body.logprobs}
    params = {name: value for name, value in params.items() if value is not None}
    prompts = [await _with_suffix(body, prompt, server) for prompt in body.prompts]
    asked = [body.asked(server, begun["id"], prompt=prompt, **params) for prompt in prompts]
    if body.stream:
        return await stream(server, http, body, asked, partial(_events, body, server, begun, asked))
    scored = [] if body.n_scored is None else await score(server, http, body.prompts, body.n_scored)
    if body.max_tokens == 0:
        results = [_nothing(server, *each) for each in zip(body.prompts, scored, strict=True) for _ in range(body.n)]
    else:
        results = await generate(server, http, asked)
    choices = [_choice(body, i, each, scored[i // body.n] if scored else []) for i, each in enumerate(results)]
    found = begun | {"choices": choices, "usage": usage(results, body.n)} | end_figures(results)
    found |= made_of(body, server, asked[0], 0, results[0])
    return found if body.logprobs is None and body.n_scored is None else long_answer(pieces_of(found))


async def _with_suffix(body: CompletionRequest, prompt: Any, server: Server) -> Any:
    """The prompt of a gap, or the prompt as it stands where nothing is to follow it."""
    if not body.suffix:
        return prompt
    before = prompt if isinstance(prompt, list) else [prompt]
    gap = InfillRequest(input_prefix=before, input_suffix=body.suffix, n_predict=body.max_tokens)
    return await infill_prompt(gap, server)


def _nothing(server: Server, given: str | list[int], prompt: list[PromptToken]) -> Result:
    """The result of a request for no tokens."""
    tokenizer, text = server.engine.tokenizer, given if isinstance(given, str) else ""
    if tokenizer is not None and not isinstance(given, str):
        text = tokenizer.decode(given, skip_special=False)
    return Result((), "", "length", Summary(n_prompt=len(prompt)), prompt_text=text)


def _choice(body: CompletionRequest, index: int, result: Result, prompt: list[PromptToken]) -> dict[str, Any]:
    echoed = result.prompt_text or "" if body.echo else ""
    choice: dict[str, Any] = {
        "index": index,
        "text": echoed + result.text,
        "logprobs": None,
        "finish_reason": finish_reason(result),
    }
    if body.logprobs is not None:
        before = prompt if body.echo else []
        offsets = [*_offsets(before, echoed), *_starts((token.text for token in result.pieces), len(echoed))]
        choice["logprobs"] = _logprobs((*before, *result.pieces), offsets, body.logprobs)
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = (ranked(token, body.prompt_logprobs) for token in prompt)
    return choice


def _logprobs(tokens: Sequence[Token | PromptToken], offsets: Iterable[int], n_top: int) -> dict[str, Iterator[Any]]:
    """Tokens' log-probabilities, in the form of this endpoint; `offsets` are where their texts begin."""
    return {
        "tokens": (logprob_entry(token)["token"] for token in tokens),
        "token_logprobs": (None if token.logprob is None else logprob_entry(token)["logprob"] for token in tokens),
        "top_logprobs": (
            None
            if token.logprob is None
            else {each["token"]: each["logprob"] for each in map(logprob_entry, token.top_logprobs[:n_top])}
            for token in tokens
        ),
        "text_offset": islice(offsets, len(tokens)),
    }


def _starts(texts: Iterable[str], offset: int) -> Iterator[int]:
    """Where texts that follow each other begin, and where the last ends."""
    return accumulate(map(len, texts), initial=offset)


def _offsets(tokens: Sequence[PromptToken], text: str) -> list[int]:
    """Where tokens begin in the prompt's text. One that goes on with a character begins before it, as that does."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(token.bytes or b"") for token in tokens]
    begin = max("".join(pieces).rfind(text), 0)  # after the tokenizer's additions before it: control tokens, a space
    return [min(max(at - begin, 0), len(text)) for at, _ in zip(_starts(pieces, 0), tokens, strict=False)]


async def _events(
    body: CompletionRequest, server: Server, begun: dict[str, Any], asked: list[dict[str, Any]], pieces: Pieces
) -> AsyncIterator[bytes]:
    n = len(body.prompts) * body.n
    results: dict[int, Result] = {}
    offsets = [0] * n
    async for index, piece, count in counted(body, pieces):
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        found = begun | {"choices": [choice]} | count.asked_figures(body, piece)
        if isinstance(piece, Result):
            results[index] = piece
            choice["finish_reason"] = finish_reason(piece)
            found |= end_figures([piece]) | made_of(body, server, asked[index // body.n], index, piece)
        elif isinstance(piece, Token):
            choice["text"] = piece.text
            if body.logprobs is not None:
                choice["logprobs"] = {
                    name: list(values) for name, values in _logprobs((piece,), [offsets[index]], body.logprobs).items()
                }
                offsets[index] += len(piece.text)
            if body.return_draft_origin:
                choice["draft_origin"] = draft_origin(piece)
            elif not (piece.text or choice["logprobs"]):
                continue
        yield event(found)
    if body.stream_options.include_usage:
        whole = [results[i] for i in range(n)]
        yield event(begun | {"choices": [], "usage": usage(whole, body.n)} | end_figures(whole))
    yield event("[DONE]")
