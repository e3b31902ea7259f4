"""A caller's request: its prompt, sampling and limits, checked."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from augury.constraint import Constraint
from augury.engine.constraint import choose_constraint
from augury.engine.sampling_step import SamplingStep
from augury.errors import OptionError, PromptTooLongError, UnsupportedError
from augury.options import check_count, nearest, similar
from augury.registry import Registry
from augury.sampling import SamplingParams, sampling_options
from augury.speculation.config import Speculation, speculative_params
from augury.text.tokenizer import Tokenizer
from augury.types import tokens_array

_FLAGS = {"ignore_eos": False, "cache_prompt": True, "echo": False, "context_shift": False, "post_sampling_probs": False}
_SAMPLING = ("logit_bias", "samplers", "dry_sequence_breakers", "seed_offset", "mirostat_mu")
_OTHERS = (
    *(*_SAMPLING, "logits_processors", "constraint", "speculative"),
    *(
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "logprobs",
        "id",
        "slot",
        "prediction",
        "n_keep",
        "n_discard",
        "on_prompt",
    ),
)
_OF_TEMPLATES = ("messages", "tools", "chat_template_kwargs")  # which the engine takes
_MOST_PREDICTED = 1 << 20  # tokens of a prediction, which need not fit into the context
_NUMBERS = itertools.count(1)  # of requests without an id, in this process


@frozen(eq=False)
class Request:
    """One prompt and how it is to be continued, by `make_request`."""

    id: str  # the caller's, or one of this process'; a name for logs and observers alone, so that two may have the same

    prompt: np.ndarray  # (p,) int32, see `checked_tokens`
    sampling: SamplingParams
    max_tokens: int | None  # None: until an end token or a full context
    min_tokens: int  # until so many are emitted end tokens are not chosen, and stop texts that they complete do not count
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]  # end tokens beside the model's
    ignore_eos: bool
    logprobs: int | None  # how many alternatives to report; 0: the emitted token's alone; None: nothing
    cache_prompt: bool
    echo: bool  # whether the result holds the prompt
    context_shift: bool  # whether it goes on where the context is full, without a part of the text
    n_keep: int  # tokens at the text's beginning that are never left out; -1: the prompt
    n_discard: int  # tokens that are left out after these; 0: half of them
    post_sampling_probs: bool  # whether log-probabilities are of the distributions after all samplers
    speculation: Speculation
    logits_processors: tuple[SamplingStep, ...] = ()
    constraint: tuple[type[Constraint], Any] | None = None  # with its options
    slot: int | None = None  # which it waits for; None: any
    prediction: np.ndarray | None = None  # (m,) int32: the expected answer, to draft from
    prompt_text: str | None = None  # the part of the prompt's text that the result has
    on_prompt: Callable[..., object] | None = None  # told how far the prompt is, by a `augury.engine.stats.PromptProgress`


def checked_tokens(prompt: Any, *, n_vocab: int, n_ctx: int) -> np.ndarray:
    """A prompt's tokens, (p,) int32, checked against a model.

    Raises:
        OptionError: They are no token ids, none at all, or outside the vocabulary.
        PromptTooLongError: They do not fit into a sequence.
    """
    tokens = _ids(prompt, "the prompt", n_vocab)
    if len(tokens) == 0:
        raise OptionError("the prompt is empty, expected at least one token; this model adds none of its own")
    if len(tokens) > n_ctx:
        raise PromptTooLongError(len(tokens), n_ctx)
    return tokens


def _ids(value: Any, name: str, n_vocab: int) -> np.ndarray:
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of different lengths
        tokens = np.empty((0, 0))
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a text or a list of token ids")
    outside = (tokens < 0) | (tokens >= n_vocab)
    if outside.any():
        raise OptionError(f"{name} holds token {tokens[outside.argmax()]}, the vocabulary has tokens 0 to {n_vocab - 1}")
    return tokens_array(tokens)


def checked_rows(rows: Any, n: int) -> np.ndarray:
    """Positions in a text of n tokens, in any order; None for all.

    Raises:
        OptionError: One is not in the text.
    """
    wanted = np.arange(n) if rows is None else np.asarray(rows).reshape(-1)
    if not len(wanted):
        wanted = wanted.astype(np.int64)  # an empty list has no type of its own
    if wanted.dtype.kind not in "iu" or ((wanted < 0) | (wanted >= n)).any():
        raise OptionError(f"rows are {wanted.tolist()}, expected 0 to {n - 1}, the positions of the tokens given")
    return wanted


def is_several(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts."""
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and not isinstance(prompt[0], int | np.integer)


def make_requests(
    prompt: np.ndarray, params: Mapping[str, Any], *, n: int | None, text: str | None, make: Callable[..., Request]
) -> list[Request]:
    """Requests for n answers to one prompt: a seed that is given is followed by the next ones.

    Args:
        prompt: As in `make_request`.
        params: As in `make_request`.
        n: How many; None: one.
        text: The prompt as it was given, if that was a text.
        make: `make_request` with all that all requests of an engine have in common; its errors are raised.
    """
    requests = list[Request]()
    for i in range(1 if n is None else check_count("n", n)):
        seed = requests[0].sampling.seed if i else None
        request = make(prompt, params if seed is None else {**params, "seed": (seed + i) % 2**64}, text=text)
        if i:  # the prompt is processed for the first of them
            request = attrs.evolve(request, on_prompt=None)
        requests.append(request)
    return requests


def make_request(
    prompt: np.ndarray,
    params: Mapping[str, Any],
    *,
    speculation: Speculation,
    n_vocab: int,
    n_slots: int = 1,
    registry: Registry,
    tokenizer: Tokenizer | None = None,
    text: str | None = None,
) -> Request:
    """A request from checked token ids and the keyword arguments of `generate` and `stream`.

    Args:
        prompt: See `checked_tokens`.
        params: Those of `augury.sampling.SamplingParams`;
            `max_tokens` (None or -1: until an end token or a full context), `min_tokens` (before so many neither end tokens nor
            stop texts end it), `stop` (a text or several), `stop_token_ids`, `ignore_eos`, `context_shift` (where the context
            is full, leave out `n_discard` tokens after the text's first `n_keep` ones, and go on; -1 keeps the prompt, 0 leaves
            out half of the rest);
            `logits_processors` (callables, see `augury.engine.sampling_step.SamplingStep`), `constraint` ("name:key=value" or
            {"name": {"key": value}}, see `augury.constraint.Constraint`);
            `logprobs` (None, or how many alternatives), `post_sampling_probs` (they are of the distributions after all
            samplers), `echo` (the result holds the prompt); `on_prompt` (a callable that is given a `PromptProgress` when the
            prompt's processing begins, and after each of its passes, on the engine's thread);
            `cache_prompt` (reuse a slot's contents), `slot` (wait for this one; None: any);
            `speculative` (a bool, or {"n_max", "n_min", "p_min", "type", NAME: {...}}), `prediction` (a text or token ids that
            the answer is expected to resemble, to draft from);
            `id` (a text by which results, logs and observers name the request; several may have the same, and without one it
            is made: req-1, req-2, ...).
        speculation: The engine's settings.
        n_vocab: V.
        n_slots: The number of slots of the engine.
        registry: It has the constraints.
        tokenizer: The model's, or None.
        text: The prompt as it was given, if that was a text.

    Raises:
        OptionError: An argument is unknown, has the wrong type or is out of range.
        UnsupportedError: It needs a tokenizer, and there is none.
    """
    rest = dict(params)
    names = (*sampling_options(), *_SAMPLING)
    sampling = SamplingParams(**{key: rest.pop(key) for key in names if key in rest})
    constraint = choose_constraint(registry, rest)
    prediction = _prediction(rest.pop("prediction", None), tokenizer, n_vocab)
    drafts_from = {"constraint": constraint, "prediction": prediction}
    speculation = speculation.serving([name for name, given in drafts_from.items() if given is not None])
    speculation = speculation.override(speculative_params(rest))
    if constraint is not None and speculation.synthetic:
        raise OptionError("synthetic acceptance emits tokens that a constraint forbids; leave one of the two out")
    processors = rest.pop("logits_processors", None) or ()
    if not isinstance(processors, list | tuple) or not all(callable(each) for each in processors):
        raise OptionError(f"logits_processors is {reprlib.repr(processors)}, expected a list of callables")
    max_tokens = rest.pop("max_tokens", None)
    max_tokens = None if max_tokens == -1 else _count(max_tokens, "max_tokens", at_least=1)
    min_tokens = _count(rest.pop("min_tokens", None), "min_tokens", at_least=0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise OptionError(f"min_tokens is {min_tokens}, expected at most max_tokens, which is {max_tokens}")
    n_keep = _count(rest.pop("n_keep", None), "n_keep", at_least=-1) or 0
    n_discard = _count(rest.pop("n_discard", None), "n_discard", at_least=0) or 0
    on_prompt = rest.pop("on_prompt", None)
    if on_prompt is not None and not callable(on_prompt):
        raise OptionError(f"on_prompt is {reprlib.repr(on_prompt)}, expected a callable")
    logprobs = _count(rest.pop("logprobs", None), "logprobs", at_least=0)
    stop = rest.pop("stop", ())
    stops = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(each, str) and each for each in stops):
        raise OptionError(f"stop is {stop!r}, expected a text or a list of texts that are not empty")
    if stops and tokenizer is None:
        raise UnsupportedError("stop needs texts, but this model has no tokenizer that augury can read; use max_tokens")
    if "infill" in sampling.samplers and tokenizer is None:
        raise UnsupportedError("sampler infill looks at texts, but this model has no tokenizer that augury can read")
    flags: dict[str, Any] = {key: _flag(rest.pop(key, default), key) for key, default in _FLAGS.items()}
    if flags["echo"] and text is None:
        text = "" if tokenizer is None else tokenizer.decode(prompt.tolist(), skip_special=False)
    name = rest.pop("id", None)
    if name is not None and (not isinstance(name, str) or not name):
        raise OptionError(f"id is {reprlib.repr(name)}, expected a text that is not empty")
    slot = _count(rest.pop("slot", None), "slot", at_least=0)
    if slot is not None and slot >= n_slots:
        raise OptionError(f"slot is {slot}, expected 0 to {n_slots - 1}, or None for any")
    ends = _token_ids(rest.pop("stop_token_ids", None), "stop_token_ids", n_vocab)
    if rest:
        keywords = (each.keyword for each in registry.constraints.values() if each.keyword is not None)
        known = {*sampling_options(), *_OTHERS, *_OF_TEMPLATES, *flags, *keywords}
        key = next(iter(rest))
        listed = known if similar(key, known) else known - {"logits_processors", "on_prompt"}  # which JSON cannot say
        raise OptionError(f"there is no parameter {key!r}{nearest(key, listed)}")
    return Request(
        name or f"req-{next(_NUMBERS)}",
        prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        n_keep=n_keep,
        n_discard=n_discard,
        on_prompt=on_prompt,
        stop=tuple(stops),
        stop_token_ids=ends,
        logprobs=logprobs,
        speculation=speculation,
        logits_processors=tuple(processors),
        constraint=constraint,
        slot=slot,
        prediction=prediction,
        prompt_text=text if flags["echo"] else None,
        **flags,
    )


def _prediction(value: Any, tokenizer: Tokenizer | None, n_vocab: int) -> np.ndarray | None:
    if isinstance(value, str):
        if tokenizer is None:
            raise UnsupportedError("prediction is a text, but this model has no tokenizer that augury can read; give token ids")
        value = tokenizer.encode(value, add_special=False, parse_special=True, n_most=_MOST_PREDICTED)
    return None if value is None else _ids(value, "prediction", n_vocab)


def _token_ids(value: Any, name: str, n_vocab: int) -> frozenset[int]:
    ids = () if value is None else value
    if not isinstance(ids, list | tuple | set | frozenset | np.ndarray) or not all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < n_vocab for each in ids
    ):
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a list of token ids from 0 to {n_vocab - 1}")
    return frozenset(int(each) for each in ids)


def _count(value: Any, name: str, *, at_least: int) -> int | None:
    return None if value is None else check_count(name, value, at_least)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}, expected true or false")
    return value
