"""The common parts of the answers of OpenAI's endpoints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, Literal
from uuid import uuid4

from pydantic import AliasChoices, Field

from augury.engine.stats import PromptToken
from augury.plugins.server.fields import EngineFields, Fields
from augury.plugins.server.llama_cpp.completion import generation_settings, probability, whole_answer
from augury.plugins.server.server import Server
from augury.types import Result, Token, TokenLogprob

_LEAST_LOGPROB = -9999.0  # OpenAI's word for minus infinity, which JSON has none for
BUILD = f"b{metadata.version('augury')} (augury)"
"""What answered, beginning with a b, as clients of llama.cpp expect."""


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="with include_usage: in each event, as vLLM tells it")
    include_obfuscation: Literal[False] | None = Field(default=None, description="nothing is padded")


class OpenAIFields(EngineFields):
    """Fields of chat and completions."""

    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=20, description="of the prompt's tokens, in vLLM's form")
    max_tokens: int | None = Field(
        None, ge=-1, validation_alias=AliasChoices("max_tokens", "n_predict"), description="-1: no limit, as in llama.cpp"
    )

    verbose: bool | None = Field(
        None, description="tell in `__verbose` the prompt's text, the whole output and the settings; as the server's -v says"
    )

    def is_verbose(self, server: Server) -> bool:
        """Whether the answer tells how it was made."""
        return server.options.is_verbose if self.verbose is None else self.verbose

    @property
    def is_usage_continuous(self) -> bool:
        return self.stream_options.include_usage and self.stream_options.continuous_usage_stats

    def asked(self, server: Server, name: str, **params: Any) -> dict[str, Any]:
        """The arguments of `Engine.submit` for the n answers to a prompt."""
        params = self.over(params) | {"id": name, "n": self.n} | ({"echo": True} if self.is_verbose(server) else {})
        return params | {"logit_bias": self.logit_bias} if self.logit_bias else params


def head(server: Server, kind: str, prefix: str) -> dict[str, Any]:
    """The fields that begin every answer and every event of a stream."""
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": server.options.names[0],
        "system_fingerprint": BUILD,
    }


def made_of(body: OpenAIFields, server: Server, asked: dict[str, Any], index: int, result: Result) -> dict[str, Any]:
    """What a verbose answer tells of how it was made, in llama.cpp's form; `asked` are the arguments of `Engine.submit`."""
    if not body.is_verbose(server):
        return {}
    return {"__verbose": whole_answer(server, generation_settings(server, asked), index, result)}


def finish_reason(result: Result, *, has_calls: bool = False) -> str:
    """Why an answer ended; a full context is a limit, too."""
    return "length" if result.finish_reason != "stop" else "tool_calls" if has_calls else "stop"


def usage(results: Sequence[Result], n: int, n_reasoning: int = 0) -> dict[str, Any]:
    """Tokens of a request, some of them reasoning; a prompt counts once, not with each of its `n` answers."""
    prompts = [result.stats for result in results[::n]]
    # without other drafters, which may know the predicted text from before, or a better one
    predicted = [own for each in results if (own := each.stats.drafters.get("prediction")) is not None]
    accepted = sum(each.accepted for each in predicted)
    prompt, completion = sum(each.n_prompt for each in prompts), sum(len(each.tokens) for each in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.n_reused for each in prompts)},
        "completion_tokens_details": {
            "reasoning_tokens": n_reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(each.drafted for each in predicted) - accepted,
        },
    }


def is_end(server: Server, token: Token) -> bool:
    """Whether a token is the model's word for the end, which is no part of the answer."""
    tokenizer = server.engine.tokenizer
    return tokenizer is not None and token.token in tokenizer.eog


def logprob_entry(each: Token | TokenLogprob | PromptToken, top: Iterable[TokenLogprob] | None = None) -> dict[str, Any]:
    """A token's log-probability in the form of chat, with its id, as llama.cpp has it."""
    entry = probability(each, least=_LEAST_LOGPROB)
    return entry if top is None else entry | {"top_logprobs": [logprob_entry(other) for other in top]}


def ranked(token: PromptToken, n_top: int) -> dict[int, Any] | None:
    """A token of the prompt, then the `n_top` most probable in its place, in vLLM's form."""
    if token.logprob is None:
        return None
    entries = {token.token: (token.rank, logprob_entry(token))}
    entries |= {each.token: (rank, logprob_entry(each)) for rank, each in enumerate(token.top_logprobs[:n_top], start=1)}
    return {
        i: {"logprob": each["logprob"], "rank": rank, "decoded_token": each["token"]} for i, (rank, each) in entries.items()
    }
