"""Logits → token. Sampling keeps no state that a rejected draft could have touched.

What a token is chosen from is a function of the logits row, the history before it and its index among the request's tokens:
penalties are counted afresh over the last tokens, and the random number of index i is the i-th of the seed's stream. So there
is nothing to roll back, and the same seed gives the same tokens however drafts were cut and accepted.

A request's own logits processors come first, then the logit bias and what a constraint forbids, then the samplers in their
order, which by default is llama.cpp's; then a token is drawn. Processors and samplers are steps of one form, see
`augury.engine.sampling_step`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs
import numpy as np
from attrs import Factory, field, frozen

from augury.engine.guard import describe
from augury.engine.sampling_step import Penalties, Step, best_first, min_p, temperature, top_k, top_p, typical
from augury.errors import OptionError, PluginError
from augury.options import Option, nearest, option, options_of
from augury.passes import ArrayPass, Pass

__all__ = ["SAMPLERS", "Sampler", "SamplingParams"]

SAMPLERS = ("penalties", "top_k", "typ_p", "top_p", "min_p", "temperature")
"""The samplers by llama.cpp's names, in its order."""

_LEAST_TEMPERATURE = 1e-5  # below it is greedy, as in vLLM: nothing but rounding would decide
_LARGEST_BIAS = 1e30  # more than any logit, and still finite after every penalty


def _bias(value: Mapping[int, float] | None) -> dict[int, float]:
    try:
        biases = {int(token): float(bias) for token, bias in (value or {}).items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise OptionError(f"logit_bias is {value!r}, expected a mapping from token ids to numbers") from None
    for token, bias in biases.items():
        if not (abs(bias) <= _LARGEST_BIAS or bias == -np.inf):  # NaN compares with nothing
            raise OptionError(
                f"logit_bias of token {token} is {bias}, expected at most {_LARGEST_BIAS:g}, or -inf to forbid the token"
            )
    return biases


def _samplers(value: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"samplers is {value!r}, expected a list of names in order, of {', '.join(SAMPLERS)}")
    names = tuple(value)
    for i, name in enumerate(names):
        if name not in SAMPLERS:
            raise OptionError(f"samplers names {name!r}, which is none of augury's{nearest(name, SAMPLERS)}")
        if name in names[:i]:
            raise OptionError(f"samplers names {name!r} twice, expected each once at most")
    return names


@frozen
class SamplingParams:
    """How the next token is drawn. Defaults are llama.cpp's.

    `logit_bias` maps token ids to what is added to their logits; -inf forbids a token. `samplers` are applied in their order,
    those that are left out not at all; greedy choice looks at the penalties alone.

    Raises:
        OptionError: A value has the wrong type or is out of range.
    """

    temperature: float = option(0.8, help="0, and all below 0.00001, is greedy; higher is more random", ge=0.0, le=1e6)
    top_k: int = option(40, help="keep the k most probable tokens; 0 keeps all", ge=0)
    top_p: float = option(0.95, help="keep the most probable tokens that sum to p; 1 keeps all", ge=0.0, le=1.0)
    min_p: float = option(0.05, help="drop tokens less probable than p times the best; 0 keeps all", ge=0.0, le=1.0)
    typical_p: float = option(1.0, help="locally typical sampling; 1 keeps all", ge=0.0, le=1.0)
    repeat_penalty: float = option(1.0, help="divide the logits of recent tokens; 1 is off", ge=1e-3, le=1e3)
    presence_penalty: float = option(0.0, help="subtract from the logits of recent tokens", ge=-1e3, le=1e3)
    frequency_penalty: float = option(0.0, help="subtract for every recent occurrence", ge=-1e3, le=1e3)
    repeat_last_n: int = option(64, help="how many recent tokens the penalties look at; -1: all", ge=-1)
    seed: int | None = option(
        None, help="seed of the random numbers; a new one for every request unless given", ge=0, le=2**64 - 1
    )
    logit_bias: Mapping[int, float] = field(default=Factory(dict), converter=_bias)
    samplers: tuple[str, ...] = field(default=SAMPLERS, converter=_samplers)
    seed_offset: int = 0  # random numbers of the seed that are used up, one for each token of a text that goes on

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.seed_offset, int) or isinstance(self.seed_offset, bool) or self.seed_offset < 0:
            raise OptionError(f"seed_offset is {self.seed_offset!r}, expected a whole number of at least 0")
        for known in sampling_options().values():
            object.__setattr__(self, known.name, known.convert(getattr(self, known.name), "sampling"))
        if self.temperature < _LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken."""
        return self.temperature == 0 and "temperature" in self.samplers


def sampling_options() -> dict[str, Option]:
    """The options of `SamplingParams`, as flags and requests need them."""
    return options_of(SamplingParams)


def _penalties(params: SamplingParams) -> Penalties:
    return Penalties(params.repeat_penalty, params.presence_penalty, params.frequency_penalty, params.repeat_last_n)


_STEPS: dict[str, Callable[[SamplingParams], Step | None]] = {  # of each sampler; None where it changes nothing
    "penalties": lambda params: None if _penalties(params).is_neutral else _penalties(params),
    "top_k": lambda params: top_k(params.top_k) if params.top_k > 0 else None,
    "typ_p": lambda params: typical(params.typical_p) if params.typical_p < 1.0 else None,
    "top_p": lambda params: top_p(params.top_p) if params.top_p < 1.0 else None,
    "min_p": lambda params: min_p(params.min_p) if params.min_p > 0.0 else None,
    "temperature": lambda params: temperature(params.temperature) if params.temperature != 1.0 else None,
}


_NO_TOKEN = np.full(1, -1, np.int32)
_NOTHING_RECENT = np.empty(0, np.int32), np.empty(0, np.int64)
_FIRST_ROW = np.zeros(1, np.int32)
_N_SPARE = 8  # more tokens are looked at than are wanted where a constraint may forbid some
_N_TRIED = 128  # if it forbids too many of them, so many are; then all that it allows


class Mask(Protocol):
    """What a constraint is to a sampler."""

    name: str

    def allowed(self, history: np.ndarray, n_emitted: int) -> np.ndarray | None:
        """Which tokens may follow, (V,) bool, None for all; see `augury.engine.constraint.ConstraintGuard`."""


class Sampler:
    """Draws the tokens of one request.

    Attributes:
        params: How, with the seed in force.
        is_plain_argmax: Whether every token but the early ones is its row's argmax, so that a whole pass can be chosen in one
            call.
        error: Why no token could be chosen, where a constraint or a logits processor is the reason.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        forbidden: frozenset[int] = frozenset(),
        late: frozenset[int] = frozenset(),
        n_early: int = 0,
        processors: tuple[Step, ...] = (),
        constraint: Mask | None = None,
    ) -> None:
        """Prepare to draw.

        Args:
            params: How to draw.
            n_vocab: V, of the logits.
            forbidden: Tokens that are never drawn, such as end tokens that are to be ignored.
            late: Tokens that are not among the first `n_early` of the request.
            n_early: See `late`.
            processors: Steps over whole rows, float32, before anything else.
            constraint: What it does not allow is not drawn. Tokens are then asked for in the order of their indices.

        Raises:
            OptionError: A biased token is outside the vocabulary.
        """
        for token in params.logit_bias:
            if not 0 <= token < n_vocab:
                raise OptionError(f"logit_bias names token {token}, the vocabulary has tokens 0 to {n_vocab - 1}")
        bias = dict(params.logit_bias) | {token: -np.inf for token in forbidden if token < n_vocab}
        early_bias = bias | {token: -np.inf for token in (late if n_early else ()) if token < n_vocab}
        if sum(each == -np.inf for each in early_bias.values()) >= n_vocab:
            raise OptionError("logit_bias forbids every token of the vocabulary; leave at least one that is no end token")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self.params = attrs.evolve(params, seed=seed)
        self.error: Exception | None = None
        self._bias, self._early_bias, self._n_early = _arrays(bias), _arrays(early_bias), n_early
        self._n_vocab = n_vocab
        self._processors, self._constraint = processors, constraint
        self._penalties = _penalties(params)
        names = [name for name in params.samplers if name == "penalties" or not params.is_greedy]
        steps = {name: step for name in names if (step := _STEPS[name](params)) is not None}
        self.is_plain_argmax = not (steps or bias or processors or constraint) and params.is_greedy
        self._has_early_penalties = next(iter(steps), None) == "penalties"  # they then choose among all tokens
        if self._has_early_penalties:
            del steps["penalties"]
        self._steps = tuple(steps.values())
        first = next((name for name in steps if name != "temperature"), None)
        self._n_top = 1 if params.is_greedy else min(params.top_k, n_vocab) if first == "top_k" else n_vocab
        self._stream = np.random.Generator(np.random.Philox(key=seed))
        self._uniforms = np.empty(0)
        self._acceptance_stream = np.random.Generator(np.random.Philox(key=seed).jumped())
        self._acceptances = np.empty(0)

    def choose(self, logits: Pass, row: int, history: np.ndarray, index: int) -> int:
        """The token that follows `history`, or -1 where `distribution` has none.

        Args:
            logits: Of a pass.
            row: Which of its rows.
            history: (h,) int32, prompt and output before this token.
            index: How many tokens the request emitted before this one.
        """
        ids, probabilities = self.distribution(logits, row, history, index)
        if len(ids) == 1:
            return int(ids[0])
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, self._uniform(index) * sums[-1], side="right")])

    def distribution(self, logits: Pass, row: int, history: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """What the token that follows `history` is drawn from.

        Args:
            logits: Of a pass.
            row: Which of its rows.
            history: (h,) int32, prompt and output before this token.
            index: How many tokens the request emitted before this one.

        Returns:
            ids (m,) int32 and probabilities (m,) float64, most probable first; one of probability 1 at temperature 0. Where
            the row is not finite, or `error` says why there is no token, -1 is certain.
        """
        try:
            ids, values = self._candidates(logits, row, history, index)
        except (OptionError, PluginError) as error:  # the end of the request, if it comes as far as this token
            self.error = error
            return _NO_TOKEN, np.ones(1)
        if not len(ids) or not np.isfinite(values[0]):
            return _NO_TOKEN, np.ones(1)
        for step in self._steps:
            ids, values = step(history, ids, values)
        if self.params.is_greedy:
            return ids[:1], np.ones(1)
        weights = np.exp(values - values[0])
        return ids, weights / weights.sum()

    def uniforms(self, index: int) -> tuple[float, float]:
        """Two numbers in [0, 1) for token `index`, to verify by rejection with; the second is the one that `choose` takes."""
        while index >= len(self._acceptances):
            self._acceptances = np.concatenate([self._acceptances, self._acceptance_stream.random(256)])
        return float(self._acceptances[index]), self._uniform(index)

    def _candidates(self, logits: Pass, row: int, history: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The best tokens that are not forbidden, best first, equals by rising id; their logits in float64.

        Raises:
            OptionError: A logits processor failed, or left nothing.
            PluginError: The constraint failed, or left nothing.
        """
        if self._processors:
            logits, row = self._processed(logits, row, history), 0
        biased, biases = self._bias if index >= self._n_early else self._early_bias
        recent, counts = self._penalties.recent(history) if self._has_early_penalties else _NOTHING_RECENT
        touched = np.unique(np.concatenate([biased, recent])) if len(recent) else biased
        allowed = None if self._constraint is None else self._constraint.allowed(history, index)
        # whatever is untouched and among the best after the change was among the best n + m before it
        n = self._n_top + len(touched)
        ids, values = self._best(logits, row, n) if allowed is None else self._best_allowed(logits, row, n, allowed)
        if ids is _NO_TOKEN:
            return ids, values
        values = values.astype(np.float64)
        if len(touched):
            changed = logits.gather(row, touched).astype(np.float64)
            changed[np.searchsorted(touched, biased)] += biases
            if len(recent):
                at = np.searchsorted(touched, recent)
                changed[at] = self._penalties.changed(changed[at], counts)
            at = np.minimum(np.searchsorted(touched, ids), len(touched) - 1)
            is_untouched = touched[at] != ids
            if allowed is not None:
                touched, changed = touched[allowed[touched]], changed[allowed[touched]]
            ids, values = np.concatenate([ids[is_untouched], touched]), np.concatenate([values[is_untouched], changed])
            ids, values = best_first(ids, values, self._n_top)
        if self._constraint is not None and allowed is not None and not (len(ids) and values[0] > -np.inf):
            told = f"after {index} tokens constraint {self._constraint.name} allows none that the request does not forbid"
            raise PluginError(f"{told}; look at logit_bias, logits_processors, ignore_eos and min_tokens")
        return ids, values

    def _best(self, logits: Pass, row: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The n best tokens, best first, equals by rising id, and their logits; `_NO_TOKEN` where the row is not finite."""
        ids, values = logits.top_k(np.array([row], np.int32), min(n, self._n_vocab))
        return (ids[0], values[0]) if np.isfinite(values[0, 0]) else (_NO_TOKEN, values[0])

    def _best_allowed(self, logits: Pass, row: int, n: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of the tokens that are allowed; there may be fewer than n."""
        for k in (n + _N_SPARE, _N_TRIED):
            ids, values = self._best(logits, row, k)
            if ids is _NO_TOKEN:
                return ids, values
            is_allowed = allowed[ids]
            if np.count_nonzero(is_allowed) >= n or len(ids) == self._n_vocab:
                return ids[is_allowed][:n], values[is_allowed][:n]
            if _N_TRIED * np.count_nonzero(allowed) < 1.5 * n * self._n_vocab:  # there would be too few again
                break
        ids = np.flatnonzero(allowed).astype(np.int32)
        (places,), (values,) = ArrayPass(logits.gather(row, ids)[None]).top_k(_FIRST_ROW, n)
        return ids[places], values

    def _processed(self, logits: Pass, row: int, history: np.ndarray) -> Pass:
        """One row of logits as the request's processors leave it; one that is not finite as it is.

        Raises:
            OptionError: A processor failed, or left nothing.
        """
        values = logits.rows()[row].copy()
        if not np.isfinite(values.max()):
            return ArrayPass(values[None])
        ids = np.arange(len(values), dtype=np.int32)
        for i, processor in enumerate(self._processors):
            try:
                ids, values = processor(history, ids, values)
                left = np.full(self._n_vocab, -np.inf, np.float32)
                left[ids] = values
            except BaseException as error:  # SystemExit, too: it is not meant for the engine's thread
                told = f"{describe(error)}; it is to return ids and logits, (m,) each"
                raise OptionError(f"logits_processors[{i}] failed: {told}") from error
            if not np.isfinite(left.max()):
                raise OptionError(f"logits_processors[{i}] leaves no token with a finite logit, or one with NaN or inf")
        return ArrayPass(left[None])

    def _uniform(self, index: int) -> float:
        """Number `index` of the seed's stream, after those that are used up, in [0, 1)."""
        index += self.params.seed_offset
        while index >= len(self._uniforms):
            self._uniforms = np.concatenate([self._uniforms, self._stream.random(256)])
        return float(self._uniforms[index])


def _arrays(bias: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Its tokens, rising, and what is added to their logits."""
    tokens = sorted(bias)
    return np.array(tokens, np.int32), np.array([bias[token] for token in tokens])
