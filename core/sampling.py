"""How the next token is drawn, as a request says it: `SamplingParams`; `augury.engine.sampler` does it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np
from attrs import Factory, field, frozen

from augury.errors import OptionError
from augury.options import Option, nearest, option, options_of

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The samplers by llama.cpp's names, in its order."""
OPTIONAL_SAMPLERS = ("infill",)
"""The samplers that are applied only on request."""
SAMPLER_LETTERS = dict(zip("edskypmxti", (*SAMPLERS, *OPTIONAL_SAMPLERS), strict=True))
"""The samplers by llama.cpp's letters."""

_KNOWN = (*SAMPLERS, *OPTIONAL_SAMPLERS)

_LEAST_TEMPERATURE = 1e-5  # below it is greedy, as in vLLM: nothing but rounding would decide
_LARGEST_BIAS = 1e30  # more than any logit, and still finite after every penalty


def _bias(value: Mapping[int, float] | None) -> dict[int, float]:
    try:
        biases = {_token(token): float(bias) for token, bias in (value or {}).items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise OptionError(f"logit_bias is {value!r}, expected a mapping from token ids to numbers") from None
    for token, bias in biases.items():
        if not (abs(bias) <= _LARGEST_BIAS or bias == -np.inf):  # NaN compares with nothing
            raise OptionError(
                f"logit_bias of token {token} is {bias}, expected at most {_LARGEST_BIAS:g}, or -inf to forbid the token"
            )
    return biases


def _token(key: Any) -> int:
    return int(key) if isinstance(key, str) else index(key)  # JSON has no other keys than texts


def _texts(value: Iterable[str] | None) -> tuple[str, ...]:
    texts: Any = value or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) and each for each in texts):
        raise OptionError(f"dry_sequence_breakers is {value!r}, expected a list of texts that are not empty")
    return tuple(texts)


def _samplers(value: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"samplers is {value!r}, expected a list of names in order, of {', '.join(_KNOWN)}")
    names = tuple(value)
    for i, name in enumerate(names):
        if name not in _KNOWN:
            raise OptionError(f"samplers names {name!r}, which is none of augury's{nearest(name, _KNOWN)}")
        if name in names[:i]:
            raise OptionError(f"samplers names {name!r} twice, expected each once at most")
    return names


@frozen
class SamplingParams:
    """How the next token is drawn. Defaults are llama.cpp's.

    `logit_bias` maps token ids to additions to their logits; -inf forbids a token. `samplers` are applied in their order,
    omitted ones not at all; greedy choice looks at `penalties` and `dry` alone. With `mirostat` the temperature is applied, and
    then nothing but that. Raises OptionError: a value has the wrong type or is out of range.
    """

    temperature: float = option(0.8, help="0, and all below 0.00001, is greedy; higher is more random", ge=0.0, le=1e6)
    top_k: int = option(40, help="keep the k most probable tokens; 0 and all below keeps all")
    top_p: float = option(0.95, help="keep the most probable tokens that sum to p; 1 keeps all", ge=0.0, le=1.0)
    min_p: float = option(0.05, help="drop tokens less probable than p times the best; 0 keeps all", ge=0.0, le=1.0)
    typical_p: float = option(1.0, help="locally typical sampling; 1 keeps all", ge=0.0, le=1.0)
    repeat_penalty: float = option(1.0, help="divide the logits of recent tokens; 1 is off", ge=1e-3, le=1e3)
    presence_penalty: float = option(0.0, help="subtract from the logits of recent tokens", ge=-1e3, le=1e3)
    frequency_penalty: float = option(0.0, help="subtract for every recent occurrence", ge=-1e3, le=1e3)
    repeat_last_n: int = option(64, help="how many recent tokens the penalties look at; -1: all", ge=-1)
    dry_multiplier: float = option(0.0, help="penalty of a token that goes on with a repetition; 0 is off", ge=0.0, le=1e3)
    dry_base: float = option(1.75, help="the penalty grows by this factor with every token repeated", ge=1.0, le=1e3)
    dry_allowed_length: int = option(2, help="tokens that may be repeated before the penalty", ge=0)
    dry_penalty_last_n: int = option(64, help="how many recent tokens are searched for repetitions; 0 is off, -1 is all", ge=-1)
    top_n_sigma: float = option(
        -1.0, help="keep tokens whose logits are n standard deviations below the best at most; 0 or less keeps all", le=1e6
    )
    xtc_probability: float = option(0.0, help="how often the most probable tokens are dropped; 0 is off", ge=0.0, le=1.0)
    xtc_threshold: float = option(
        0.1, help="tokens at least this probable are dropped, all but the last of them; above 0.5 is off", ge=0.0, le=1.0
    )
    dynatemp_range: float = option(
        0.0, help="the temperature varies by so much with the entropy, up and down; 0 is off", ge=0.0, le=1e6
    )
    dynatemp_exponent: float = option(1.0, help="how the entropy is mapped to that range", ge=1e-3, le=1e3)
    mirostat: int = option(0, help="keep the surprise constant by Mirostat 1 or 2, instead of samplers; 0 is off", ge=0, le=2)
    mirostat_tau: float = option(5.0, help="surprise that is aimed at, in bits", ge=0.0, le=1e3)
    mirostat_eta: float = option(0.1, help="how fast the surprise is corrected", ge=0.0, le=1e3)
    seed: int | None = option(
        None,
        help="seed of the random numbers, of 64 bits with or without a sign; -1, as by default: a new one for every request",
        ge=-(2**63),
        le=2**64 - 1,
    )
    logit_bias: Mapping[int, float] = field(default=Factory(dict), converter=_bias)
    samplers: tuple[str, ...] = field(default=SAMPLERS, converter=_samplers)
    dry_sequence_breakers: tuple[str, ...] = field(default=("\n", ":", '"', "*"), converter=_texts)  # no repetition spans one
    seed_offset: int = 0  # random numbers of the seed that are used up, one for each token of a text that goes on
    mirostat_mu: float | None = None  # of such a text, see `augury.engine.sampling_step.Mirostat`

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.seed_offset, int) or isinstance(self.seed_offset, bool) or self.seed_offset < 0:
            raise OptionError(f"seed_offset is {self.seed_offset!r}, expected a whole number of at least 0")
        for known in sampling_options().values():
            object.__setattr__(self, known.name, known.convert(getattr(self, known.name), "sampling"))
        mu = self.mirostat_mu
        if mu is not None and not (isinstance(mu, int | float) and np.isfinite(mu)):
            raise OptionError(f"mirostat_mu is {mu!r}, expected a number, or None at the beginning of a text")
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        if self.seed is not None and self.seed < 0:
            object.__setattr__(self, "seed", None if self.seed == -1 else self.seed + 2**64)
        if self.temperature < _LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken."""
        if self.mirostat:
            return self.temperature == 0
        return self.temperature == 0 and self.dynatemp_range == 0 and "temperature" in self.samplers


def sampling_options() -> dict[str, Option]:
    """The options of `SamplingParams`, as flags and requests need them."""
    return options_of(SamplingParams)
