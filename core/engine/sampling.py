"""Logits → token. Sampling keeps no state that a rejected draft could have touched.

What a token is chosen from is a function of the logits row, the history before it and its index among the request's tokens:
penalties are counted afresh over the last tokens, and the random number of index i is the i-th of the seed's stream. So there
is nothing to roll back, and the same seed gives the same tokens however drafts were cut and accepted.

The logit bias comes first, then the samplers in their order, which by default is llama.cpp's; then a token is drawn.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import Factory, field, frozen

from augury.errors import OptionError
from augury.options import Option, nearest, option, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from augury.passes import Pass

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

    def __attrs_post_init__(self) -> None:
        for known in sampling_options().values():
            object.__setattr__(self, known.name, known.convert(getattr(self, known.name), "sampling"))
        if self.temperature < _LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken."""
        return self.temperature == 0 and "temperature" in self.samplers

    @property
    def active_samplers(self) -> tuple[str, ...]:
        """Those that change anything, in their order."""
        is_neutral = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        is_active = {
            "penalties": not is_neutral and self.repeat_last_n != 0,
            "top_k": self.top_k > 0,
            "typ_p": self.typical_p < 1.0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
            "temperature": self.temperature != 1.0,
        }
        return tuple(name for name in self.samplers if is_active[name] and (name == "penalties" or not self.is_greedy))


def sampling_options() -> dict[str, Option]:
    """The options of `SamplingParams`, as flags and requests need them."""
    return options_of(SamplingParams)


_NO_TOKEN = np.full(1, -1, np.int32)
_NOTHING_RECENT = np.empty(0, np.int32), np.empty(0, np.int64)


class Sampler:
    """Draws the tokens of one request.

    Attributes:
        params: How, with the seed in force.
        is_plain_argmax: Whether every token but the early ones is its row's argmax, so that a whole pass can be chosen in one
            call.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        forbidden: frozenset[int] = frozenset(),
        late: frozenset[int] = frozenset(),
        n_early: int = 0,
    ) -> None:
        """Prepare to draw.

        Args:
            params: How to draw.
            n_vocab: V, of the logits.
            forbidden: Tokens that are never drawn, such as end tokens that are to be ignored.
            late: Tokens that are not among the first `n_early` of the request.
            n_early: See `late`.

        Raises:
            OptionError: A biased token is outside the vocabulary.
        """
        for token in params.logit_bias:
            if not 0 <= token < n_vocab:
                raise OptionError(f"logit_bias names token {token}, the vocabulary has tokens 0 to {n_vocab - 1}")
        bias = dict(params.logit_bias) | dict.fromkeys(forbidden, -np.inf)
        early_bias = bias | dict.fromkeys(late if n_early else (), -np.inf)
        if sum(each == -np.inf for each in early_bias.values()) >= n_vocab:
            raise OptionError("logit_bias forbids every token of the vocabulary; leave at least one that is no end token")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        self.params = attrs.evolve(params, seed=seed)
        self._bias, self._early_bias, self._n_early = _arrays(bias), _arrays(early_bias), n_early
        self._n_vocab = n_vocab
        self._samplers = params.active_samplers
        self.is_plain_argmax = params.is_greedy and not bias and not self._samplers
        self._has_early_penalties = self._samplers[:1] == ("penalties",)  # they then choose among all tokens
        if self._has_early_penalties:
            self._samplers = self._samplers[1:]
        first = next((name for name in self._samplers if name != "temperature"), None)
        self._n_top = 1 if params.is_greedy else min(params.top_k, n_vocab) if first == "top_k" else n_vocab
        self._stream = np.random.Generator(np.random.Philox(key=seed))
        self._uniforms = np.empty(0)
        self._acceptance_stream = np.random.Generator(np.random.Philox(key=seed).jumped())
        self._acceptances = np.empty(0)

    def choose(self, logits: Pass, row: int, history: np.ndarray, index: int) -> int:
        """The token that follows `history`, or -1 where the row is not finite.

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
            the row is not finite, -1 is certain.
        """
        ids, values = self._candidates(logits, row, history, *(self._bias if index >= self._n_early else self._early_bias))
        if not np.isfinite(values[0]):
            return _NO_TOKEN, np.ones(1)
        weights = None  # exp(values), but for a factor
        for name in self._samplers:
            if name == "penalties":
                recent, counts = self._recent(history)
                there, at, of_recent = np.intersect1d(ids, recent, assume_unique=True, return_indices=True)
                if len(there):
                    values[at] = self._penalised(values[at], counts[of_recent])
                    ids, values = _best_first(ids, values, len(ids))
                weights = None
            elif name == "temperature":
                values, weights = values / self.params.temperature, None
            else:
                weights = np.exp(values - values[0]) if weights is None else weights
                keep = _TRUNCATIONS[name](weights, self.params)
                ids, values, weights = ids[keep], values[keep], weights[keep]
        if self.params.is_greedy:
            return ids[:1], np.ones(1)
        weights = np.exp(values - values[0]) if weights is None else weights
        return ids, weights / weights.sum()

    def uniforms(self, index: int) -> tuple[float, float]:
        """Two numbers in [0, 1) for token `index`, to verify by rejection with; the second is the one that `choose` takes."""
        while index >= len(self._acceptances):
            self._acceptances = np.concatenate([self._acceptances, self._acceptance_stream.random(256)])
        return float(self._acceptances[index]), self._uniform(index)

    def _candidates(
        self, logits: Pass, row: int, history: np.ndarray, biased: np.ndarray, biases: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best tokens and their logits in float64 after bias and early penalties, best first, equals by rising id."""
        recent, counts = self._recent(history) if self._has_early_penalties else _NOTHING_RECENT
        touched = np.unique(np.concatenate([biased, recent])) if len(recent) else biased
        # whatever is untouched and among the best after the change was among the best n + m before it
        best, logits_of_best = logits.top_k(np.array([row], np.int32), min(self._n_top + len(touched), self._n_vocab))
        ids, values = best[0], logits_of_best[0].astype(np.float64)
        if not len(touched) or not np.isfinite(values[0]):
            return ids, values
        changed = logits.gather(row, touched).astype(np.float64)
        changed[np.searchsorted(touched, biased)] += biases
        if len(recent):
            at = np.searchsorted(touched, recent)
            changed[at] = self._penalised(changed[at], counts)
        at = np.minimum(np.searchsorted(touched, ids), len(touched) - 1)
        is_untouched = touched[at] != ids
        ids, values = np.concatenate([ids[is_untouched], touched]), np.concatenate([values[is_untouched], changed])
        return _best_first(ids, values, self._n_top)

    def _penalised(self, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens that occurred so often."""
        repeat = self.params.repeat_penalty
        values = np.where(values <= 0, values * repeat, values / repeat)
        values -= counts * self.params.frequency_penalty + self.params.presence_penalty
        return values

    def _recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_last = self.params.repeat_last_n
        return np.unique(history if n_last < 0 else history[-n_last:], return_counts=True)

    def _uniform(self, index: int) -> float:
        """Number `index` of the seed's stream, in [0, 1)."""
        while index >= len(self._uniforms):
            self._uniforms = np.concatenate([self._uniforms, self._stream.random(256)])
        return float(self._uniforms[index])


def _arrays(bias: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Its tokens, rising, and what is added to their logits."""
    tokens = sorted(bias)
    return np.array(tokens, np.int32), np.array([bias[token] for token in tokens])


def _best_first(ids: np.ndarray, values: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((ids, -values))[:n]
    return ids[order], values[order]


# Which candidates survive: their rising indices or a slice, at least one. `weights` (m,) fall.


def _top_p(weights: np.ndarray, params: SamplingParams) -> slice:
    sums = np.cumsum(weights)
    return slice(int(np.searchsorted(sums, params.top_p * sums[-1], side="left")) + 1)


def _min_p(weights: np.ndarray, params: SamplingParams) -> np.ndarray:
    return weights >= params.min_p * weights[0]


def _typical(weights: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The tokens whose surprise is nearest to the entropy, up to `typical_p` (Meister et al. 2022, section 3)."""
    probabilities = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    is_possible = probabilities > 0
    entropy = float((probabilities[is_possible] * surprise[is_possible]).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    n_kept = int(np.searchsorted(np.cumsum(probabilities[order]), params.typical_p, side="left")) + 1
    return np.sort(order[:n_kept])


_TRUNCATIONS: dict[str, Callable[[np.ndarray, SamplingParams], Any]] = {
    "top_k": lambda _, params: slice(params.top_k),
    "typ_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
}
