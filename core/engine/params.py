"""`RequestParams`: the keyword arguments of a request, from which type checkers, docs/options.md and its check know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np
from attrs import frozen

from augury.engine.sampling_step import SamplingStep
from augury.text.chat_template import ChatPrompt

Prompt = str | Sequence[int] | np.ndarray | ChatPrompt
Prompts = list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[np.ndarray] | Sequence[ChatPrompt]
Message = Mapping[str, Any]
TokenIds = Sequence[int] | np.ndarray


@frozen
class PromptProgress:
    """How far a request's prompt is processed."""

    n_prompt: int
    n_reused: int  # tokens that the slot still held, or that were copied from another
    n_processed: int  # those among them
    seconds: float  # since the request has a slot


class RequestParams(TypedDict, total=False):
    """The keyword arguments of `Engine.submit`, `generate`, `chat`, `stream` and `astream`: how to sample, and the rest.

    A program that passes them on says `**params: Unpack[RequestParams]`. The page of options tells what each does.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str] | None
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    mirostat_mu: float | None
    seed: int | None
    seed_offset: int
    logit_bias: Mapping[int, float] | None
    samplers: Sequence[str]

    messages: Annotated[
        Sequence[Message] | None,
        "instead of a prompt: a conversation of mappings with `role` and `content`, for the model's chat template; a last one "
        "of the role `assistant` is the answer's beginning; `content` may be missing beside `tool_calls`",
    ]
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        "with `messages`: descriptions of tools for the chat template, in the form that the model knows, as OpenAI's",
    ]
    chat_template_kwargs: Annotated[
        Mapping[str, Any] | None, 'with `messages`: variables for the chat template, such as `{"enable_thinking": false}`'
    ]
    constraint: Annotated[
        str | Mapping[str, Any] | None,
        'only texts of a [form](write-a-constraint.md): `"name:key=value"` or `{"name": {"key": value}}`',
    ]
    json_schema: Annotated[Any, "only JSON that fits a schema: a mapping, or its text"]
    regex: Annotated[str | None, "only text that matches a regular expression as a whole"]
    grammar: Annotated[str | None, "only text that a grammar describes: GBNF with a rule `root`, or Lark with a rule `start`"]
    choice: Annotated[str | Sequence[str] | None, "only one of a list of texts"]
    logits_processors: Annotated[
        Sequence[SamplingStep] | None, "callables that change rows of logits, in Python alone: see [library.md](library.md)"
    ]
    max_tokens: Annotated[int | None, "so many tokens at most; None or -1: until an end token or a full context"]
    min_tokens: Annotated[
        int | None, "until so many are emitted, end tokens are not chosen and a stop text that is complete by then is text"
    ]
    stop: Annotated[str | Sequence[str] | None, "a text or several before which the answer ends"]
    stop_token_ids: Annotated[TokenIds | set[int] | frozenset[int] | None, "end tokens beside the model's"]
    ignore_eos: Annotated[bool, "the model's end tokens are never chosen"]
    context_shift: Annotated[bool, "when the context is full, part of the text is left out, and the answer goes on"]
    n_keep: Annotated[int | None, "with `context_shift`: tokens at the beginning that are never left out; -1: the prompt"]
    n_discard: Annotated[int | None, "with `context_shift`: how many of the tokens after those are left out; 0: half of them"]
    logprobs: Annotated[
        int | None, "log-probabilities of the emitted tokens and of so many alternatives, each with its own bytes and text"
    ]
    post_sampling_probs: Annotated[bool, "with `logprobs`: those after all samplers, instead of the model's own"]
    on_prompt: Annotated[
        Callable[[PromptProgress], object] | None,
        "in Python alone: a callable that is given a `PromptProgress` when the prompt's processing begins and after each pass "
        "over it, on the engine's thread",
    ]
    hidden_states: Annotated[
        Sequence[str] | None, "the [hidden states](library.md#embeddings) to hand to `on_hidden_states`, by their names"
    ]
    on_hidden_states: Annotated[
        Callable[[int, np.ndarray, Mapping[str, np.ndarray]], object] | None,
        "in Python alone: a callable that is given the `hidden_states` of tokens once they are in the text, on the engine's "
        "thread: the first one's position, the tokens, and (m, F) float32 by name",
    ]
    echo: Annotated[bool, "the result holds the prompt's tokens and text"]
    cache_prompt: Annotated[bool, "what is held of the prompt is not processed again, and the prompt cache keeps the text"]
    prediction: Annotated[
        str | TokenIds | None, "a text or token ids that the answer will resemble, to [draft from](library.md#four-ways-to-ask)"
    ]
    emitted: Annotated[
        TokenIds | None,
        "the answer's first token ids, which any engine has emitted before: the answer goes on after them, as if all "
        "came from one request, and the result holds the rest; mirostat also needs `mirostat_mu`",
    ]
    speculative: Annotated[bool | Mapping[str, Any] | None, "false, or options by drafter as above; by default as loaded"]
    lora: Annotated[
        Sequence[Mapping[str, Any]] | None,
        'how much [adapters](library.md#adapters) count: `[{"id": 0, "scale": 0.5}]`, others not at all; None: as loaded',
    ]
    receipt: Annotated[bool, "the result holds a [receipt](receipts.md)"]
    slot: Annotated[int | None, "the slot to wait for; None: any"]
    id: Annotated[str | None, "by which results, logs and observers name the request; several may have the same"]
