"""`/completion`: texts that go on, in llama.cpp's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4

import attrs
from anyio import to_thread
from starlette.requests import Request

from augury.engine.sampling import SamplingParams
from augury.plugins.server.fields import draft_origin
from augury.plugins.server.generation import STREAMED, Pieces, event, generate, stream
from augury.plugins.server.json_route import api_router
from augury.plugins.server.llama_cpp.fields import CompletionFields
from augury.plugins.server.llama_cpp.prompts import Prompt, prompt_tokens
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import timings
from augury.text.tokenizer import Tokenizer
from augury.types import Result, Token, TokenLogprob

__all__ = ["CompletionRequest", "answer", "generation_settings", "router"]

router = api_router()

_LEAST_LOGPROB = -3.4028234663852886e38  # llama.cpp's word for minus infinity, which JSON has none for


class CompletionRequest(CompletionFields):
    """Prompts that are to be continued."""

    prompt: Prompt


@router.post("/completion", responses=STREAMED)
@router.post("/completions", include_in_schema=False)
async def completion(body: CompletionRequest, http: Request, server: Serving) -> Any:
    """Continue one prompt, or several: then the answer is a list."""
    prompts = await to_thread.run_sync(prompt_tokens, body.prompt, server.engine.tokenizer)
    is_list = isinstance(body.prompt, list) and len(prompts) * body.n_cmpl > 1
    return await answer(body, prompts, http, server, is_list=is_list or body.n_cmpl > 1)


async def answer(body: CompletionFields, prompts: list[list[int]], http: Request, server: Server, *, is_list: bool) -> Any:
    """Continue token ids as a body asks for it."""
    asked = body.answers(server.engine.tokenizer, prompts, f"cmpl-{uuid4().hex}")
    settings = generation_settings(server, asked[0])
    told = partial(_final, body, server, settings)
    until = _TimeLimit(body.t_max_predict_ms) if body.t_max_predict_ms > 0 else None
    if body.stream:
        n_prompts = [len(each["prompt"]) for each in asked for _ in range(each["n"])]
        return await stream(server, http, asked, partial(_events, body, n_prompts, told), until=until)
    results = await generate(server, http, asked, until)
    found = [told(index, result) for index, result in enumerate(results)]
    return found if is_list else found[0]


def generation_settings(server: Server, params: dict[str, Any]) -> dict[str, Any]:
    """What is in force for arguments of `Engine.submit`, in llama.cpp's names."""
    params = {**server.options.params, **params}
    names = [field.name for field in attrs.fields(SamplingParams) if field.name not in ("seed_offset", "mirostat_mu")]
    sampling = attrs.asdict(SamplingParams(**{name: value for name, value in params.items() if name in names}))
    limit = -1 if params.get("max_tokens") is None else params["max_tokens"]
    speculative = params.get("speculative") or server.engine.config["speculative"]
    return {name: sampling[name] for name in names} | {
        "seed": -1 if sampling["seed"] is None else sampling["seed"],
        "adaptive_target": -1.0,  # off, as it always is
        "adaptive_decay": 0.9,
        "logit_bias": [[token, _finite(bias)] for token, bias in sampling["logit_bias"].items()],
        "n_predict": limit,
        "max_tokens": limit,
        "stop": list(params.get("stop") or ()),
        "ignore_eos": params.get("ignore_eos", False),
        "n_probs": params.get("logprobs") or 0,
        "cache_prompt": params.get("cache_prompt", True),
        "grammar": params.get("grammar", ""),
        "json_schema": params.get("json_schema"),
        "speculative": speculative,
    }


def stop_type(result: Result, tokenizer: Tokenizer | None, stops: Sequence[str]) -> tuple[str, str]:
    """Why an answer ended (`eos`, `limit` or `word`), and the stop text that ended it, or nothing."""
    if result.finish_reason != "stop":
        return "limit", ""
    if stops and tokenizer is not None:
        rest = tokenizer.decode(result.tokens, continues=True).removeprefix(result.text)
        if word := next((stop for stop in stops if rest.startswith(stop)), ""):
            return "word", word
    return "eos", ""


def _final(body: CompletionFields, server: Server, settings: dict[str, Any], index: int, result: Result) -> dict[str, Any]:
    """A whole answer; at the end of a stream what had not been told."""
    stats, is_told = result.stats, not body.stream and body.n_predict != 0
    kind, word = stop_type(result, server.engine.tokenizer, body.stops)
    found: dict[str, Any] = {
        "index": index,
        "content": result.text if is_told else "",
        "tokens": list(result.tokens) if is_told and body.return_tokens else [],
        "id_slot": -1 if stats.slot is None else stats.slot,
        "stop": True,
        "model": server.options.names[0],
        "tokens_predicted": stats.n_emitted if body.n_predict != 0 else 0,
        "tokens_evaluated": stats.n_prompt,
        "generation_settings": settings,
        "prompt": result.prompt_text,
        "has_new_line": "\n" in result.text,
        "truncated": result.finish_reason == "context",
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": stats.n_prompt + stats.n_emitted - 1,
        "timings": timings(stats),
    }
    if is_told and body.n_probs:
        found["completion_probabilities"] = [_probabilities(token) for token in result.pieces]
    return found if not body.response_fields else _chosen(found, body.response_fields)


async def _events(body: CompletionFields, n_prompts: list[int], told: Any, pieces: Pieces) -> AsyncIterator[bytes]:
    counts = [_StreamTimings() for _ in n_prompts]
    async for index, piece in pieces:
        if isinstance(piece, Result):
            yield event(told(index, piece))
            continue
        count = counts[index]
        count.add(piece)
        if body.n_predict == 0:
            continue
        found: dict[str, Any] = {
            "index": index,
            "content": piece.text,
            "tokens": [piece.token],
            "stop": False,
            "tokens_predicted": count.n,
            "tokens_evaluated": n_prompts[index],
        }
        if body.timings_per_token:
            found["timings"] = count.timings()
        if body.n_probs:
            found["completion_probabilities"] = [_probabilities(piece)]
        if body.return_draft_origin:
            found["draft_origin"] = draft_origin(piece)
        yield event(found)


class _TimeLimit:
    """Ends answers that have a new line when their time is up."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._begun_at: dict[int, float] = {}
        self._has_line: set[int] = set()

    def __call__(self, index: int, token: Token) -> bool:
        passed_ms = (perf_counter() - self._begun_at.setdefault(index, perf_counter())) * 1e3
        self._has_line |= {index} if "\n" in token.text else set()
        return index in self._has_line and passed_ms > self._ms


class _StreamTimings:
    """What can be told of an answer while it streams: its tokens so far, who drafted them, and the time since the first."""

    def __init__(self) -> None:
        self.n = self._n_drafted = self._n_accepted = 0
        self._begun_at = 0.0

    def add(self, token: Token) -> None:
        self._begun_at = self._begun_at or perf_counter()
        self.n += 1
        self._n_drafted += token.n_drafted or 0
        self._n_accepted += token.drafter is not None

    def timings(self) -> dict[str, Any]:
        ms = (perf_counter() - self._begun_at) * 1e3
        return {
            "predicted_n": self.n,
            "predicted_ms": ms,
            "predicted_per_token_ms": ms / (self.n - 1) if self.n > 1 else 0.0,
            "predicted_per_second": (self.n - 1) / ms * 1e3 if self.n > 1 and ms > 0 else 0.0,
            "draft_n": self._n_drafted,
            "draft_n_accepted": self._n_accepted,
        }


def _probabilities(token: Token) -> dict[str, Any]:
    """A token's log-probability and those of the best in its place."""
    return _probability(token) | {"top_logprobs": [_probability(each) for each in token.top_logprobs]}


def _probability(each: Token | TokenLogprob) -> dict[str, Any]:
    found = each.bytes or b""
    logprob = _finite(each.logprob or 0.0)
    return {"id": each.token, "token": found.decode(errors="replace"), "bytes": list(found), "logprob": logprob}


def _finite(value: float) -> float:
    return max(value, _LEAST_LOGPROB)


def _chosen(found: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields that are wanted, by names or paths with slashes, as far as there are any."""
    chosen = {}
    for name in names:
        value: Any = found
        for part in name.split("/"):
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            chosen[name] = value
    return chosen


_MISSING = object()
