"""A caller's request: its prompt, sampling and limits, checked."""

from __future__ import annotations

import itertools
import reprlib
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import numpy as np
from attrs import Converter, field, frozen

from augury.constraint import Constraint
from augury.engine.adapters import Adapters, Scales
from augury.engine.constraint import choose_constraint
from augury.engine.params import RequestParams
from augury.engine.sampling_step import SamplingStep
from augury.errors import OptionError, PromptTooLongError, UnsupportedError
from augury.options import check_count, nearest, similar
from augury.registry import Registry
from augury.sampling import SamplingParams
from augury.speculation.config import Speculation, speculative_params
from augury.speculation.verification import Match, Synthetic
from augury.text.tokenizer import Tokenizer
from augury.types import tokens_array

_MOST_PREDICTED = 1 << 20  # tokens of a prediction, which need not fit into the context
_NUMBERS = itertools.count(1)  # of requests without an id, in this process


def _given(check: Callable[[str, Any], Any], default: Any = None) -> Any:
    """A field that callers give by name; `check` is given its name and value, and returns what is kept."""
    return field(default=default, converter=Converter(lambda value, each: check(each.name, value), takes_field=True))


def _count(least: int, default: int | None = None) -> Any:
    return _given(lambda name, value: default if value is None else check_count(name, value, least), default)


def _flag(*, default: bool = False) -> Any:
    return _given(_checked_flag, default)


def _checked_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}, expected true or false")
    return value


def _checked_id(name: str, value: Any) -> str:
    if value is not None and not (isinstance(value, str) and value):
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a text that is not empty")
    return value or f"req-{next(_NUMBERS)}"


def _several(expected: str, fits: Callable[[Any], object], *, may_be_one: bool = False) -> Any:
    """A field of several values that fit, or of one text."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        found = (value,) if may_be_one and isinstance(value, str) else () if value is None else value
        if not isinstance(found, list | tuple) or not all(map(fits, found)):
            raise OptionError(f"{name} is {reprlib.repr(value)}, expected {expected}")
        return tuple(found)

    return _given(check, ())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _checked_callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a callable")
    return value


@frozen(eq=False, kw_only=True)
class Request:
    """One prompt and how it is to be continued, by `make_request`; see `RequestParams`."""

    prompt: np.ndarray  # (p,) int32, see `checked_tokens`
    sampling: SamplingParams
    speculation: Speculation
    constraint: tuple[type[Constraint], Any] | None = None  # with its options
    prediction: np.ndarray | None = None  # (m,) int32: the expected answer, to draft from
    emitted: np.ndarray | None = None  # (e,) int32: the beginning of the answer, which is known
    stop_token_ids: frozenset[int] = frozenset()  # end tokens beside the model's
    prompt_text: str | None = None  # the part of the prompt's text that the result has
    scales: Scales = ()  # how much each adapter counts
    receipt: Mapping[str, Any] | None = None  # the fields of a `Receipt` that are known before; None: none is asked for

    id: str = _given(_checked_id)
    max_tokens: int | None = _given(lambda name, value: None if value in (None, -1) else check_count(name, value))
    min_tokens: int = _count(0, 0)
    stop: tuple[str, ...] = _several(
        "a text or a list of texts that are not empty", lambda each: _is_text(each) and each, may_be_one=True
    )
    ignore_eos: bool = _flag()
    logprobs: int | None = _count(0)  # 0: the emitted token's alone
    post_sampling_probs: bool = _flag()
    cache_prompt: bool = _flag(default=True)
    echo: bool = _flag()
    context_shift: bool = _flag()
    n_keep: int = _count(-1, 0)
    n_discard: int = _count(0, 0)
    logits_processors: tuple[SamplingStep, ...] = _several("a list of callables", callable)
    slot: int | None = _count(0)
    on_prompt: Callable[..., object] | None = _given(_checked_callable)  # noqa: RUF009 - as attrs' own `field`
    hidden_states: tuple[str, ...] = _several("a list of names", _is_text)
    on_hidden_states: Callable[..., object] | None = _given(_checked_callable)  # noqa: RUF009 - likewise

    @property
    def lora(self) -> list[dict[str, Any]]:
        """The scales as `RequestParams` have them; empty of a model without adapters."""
        return Adapters.listed(self.scales)

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError(f"min_tokens is {self.min_tokens}, expected at most max_tokens, which is {self.max_tokens}")
        if bool(self.hidden_states) != (self.on_hidden_states is not None):
            raise OptionError("hidden_states names what on_hidden_states is given; give both or neither")


_OF_SAMPLING = attrs.fields_dict(SamplingParams)
_GIVEN = {each.name for each in attrs.fields(Request) if each.converter is not None}
_KNOWN = RequestParams.__annotations__.keys()
_OF_PYTHON = {"logits_processors", "on_prompt", "hidden_states", "on_hidden_states"}


def checked_tokens(prompt: Any, n_vocab: int, *, n_ctx: int | None) -> np.ndarray:
    """A prompt's tokens, (p,) int32. Raises OptionError: there are none, or others than a vocabulary's.

    Raises PromptTooLongError: they do not fit into a sequence of `n_ctx`; None: any number does.
    """
    tokens = _ids(prompt, "the prompt", n_vocab)
    if len(tokens) == 0:
        raise OptionError("the prompt is empty, expected at least one token; this model adds none of its own")
    if n_ctx is not None and len(tokens) > n_ctx:
        raise PromptTooLongError(len(tokens), n_ctx)
    return tokens


def is_several(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts."""
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and not isinstance(prompt[0], int | np.integer)


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
    adapters: Adapters | None = None,
    features: Collection[str] = (),
) -> Request:
    """A request from checked token ids and `RequestParams`; `text` is the prompt as it was given, if that was a text.

    Raises OptionError: an argument is unknown, has the wrong type or is out of range. UnsupportedError: there is no tokenizer.
    """
    rest = dict(params)
    sampling = SamplingParams(**{key: rest.pop(key) for key in _OF_SAMPLING if key in rest})
    constraint = choose_constraint(registry, rest)
    prediction = _prediction(rest.pop("prediction", None), tokenizer, n_vocab)
    drafts_from = {"constraint": constraint, "prediction": prediction}
    speculation = speculation.serving([name for name, given in drafts_from.items() if given is not None])
    speculation = speculation.override(speculative_params(rest))
    if constraint is not None and isinstance(speculation.rule, Synthetic):  # which would emit what the constraint forbids
        speculation = attrs.evolve(speculation, rule=Match())
    if "infill" in sampling.samplers and tokenizer is None:
        raise UnsupportedError("sampler infill looks at texts, but this model has no tokenizer that augury can read")
    scales = (adapters or Adapters()).choose(rest.pop("lora", None))
    receipt = rest.pop("receipt", None)
    if receipt is not None:
        if speculation.rule.depends_on_draft or isinstance(speculation.rule, Synthetic):
            raise OptionError(
                "a receipt is of tokens that depend on no drafts; leave it out, or the acceptance that is not exact"
            )
        sampling = sampling if sampling.seed is not None else attrs.evolve(sampling, seed=secrets.randbits(63))
    emitted = None if (given := rest.pop("emitted", None)) is None else _ids(given, "emitted", n_vocab)
    if emitted is not None and receipt is not None:
        raise OptionError("a receipt is of all tokens of an answer, but emitted holds the first; leave one of the two out")
    ends = _token_ids(rest.pop("stop_token_ids", None), "stop_token_ids", n_vocab)
    if unknown := [key for key in rest if key not in _GIVEN]:
        keywords = {each.keyword for each in registry.constraints.values() if each.keyword is not None}
        known = _KNOWN | keywords
        listed = known if similar(unknown[0], known) else known - _OF_PYTHON  # which JSON cannot say
        raise OptionError(f"there is no parameter {unknown[0]!r}{nearest(unknown[0], listed)}")
    made: dict[str, Any] = {
        **drafts_from,
        "sampling": sampling,
        "speculation": speculation,
        "emitted": emitted,
        "stop_token_ids": ends,
        "scales": scales,
        "receipt": receipt,
    }
    request = Request(prompt=prompt, **made, **rest)
    if request.stop and tokenizer is None:
        raise UnsupportedError("stop needs texts, but this model has no tokenizer that augury can read; use max_tokens")
    if missing := [name for name in request.hidden_states if name not in features]:
        known_names = ", ".join(features) or "none"
        raise UnsupportedError(f"the model tells no hidden states {missing[0]!r}; expected some of: {known_names}")
    if request.slot is not None and request.slot >= n_slots:
        raise OptionError(f"there is no slot {request.slot}, expected 0 to {n_slots - 1}; leave it out for any")
    if request.echo and text is None:
        text = "" if tokenizer is None else tokenizer.decode(prompt.tolist(), skip_special=False)
    return attrs.evolve(request, prompt_text=text if request.echo else None)


def _prediction(value: Any, tokenizer: Tokenizer | None, n_vocab: int) -> np.ndarray | None:
    if isinstance(value, str):
        if tokenizer is None:
            raise UnsupportedError("prediction is a text, but this model has no tokenizer that augury can read; give token ids")
        value = tokenizer.encode(value, add_special=False, parse_special=True, n_most=_MOST_PREDICTED)
    return None if value is None else _ids(value, "prediction", n_vocab)


def _ids(value: Any, name: str, n_vocab: int) -> np.ndarray:
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of different lengths
        tokens = np.empty((0, 0))
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        meant = "; give a conversation as messages" if isinstance(value, Mapping) else ""
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a text or a list of token ids{meant}")
    outside = (tokens < 0) | (tokens >= n_vocab)
    if outside.any():
        raise OptionError(f"{name} holds token {tokens[outside.argmax()]}, the vocabulary has tokens 0 to {n_vocab - 1}")
    return tokens_array(tokens)


def _token_ids(value: Any, name: str, n_vocab: int) -> frozenset[int]:
    ids = () if value is None else value
    if not isinstance(ids, list | tuple | set | frozenset | np.ndarray) or not all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < n_vocab for each in ids
    ):
        raise OptionError(f"{name} is {reprlib.repr(value)}, expected a list of token ids from 0 to {n_vocab - 1}")
    return frozenset(int(each) for each in ids)
