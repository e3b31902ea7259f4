"""`/completion`: texts that go on, in llama.cpp's form, and `/infill`: the text between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from math import exp, inf, isfinite
from sys import float_info
from time import perf_counter
from typing import Annotated, Any
from uuid import uuid4

import attrs
from anyio import to_thread
from pydantic import AliasChoices, Field
from starlette.requests import Request

from augury.engine.params import PromptProgress
from augury.engine.stats import PromptToken
from augury.errors import OptionError
from augury.plugins.server.conversation import Prompt, mixed_tokens, prompt_tokens
from augury.plugins.server.errors import RequestError
from augury.plugins.server.event_stream import STREAMED, event, stream
from augury.plugins.server.fields import EngineFields, Fields, draft_origin
from augury.plugins.server.generation import Pieces, check_texts, generate
from augury.plugins.server.json_route import api_router, long_answer, pieces_of
from augury.plugins.server.server import Server, Serving
from augury.plugins.server.timings import counted, end_figures
from augury.sampling import SamplingParams
from augury.text.tokenizer import Tokenizer
from augury.types import Result, Token, TokenLogprob

router = api_router()

_LEAST_LOGPROB = -3.4028234663852886e38  # llama.cpp's word for minus infinity, which JSON has none for
_MISSING = object()
_MOST_OF_BIAS = 1000  # characters of a text whose tokens have a bias
_NEEDED = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
_REPOSITORY = "myproject\n"  # llama.cpp's default names of it, and of the file that is written
_FILE = "filename\n"
_SHARE = 8  # of the context is left for an answer without a limit
_SNIPPET = "\n\n--- snippet ---\n\n"  # before each text of a model without a token for that
_Bias = Annotated[list[int | float | bool | str], Field(min_length=2, max_length=2)]


class CompletionFields(EngineFields):
    """The fields of a completion beside its prompt."""

    temperature: float | None = Field(None, le=1e6, description="0 and all below is greedy, as in llama.cpp")
    stream: bool = False
    n_predict: int | None = Field(
        None, ge=-2, validation_alias=AliasChoices("n_predict", "max_tokens", "max_completion_tokens")
    )
    n_cmpl: int = Field(1, ge=1, le=128, validation_alias=AliasChoices("n_cmpl", "n"))
    n_probs: int = Field(0, ge=0, le=1000, validation_alias=AliasChoices("n_probs", "logprobs"))
    logit_bias: list[_Bias] | dict[str, float | bool] | None = None
    t_max_predict_ms: int = Field(
        0, ge=-1, description="after so long, counted from the first token, a new line ends the answer"
    )
    n_indent: int = Field(
        0, ge=0, description="a line but the first that begins with fewer spaces and tabs ends the answer before its text"
    )
    return_tokens: bool = False
    response_fields: list[str] | None = None

    def answers(self, tokenizer: Tokenizer | None, prompts: list[list[int]], name: str) -> list[dict[str, Any]]:
        """The arguments of `Engine.submit` for each prompt, with `n` answers.

        Raises:
            OptionError: A field is wrong in a way that only the model shows.
        """
        params = self.engine_params() | {"id": name, "echo": True}
        if self.temperature is not None:
            params["temperature"] = max(self.temperature, 0.0)
        if not self.grammar:  # an empty one is none
            params.pop("grammar", None)
        if self.n_predict is not None:  # none at all: one is asked for, so that the prompt is processed, and not told
            params["max_tokens"] = None if self.n_predict < 0 else max(self.n_predict, 1)
        if self.stop is not None:
            params["stop"] = self.stops
        if self.logit_bias:
            params["logit_bias"] = biases(self.logit_bias, tokenizer)
        params |= {"logprobs": self.n_probs} if self.n_probs else {}
        return [{"prompt": prompt, "n": self.n_cmpl, **params} for prompt in prompts]

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return [each for each in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if each]


class CompletionRequest(CompletionFields):
    """Prompts that are to be continued."""

    prompt: Prompt


@router.post("/completion", responses=STREAMED)
@router.post("/completions", include_in_schema=False)
async def completion(body: CompletionRequest, http: Request, server: Serving) -> Any:
    """Continue one prompt, or several: then the answer is a list."""
    prompts = await to_thread.run_sync(prompt_tokens, body.prompt, server.engine.tokenizer, server.engine.config["n_ctx"])
    is_list = isinstance(body.prompt, list) and len(prompts) * body.n_cmpl > 1
    return await answer(body, prompts, http, server, is_list=is_list or body.n_cmpl > 1)


async def answer(body: CompletionFields, prompts: list[list[int]], http: Request, server: Server, *, is_list: bool) -> Any:
    """Continue token ids as a body asks for it."""
    check_texts(prompts)
    # texts of biases are encoded, which may take too long for the event loop
    asked = await to_thread.run_sync(body.answers, server.engine.tokenizer, prompts, f"cmpl-{uuid4().hex}")
    settings = generation_settings(server, asked[0]) | {"stream": body.stream, "timings_per_token": body.timings_per_token}
    final = partial(_final, body, server, settings)
    has_limits = body.n_indent > 0 or body.t_max_predict_ms > 0
    until = _LineLimits(body.n_indent, body.t_max_predict_ms) if has_limits else None
    if body.stream:
        n_prompts = [len(each["prompt"]) for each in asked for _ in range(each["n"])]
        return await stream(server, http, body, asked, partial(_events, body, n_prompts, final), until=until)
    results = await generate(server, http, asked, until)
    found = [final(index, result) for index, result in enumerate(results)]
    whole = found if is_list else found[0]
    return long_answer(pieces_of(whole)) if body.n_probs else whole


def generation_settings(server: Server, params: dict[str, Any]) -> dict[str, Any]:
    """The settings in force for arguments of `Engine.submit`, in llama.cpp's names."""
    params = {**server.options.params, **params}
    names = [field.name for field in attrs.fields(SamplingParams) if field.name not in ("seed_offset", "mirostat_mu")]
    sampling = attrs.asdict(SamplingParams(**{name: value for name, value in params.items() if name in names}))
    limit = -1 if params.get("max_tokens") is None else params["max_tokens"]
    biases = dict(sampling["logit_bias"])
    if params.get("ignore_eos") and server.engine.tokenizer is not None:
        biases |= dict.fromkeys(sorted(server.engine.tokenizer.eog), -inf)
    stop = params.get("stop") or ()
    speculative = params.get("speculative") or server.engine.config["speculative"]
    return {name: sampling[name] for name in names} | {
        "seed": -1 if sampling["seed"] is None else sampling["seed"],
        "adaptive_target": -1.0,  # off, as it always is
        "adaptive_decay": 0.9,
        "min_keep": 0,
        "lora": params.get("lora") or [],
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "backend_sampling": False,
        "logit_bias": [{"token": token, "bias": bias if isfinite(bias) else None} for token, bias in biases.items()],
        "n_predict": limit,
        "max_tokens": limit,
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "ignore_eos": params.get("ignore_eos", False),
        "n_keep": params.get("n_keep", 0),
        "n_discard": params.get("n_discard", 0),
        "post_sampling_probs": params.get("post_sampling_probs", False),
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


def whole_answer(server: Server, settings: dict[str, Any], index: int, result: Result) -> dict[str, Any]:
    """An answer in llama.cpp's form, without its token ids."""
    stats = result.stats
    kind, word = stop_type(result, server.engine.tokenizer, settings["stop"])
    return {
        "index": index,
        "content": result.text,
        "tokens": [],
        "id_slot": -1 if stats.slot is None else stats.slot,
        "stop": True,
        "model": server.options.names[0],
        "tokens_predicted": stats.n_emitted,
        "tokens_evaluated": stats.n_prompt,
        "generation_settings": settings,
        "prompt": result.prompt_text,
        "has_new_line": "\n" in result.text,
        "truncated": result.finish_reason == "context" or stats.n_shifts > 0,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_cached": stats.n_prompt + stats.n_emitted - 1,
        **end_figures([result]),
    }


def _final(body: CompletionFields, server: Server, settings: dict[str, Any], index: int, result: Result) -> dict[str, Any]:
    """A whole answer; at the end of a stream the rest of it."""
    found, is_read = whole_answer(server, settings, index, result), not body.stream and body.n_predict != 0
    if not is_read:
        found["content"] = ""
    elif body.return_tokens:
        found["tokens"] = list(result.tokens)
    if body.n_predict == 0:
        found["tokens_predicted"] = 0
    if is_read and body.n_probs:
        found["completion_probabilities"] = (_probabilities(token, body) for token in result.pieces)
    return found if not body.response_fields else _chosen(found, body.response_fields)


async def _events(body: CompletionFields, n_prompts: list[int], final: Any, pieces: Pieces) -> AsyncIterator[bytes]:
    async for index, piece, count in counted(body, pieces):
        if isinstance(piece, Result):
            yield event(final(index, piece))
            continue
        found: dict[str, Any] = {
            "index": index,
            "content": "",
            "tokens": [],
            "stop": False,
            "tokens_predicted": count.n,
            "tokens_evaluated": n_prompts[index],
        }
        if body.timings_per_token:
            found["timings"] = count.timings()
        if isinstance(piece, PromptProgress):
            yield event(found | count.asked_figures(body, piece))
            continue
        if body.n_predict == 0:
            continue
        found |= {"content": piece.text, "tokens": [piece.token]}
        if body.n_probs:
            found["completion_probabilities"] = [_probabilities(piece, body)]
        if body.return_draft_origin:
            found["draft_origin"] = draft_origin(piece)
        yield event(found)


class _LineLimits:
    """Ends answers with a new line when their time is up, and before the text of a line that is indented too little."""

    def __init__(self, n_indent: int, ms: int) -> None:
        self._n_indent, self._ms = n_indent, ms
        self._begun_at: dict[int, float] = {}
        self._indents: dict[int, int] = {}  # by answer: how far its line is indented, before that has a text

    def __call__(self, index: int, token: Token) -> int | None:
        passed_ms = (perf_counter() - self._begun_at.setdefault(index, perf_counter())) * 1e3
        for at, char in enumerate(token.text if self._n_indent else ""):
            if index in self._indents:
                if char in " \t":
                    self._indents[index] += 1
                    continue
                if self._indents.pop(index) < self._n_indent:
                    return at
            if char == "\n":
                self._indents[index] = 0
        return len(token.text) if "\n" in token.text and 0 < self._ms < passed_ms else None


def _probabilities(token: Token, body: CompletionFields) -> dict[str, Any]:
    """A token's probability and those of the best in its place: before sampling their logarithms."""
    word = "prob" if body.post_sampling_probs else "logprob"
    return probability(token, word) | {f"top_{word}s": [probability(each, word) for each in token.top_logprobs]}


def probability(
    each: Token | TokenLogprob | PromptToken, word: str = "logprob", least: float = _LEAST_LOGPROB
) -> dict[str, Any]:
    """A token and its log-probability, `least` in place of minus infinity, or its `prob`."""
    found, logprob = each.bytes or b"", max(each.logprob or 0.0, least)
    value = exp(logprob) if word == "prob" else logprob
    return {"id": each.token, "token": found.decode(errors="replace"), "bytes": list(found), word: value}


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


def biases(given: list[Any] | dict[str, Any], tokenizer: Tokenizer | None) -> dict[int, float]:
    """Numbers added to tokens' logits: a text stands for each of its tokens, false forbids them.

    Raises:
        OptionError: There is a text, but no tokenizer, or a bias is true.
    """
    found: dict[int, float] = {}
    for key, bias in given.items() if isinstance(given, dict) else given:
        if bias is True or isinstance(bias, str) or abs(bias) > float_info.max or isinstance(key, float | bool):
            raise OptionError(f"logit_bias holds {[key, bias]}, expected a token or text, and a number, or false to forbid it")
        token = int(key) if isinstance(given, dict) and key.isdecimal() else key
        if isinstance(token, int):
            tokens = [token]
        elif tokenizer is None:
            raise OptionError("logit_bias names a text, but this model has no tokenizer that augury can read; give token ids")
        else:
            if len(token) > _MOST_OF_BIAS:
                raise OptionError(f"logit_bias names a text of {len(token)} characters, expected {_MOST_OF_BIAS} at most")
            tokens = tokenizer.encode(token, add_special=False)
        found |= dict.fromkeys(tokens, float("-inf") if bias is False else float(bias))
    return found


class Extra(Fields):
    """Another file, for context."""

    text: str
    filename: str = "tmp"
    time: Any = Field(None, description="when an editor collected it; without effect, as in llama.cpp")


class InfillRequest(CompletionFields):
    """A text with a gap."""

    input_prefix: str | list[int | str]
    input_suffix: str | list[int | str]
    input_extra: list[Extra] = Field(default_factory=list)
    prompt: str = ""


@router.post("/infill", responses=STREAMED)
async def infill(body: InfillRequest, http: Request, server: Serving) -> Any:
    """Fill a gap."""
    return await answer(body, [await infill_prompt(body, server)], http, server, is_list=body.n_cmpl > 1)


async def infill_prompt(body: InfillRequest, server: Server) -> list[int]:
    """The prompt for a gap, with room for the answer. Raises RequestError: the model cannot fill gaps."""
    tokenizer, n_ctx = server.engine.tokenizer, server.engine.config["n_ctx"]
    limit = server.options.params.get("max_tokens") if body.n_predict is None else body.n_predict
    if tokenizer is None or (missing := [word for name, word in _NEEDED.items() if name not in tokenizer.fim]):
        lacks = "tokenizer" if tokenizer is None else f"token for the {', the '.join(missing)} of a gap"
        raise RequestError(501, f"infill is not supported by this model: it has no {lacks}; use /completion")
    n_answer = n_ctx // _SHARE if limit is None or limit < 0 else limit
    return await to_thread.run_sync(infill_tokens, body, tokenizer, n_ctx - n_answer)


def infill_tokens(body: InfillRequest, tokenizer: Tokenizer, n_ctx: int) -> list[int]:
    """The prompt: other files, the prefix with the middle's beginning, and the suffix.

    Tokens beyond n_ctx are left out: first the oldest of the other files, then the beginning of the prefix and
    the end of the suffix, of which a quarter is kept at most.

    Raises:
        UnsupportedError: A text holds half of a surrogate pair.
    """
    fim = tokenizer.fim

    def encode(text: Any, *, parse_special: bool = False) -> list[int]:
        return mixed_tokens(text, tokenizer, add_special=False, parse_special=parse_special)

    extra = [fim["rep"], *encode(_REPOSITORY)] if "rep" in fim else []
    for each in body.input_extra:
        before = [fim["sep"], *encode(f"{each.filename}\n")] if "sep" in fim else encode(_SNIPPET)
        extra += [*before, *encode(each.text)]
    extra += [fim["sep"], *encode(_FILE)] if "sep" in fim else []
    prefix, suffix, middle = encode(body.input_prefix), encode(body.input_suffix), encode(body.prompt, parse_special=True)
    bos = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
    n_left = max(n_ctx - len(bos) - 3 - len(middle), 0)
    suffix = suffix[: max(n_left // 4, n_left - len(prefix))]
    prefix = prefix[max(len(prefix) - (n_left - len(suffix)), 0) :]
    n_extra = n_left - len(suffix) - len(prefix)
    kept = extra[-n_extra:] if n_extra > 0 else []
    return [*kept, *bos, fim["pre"], *prefix, *middle, fim["suf"], *suffix, fim["mid"]]
