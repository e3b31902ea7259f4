"""Logits → token. Sampling keeps no state that a rejected draft could have touched.

A token's distribution is a function of the logits row, the history before it and its index among the request's tokens:
penalties are counted afresh over the last tokens, and the random number of index i is the i-th of the seed's stream. So there
is nothing to roll back, and the same seed gives the same tokens with any drafts. `mirostat` also depends on earlier tokens'
distributions, and keeps each until the history says which one it was.

A request's own logits processors come first, then the logit bias and a constraint's mask, then the samplers in their
order, which by default is llama.cpp's; then a token is drawn. Processors and samplers are steps of one form, see
`augury.engine.sampling_step`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from augury.engine import sampling_step as samplers
from augury.engine.constraint import ConstraintGuard
from augury.engine.sampling_step import Adjustment, Breakers, Mirostat, SamplingStep, best_first, best_places
from augury.errors import OptionError, PluginError, UnsupportedError
from augury.guard import describe
from augury.passes import ArrayPass, Pass
from augury.sampling import SamplingParams

_ADJUSTING = ("penalties", "dry")  # which greedy choice looks at, too
_UNSORTED = ("top_n_sigma", "min_p")  # which look for the best alone, and leave few: only these have to be sorted
_N_LIKELY = 1024  # tokens that are sorted to draw one of many; all if it is none of them


def _steps(
    params: SamplingParams, breakers: Breakers, infill: SamplingStep | None, chance: Callable[[int], float]
) -> dict[str, SamplingStep]:
    """The samplers that change something, by name, in their order."""
    penalties = samplers.Penalties(
        params.repeat_penalty, params.presence_penalty, params.frequency_penalty, params.repeat_last_n
    )
    dry = samplers.Dry(params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n, breakers)
    has_xtc = params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5
    has_range = params.dynatemp_range > 0.0 and not params.mirostat
    heat = (
        samplers.dynamic_temperature(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
        if has_range
        else samplers.temperature(params.temperature)
    )
    known: dict[str, SamplingStep | None] = {
        "penalties": None if penalties.is_neutral else penalties,
        "dry": None if dry.is_neutral else dry,
        "top_n_sigma": samplers.top_n_sigma(params.top_n_sigma) if params.top_n_sigma > 0.0 else None,
        "top_k": samplers.top_k(params.top_k) if params.top_k > 0 else None,
        "typ_p": samplers.typical(params.typical_p) if params.typical_p < 1.0 else None,
        "top_p": samplers.top_p(params.top_p) if params.top_p < 1.0 else None,
        "min_p": samplers.min_p(params.min_p) if params.min_p > 0.0 else None,
        "xtc": samplers.xtc(params.xtc_probability, params.xtc_threshold, chance) if has_xtc else None,
        "temperature": heat if has_range or params.temperature != 1.0 else None,
        "infill": infill,
    }
    names: Iterable[str] = ("temperature",) if params.mirostat else params.samplers
    if params.is_greedy:
        names = [name for name in names if name in _ADJUSTING]
    return {name: step for name in names if (step := known[name]) is not None}


_NO_TOKEN = np.full(1, -1, np.int32)
_FIRST_ROW = np.zeros(1, np.int32)
_N_SPARE = 8  # more tokens are looked at than are wanted where a constraint may forbid some
_N_TRIED = 128  # if it forbids too many of them, so many are; then all that it allows


class Sampler:
    """Draws the tokens of one request, as `params` say, with the seed in force."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        forbidden: frozenset[int] = frozenset(),
        late: frozenset[int] = frozenset(),
        n_early: int = 0,
        processors: tuple[SamplingStep, ...] = (),
        constraint: ConstraintGuard | None = None,
        breakers: Breakers | None = None,
        infill: SamplingStep | None = None,
        keeps_drawn: bool = False,
    ) -> None:
        """Prepare to draw from logits (V,).

        `forbidden` tokens, such as end tokens that are to be ignored, are never drawn, and `late` ones not among the first
        `n_early` of the request. `processors` are steps over whole rows, float32, before anything else. `breakers` are those of
        the sampler `dry`, and `infill` is the sampler of that name. With `keeps_drawn`, `drawn_from` is kept.

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
        self.params = params if params.seed == seed else attrs.evolve(params, seed=seed)
        self.error: Exception | None = None  # why a constraint or processor left no token at the last place asked for
        self.drawn_from: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # distributions by index, if they are kept
        self._keeps_drawn = keeps_drawn
        self._bias, self._early_bias, self._n_early = _arrays(bias), _arrays(early_bias), n_early
        self._n_vocab = n_vocab
        self._processors, self._constraint = processors, constraint
        self._uniform, self._acceptance, chance = (_Numbers(seed, stream) for stream in (0, 1, 3))  # 2 is a draft model's
        steps = _steps(params, breakers or {}, infill, chance)
        is_greedy = not (steps or processors or constraint) and params.is_greedy
        # whether every token but the early ones is its row's argmax, so that a whole pass can be chosen in one call; and the
        # same but for rows whose argmax is forbidden
        self.is_plain_argmax = is_greedy and not bias
        self.is_best_allowed = is_greedy and all(each == -np.inf for each in bias.values())
        self._early: list[Adjustment] = []  # they choose among all tokens
        while isinstance(step := next(iter(steps.values()), None), Adjustment):
            self._early.append(step)
            del steps[next(iter(steps))]
        first = next((name for name in steps if name != "temperature" or params.dynatemp_range), None)
        self._n_top = 1 if params.is_greedy else min(params.top_k, n_vocab) if first == "top_k" else n_vocab
        self._is_sorted = params.is_greedy or not (params.mirostat or first is None or first in _UNSORTED)
        self._stays_unsorted = not self._is_sorted and first is None
        if first in _UNSORTED:
            steps[first] = _sorting(steps[first])
        self._steps = tuple(steps.values())
        # whether tokens must be asked for in the order of their indices, each after the tokens that are emitted before it
        self.follows_text = constraint is not None or params.mirostat > 0
        self._mirostat: Mirostat | None = None
        if params.mirostat and not params.is_greedy:
            tau, mu = params.mirostat_tau, params.mirostat_mu
            self._mirostat = Mirostat(params.mirostat, tau, params.mirostat_eta, n_vocab, 2 * tau if mu is None else mu)

    def choose(self, logits: Pass, row: int, history: np.ndarray, index: int) -> int:
        """The token that follows `history`, or -1 where `distribution` has none.

        Args:
            logits: The logits of a pass.
            row: Which of its rows.
            history: (h,) int32, prompt and output before this token.
            index: How many tokens the request emitted before this one.
        """
        ids, values, probabilities = self._drawn_from(logits, row, history, index)
        if len(ids) == 1:
            return int(ids[0])
        uniform = self._uniform(index + self.params.seed_offset)
        if self._stays_unsorted and len(ids) > _N_LIKELY:
            likely = best_places(ids, values, _N_LIKELY)
            at = np.searchsorted(np.cumsum(probabilities[likely]), uniform * probabilities.sum(), side="right")
            if at < _N_LIKELY:
                return int(ids[likely[at]])
        if self._stays_unsorted:
            ids, probabilities = _sorted(ids, values, probabilities)
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, uniform * sums[-1], side="right")])

    def distribution(self, logits: Pass, row: int, history: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The distribution of the token that follows `history`; arguments are those of `choose`.

        Returns:
            ids (m,) int32 and probabilities (m,) float64, the most probable first; one of probability 1 at temperature 0.
            Where the row is not finite, or `error` says why there is no token, -1 is certain.
        """
        ids, _, probabilities = self._drawn_from(logits, row, history, index)
        return ids, probabilities

    def _drawn_from(self, logits: Pass, row: int, history: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same with the logits in between; where it stays unsorted, only the best token has its place."""
        self.error = None
        if self._mirostat is not None:
            self._mirostat.go_on(history, index)
        try:
            ids, values = self._candidates(logits, row, history, index)
        except (OptionError, PluginError, UnsupportedError) as error:  # the request's end, if it comes as far as this token
            self.error = error
            return _NO_TOKEN, np.ones(1), np.ones(1)
        if not len(ids) or not np.isfinite(values[0]):
            return _NO_TOKEN, np.ones(1), np.ones(1)
        for step in self._steps:
            ids, values = step(history, ids, values)
        if self.params.is_greedy:
            return ids[:1], values[:1], np.ones(1)
        if self._mirostat is not None:
            ids, values = self._mirostat.keep(ids, values)
        weights = np.exp(values - values[0])
        probabilities = weights / weights.sum()
        if self._mirostat is not None:
            self._mirostat.draws_from(ids, probabilities)
        if self._keeps_drawn:
            self.drawn_from[index] = _sorted(ids, values, probabilities) if self._stays_unsorted else (ids, probabilities)
        return ids, values, probabilities

    def uniforms(self, index: int) -> tuple[float, float]:
        """Two numbers in [0, 1) for token `index`, for `verification.reject`; `choose` takes the second."""
        index += self.params.seed_offset
        return self._acceptance(index), self._uniform(index)

    def going_on(self, history: np.ndarray, index: int) -> dict[str, Any]:
        """The parameters with which a new request goes on with the text, whose token `index` is asked for next."""
        params = attrs.asdict(self.params)
        params["seed_offset"] += index
        if self._mirostat is not None:
            self._mirostat.go_on(history, index)
            params["mirostat_mu"] = self._mirostat.mu
        return params

    def _candidates(self, logits: Pass, row: int, history: np.ndarray, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The best tokens that are not forbidden, best first, equals by rising id; their logits in float64.

        Where the whole vocabulary need not be sorted, these are all that are not forbidden, and only the best has its place.
        Raises OptionError: a logits processor failed, or left nothing. PluginError: the constraint failed, or left nothing.
        """
        if self._processors:
            logits, row = self._processed(logits, row, history), 0
        biased, biases = self._bias if index >= self._n_early else self._early_bias
        adjusted = [(each, *each.recent(history)) for each in self._early]
        touched = np.unique(np.concatenate([biased, *(recent for _, recent, _ in adjusted)])) if adjusted else biased
        allowed = None if self._constraint is None else self._constraint.allowed(history, index)
        # an unchanged token among the best after the change was among the best n + m before it
        n = self._n_top + len(touched)
        if not self._is_sorted:
            ids, values = self._all(logits, row, allowed)
        elif allowed is None:
            ids, values = self._best(logits, row, n)
        else:
            ids, values = self._best_allowed(logits, row, n, allowed)
        if ids is _NO_TOKEN:
            return ids, values
        values = values.astype(np.float64)
        if len(touched):
            changed = logits.gather(row, touched).astype(np.float64)
            changed[np.searchsorted(touched, biased)] += biases
            for adjustment, recent, counts in adjusted:
                at = np.searchsorted(touched, recent)
                changed[at] = adjustment.changed(changed[at], counts)
            at = np.minimum(np.searchsorted(touched, ids), len(touched) - 1)
            is_untouched = touched[at] != ids
            if allowed is not None:
                touched, changed = touched[allowed[touched]], changed[allowed[touched]]
            ids, values = np.concatenate([ids[is_untouched], touched]), np.concatenate([values[is_untouched], changed])
            if self._is_sorted:
                ids, values = best_first(ids, values, self._n_top)
        if not self._is_sorted and len(ids):
            equals = np.flatnonzero(values == values.max())
            places = [0, equals[ids[equals].argmin()]]
            ids[places], values[places] = ids[places[::-1]], values[places[::-1]]
        if self._constraint is not None and allowed is not None and not (len(ids) and values[0] > -np.inf):
            message = f"after {index} tokens constraint {self._constraint.name} allows none that the request does not forbid"
            raise PluginError(f"{message}; look at logit_bias, logits_processors, ignore_eos and min_tokens")
        return ids, values

    def _all(self, logits: Pass, row: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """All tokens that are allowed, by rising id, and their logits; `_NO_TOKEN` where the row is not finite."""
        values = logits.row(row)
        if not np.isfinite(best := values.max(keepdims=True)):
            return _NO_TOKEN, best
        ids = np.arange(len(values), dtype=np.int32) if allowed is None else np.flatnonzero(allowed).astype(np.int32)
        return ids, values[ids]

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
        """One row of logits as processors leave it, as it is if not finite. Raises OptionError: one failed, or left none."""
        values = logits.row(row).copy()
        if not np.isfinite(values.max()):
            return ArrayPass(values[None])
        ids = np.arange(len(values), dtype=np.int32)
        for i, processor in enumerate(self._processors):
            try:
                ids, values = processor(history, ids, values)
                left = np.full(self._n_vocab, -np.inf, np.float32)
                left[ids] = values
            except BaseException as error:  # SystemExit, too: it is not meant for the engine's thread
                message = f"{describe(error)}; it is to return ids and logits, (m,) each"
                raise OptionError(f"logits_processors[{i}] failed: {message}") from error
            if not np.isfinite(left.max()):
                raise OptionError(f"logits_processors[{i}] leaves no token with a finite logit, or one with NaN or inf")
        return ArrayPass(left[None])


def random_stream(seed: int | None, stream: int) -> np.random.Generator:
    """The numbers of a seed, 2^128 `stream` of them on; jumping there would ask the operating system for entropy each time."""
    return np.random.Generator(np.random.Philox(counter=stream << 128, key=seed))


class _Numbers:
    """The numbers of a stream of a seed, in [0, 1), by index."""

    def __init__(self, seed: int, stream: int) -> None:
        self._seed, self._stream = seed, stream
        self._numbers = np.empty(0)

    @cached_property
    def _generator(self) -> np.random.Generator:
        return random_stream(self._seed, self._stream)

    def __call__(self, index: int) -> float:
        if index >= (n := len(self._numbers)):
            self._numbers = np.concatenate([self._numbers, self._generator.random(index - n + 256)])
        return float(self._numbers[index])


def _sorted(ids: np.ndarray, values: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    places = best_places(ids, values, len(ids))
    return ids[places], probabilities[places]


def _sorting(step: SamplingStep) -> SamplingStep:
    def both(history: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids, logits = step(history, ids, logits)
        return best_first(ids, logits, len(ids))

    return both


def _arrays(bias: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Its tokens, rising, and the additions to their logits."""
    tokens = sorted(bias)
    return np.array(tokens, np.int32), np.array([bias[token] for token in tokens])
