"""The steps of sampling: each keeps some tokens or changes their logits. A request's logits processors are such steps, too."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import Factory, define, field, frozen

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

_LEAST_DIVISOR = 1e-200  # below it logits become infinite

SamplingStep = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""A `step(history, ids, logits)` returns the tokens that stay and their logits, both (m,) again.

`history` (h,) int32 is the prompt and the output, read-only; `ids` (m,) int32 are tokens, `logits` (m,) theirs, which may be
changed in place. A step is a pure function of these three, because it is also called for drafted texts, some of which are
rejected.
"""


def best_first(ids: np.ndarray, logits: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n best tokens, equals by rising id, and their logits."""
    places = best_places(ids, logits, n)
    return ids[places], logits[places]


def best_places(ids: np.ndarray, logits: np.ndarray, n: int) -> np.ndarray:
    """Where the n best tokens stand, best first, equals by rising id."""
    if n >= len(logits):
        return np.lexsort((ids, -logits))
    near = np.flatnonzero(logits >= np.partition(logits, -n)[-n])  # more than n where several equal the last
    return near[np.lexsort((ids[near], -logits[near]))[:n]]


# The samplers. They are given the best token first, and keep it so. All but `top_n_sigma`, `min_p` and `temperature` need the
# others in order, too.


class Adjustment(ABC):
    """Changes the logits of some tokens, which the history names: a step that need not look at all the others."""

    @property
    @abstractmethod
    def is_neutral(self) -> bool:
        """Whether nothing changes."""

    @abstractmethod
    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, rising, and a count of each."""

    @abstractmethod
    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens with such counts."""

    def __call__(self, history: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `SamplingStep`."""
        recent, counts = self.recent(history)
        _, at, of_recent = np.intersect1d(ids, recent, assume_unique=True, return_indices=True)
        logits[at] = self.changed(logits[at], counts[of_recent])
        return best_first(ids, logits, len(ids))


@frozen
class Penalties(Adjustment):
    """Lowers the logits of the last tokens."""

    repeat: float
    presence: float
    frequency: float
    n_last: int

    @property
    def is_neutral(self) -> bool:
        return (self.repeat == 1.0 and self.presence == 0.0 and self.frequency == 0.0) or self.n_last == 0

    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The last tokens, rising, and how often each is among them."""
        return np.unique(history if self.n_last < 0 else history[-self.n_last :], return_counts=True)

    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens that occurred so often."""
        logits = np.where(logits <= 0, logits * self.repeat, logits / self.repeat)
        logits -= counts * self.frequency + self.presence
        return logits


def _truncation(keep: Callable[[np.ndarray], Any]) -> SamplingStep:
    """A step that keeps some tokens: `keep` makes of their logits a slice, a mask or rising indices."""

    def step(_: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept = keep(logits)
        return ids[kept], logits[kept]

    return step


def top_k(k: int) -> SamplingStep:
    """Keep the k best tokens."""
    return _truncation(lambda _: slice(k))


def top_p(p: float) -> SamplingStep:
    """Keep the most probable tokens that sum to p."""

    def keep(logits: np.ndarray) -> slice:
        sums = np.cumsum(np.exp(logits - logits[0]))
        return slice(int(np.searchsorted(sums, p * sums[-1], side="left")) + 1)

    return _truncation(keep)


def min_p(p: float) -> SamplingStep:
    """Keep the tokens that are at least p times as probable as the best."""
    margin = np.log(p)
    return _truncation(lambda logits: logits >= logits[0] + margin)


def typical(p: float) -> SamplingStep:
    """Keep the tokens whose surprise is nearest to the entropy, up to p (Meister et al. 2022, section 3)."""

    def keep(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits[0])
        probabilities = weights / weights.sum()
        with np.errstate(divide="ignore"):
            surprise = -np.log(probabilities)
        is_possible = probabilities > 0
        entropy = float((probabilities[is_possible] * surprise[is_possible]).sum())
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        n_kept = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="left")) + 1
        return np.sort(order[:n_kept])

    return _truncation(keep)


def top_n_sigma(n: float) -> SamplingStep:
    """Keep the tokens whose logits are at most n standard deviations below the best (Tang et al. 2024, section 3)."""

    def keep(logits: np.ndarray) -> np.ndarray:
        return logits >= logits[0] - n * logits[logits > -np.inf].std()

    return _truncation(keep)


def xtc(probability: float, threshold: float, chance: Callable[[int], float]) -> SamplingStep:
    """With this probability drop all tokens as probable as the threshold but the least probable one of them.

    `chance` gives a number in [0, 1) for a length of the history.
    """

    def step(history: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if chance(len(history)) > probability:
            return ids, logits
        weights = np.exp(logits - logits[0])
        n_dropped = max(np.count_nonzero((weights >= threshold * weights.sum()) & (logits > -np.inf)) - 1, 0)
        return ids[n_dropped:], logits[n_dropped:]

    return step


def temperature(value: float) -> SamplingStep:
    """Divide the logits."""
    return lambda _, ids, logits: (ids, logits / value)


def dynamic_temperature(value: float, spread: float, exponent: float) -> SamplingStep:
    """Divide the logits by `value - spread` where they leave no doubt, up to `value + spread` where all are equal."""

    def step(_: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = np.count_nonzero(logits > -np.inf)
        if n < 2:
            return ids, logits
        weights = np.exp(logits - logits[0])
        probabilities = weights[weights > 0] / weights.sum()
        share = -float((probabilities * np.log(probabilities)).sum()) / np.log(n)
        least = max(value - spread, 0.0)
        divisor = least + (value + spread - least) * max(share, 0.0) ** exponent
        if divisor < _LEAST_DIVISOR:
            return ids[:1], logits[:1]
        return ids, logits / divisor

    return step


Breakers = Mapping[int, Sequence[tuple[int, ...]]]
"""By token: the tokens that complete a breaker after it; () if it holds one by itself."""

_LONGEST_TEXT, _LONGEST_TAIL = 40, 20  # bytes of a breaker, tokens of one: llama.cpp's
_LOG_LARGEST = 88.7228391  # of float32: no penalty is larger


@frozen(eq=False)
class Dry(Adjustment):
    """Sampler `dry`: lowers the logits of tokens that would continue a repetition of earlier text.

    A token that followed an earlier occurrence of the text's last n tokens loses `multiplier * base ** (n - allowed_length)`,
    where n is at least `allowed_length`. A repetition does not reach back over a *breaker*, a text such as a line break::

        a b c x . a b c        n 3: x loses; nothing follows "b c" or "c" that did not follow "a b c"

    Source: llama.cpp b11434, `src/llama-sampler.cpp` (`llama_sampler_dry`), which has it from KoboldCpp's pull request 982.
    """

    multiplier: float
    base: float
    allowed_length: int
    n_last: int
    breakers: Breakers = Factory(dict)

    @property
    def is_neutral(self) -> bool:
        return self.multiplier == 0.0 or self.n_last == 0

    def recent(self, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that would go on with a repetition, rising, and how long it would be before them."""
        text = history if self.n_last < 0 else history[-self.n_last :]
        most = self._n_back(text)
        if len(text) <= self.allowed_length or most < self.allowed_length:
            return _NO_TOKENS, _NO_TOKENS
        longest = self.allowed_length + int(_LOG_LARGEST / math.log(self.base)) if self.base > 1.000001 else len(text)
        back = np.arange(1, len(text))  # how far before the text's end an earlier occurrence ends
        n_same = np.zeros(len(text), np.int64)
        for n in range(min(most, longest, len(text) - 1)):
            back = back[back < len(text) - n]
            back = back[text[-1 - n - back] == text[-1 - n]]
            if not len(back):
                break
            n_same[back] = n + 1
        (back,) = np.nonzero((n_same >= self.allowed_length) & (np.arange(len(text)) > 0))
        tokens, places = np.unique(text[len(text) - back], return_inverse=True)
        lengths = np.zeros(len(tokens), np.int64)
        np.maximum.at(lengths, places, n_same[back])
        is_penalised = np.array([() not in self.breakers.get(token, ()) for token in tokens.tolist()], bool)
        return tokens[is_penalised], lengths[is_penalised]

    def changed(self, logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The logits of tokens that would go on with repetitions of these lengths."""
        return logits - self.multiplier * self.base ** (counts - self.allowed_length).astype(np.float64)

    def _n_back(self, text: np.ndarray) -> int:
        """How many of the last tokens stand after the last breaker."""
        tokens = text[::-1].tolist() if self.breakers else []
        for i, token in enumerate(tokens):
            tails = (tail for tail in self.breakers.get(token, ()) if len(tail) <= i)
            lengths = [len(tail) for tail in tails if tuple(tokens[i - len(tail) : i][::-1]) == tail]
            if lengths:
                return i - max(lengths)
        return len(text)


_NO_TOKENS = np.empty(0, np.int64)


def breakers(tokenizer: Tokenizer, texts: Sequence[str]) -> Breakers:
    """The tokens of breakers: tokens that hold one, and tokens that begin one, with the rest of it."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        wanted = text.encode()[:_LONGEST_TEXT]
        tails = {
            wanted[:n]: tuple(tokenizer.encode(wanted[n:].decode(errors="ignore"), add_special=False)[:_LONGEST_TAIL])
            for n in range(1, len(wanted))
        }
        for token in range(tokenizer.n_vocab):
            piece = tokenizer.piece(token)
            ways = [()] if wanted in piece else [tail for head, tail in tails.items() if piece.endswith(head)]
            if ways:
                found.setdefault(token, []).extend(ways)
    return found


_N_FITTED = 100  # of the most probable tokens, which the exponent of Zipf's law is estimated from


@define(eq=False)
class Mirostat:
    """Sampler `mirostat` of one request: keeps so many tokens that a text is as surprising as it is asked to be.

    How much surprise is allowed, mu, follows from the surprise of the tokens before. A token's distribution is kept until the
    next one is asked for; then the history says which it was. So nothing has to be undone where a draft was rejected: tokens
    are asked for in their order, and none after one that was wrong.

    Source: Basu et al. 2020, "Mirostat" (arXiv 2007.14966), algorithms 1 and 2; as llama.cpp b11434 has them
    (`src/llama-sampler.cpp`).
    """

    _version: int  # 1 or 2
    _tau: float  # surprise that is aimed at, in bits
    _eta: float  # how fast it is corrected
    _n_vocab: int  # V
    mu: float  # the surprise that is allowed of the last token, in bits
    _index: int = field(default=0, init=False)
    _drawn_from: tuple[np.ndarray, np.ndarray] | None = field(default=None, init=False)  # of the token asked for last

    def go_on(self, history: np.ndarray, index: int) -> None:
        """Token `index` of the request is asked for, after `history`."""
        if index != self._index and self._drawn_from is not None:
            ids, probabilities = self._drawn_from
            drawn = probabilities[ids == history[-1]]
            if len(drawn) and drawn[0] > 0:
                self.mu -= self._eta * (-float(np.log2(drawn[0])) - self._tau)
        self._index, self._drawn_from = index, None

    def keep(self, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens among these to draw from, (n,) int32, and their logits (n,) float64.

        Of `ids` (m,) and `logits` (m,), as of the result, the best token is the first, the others come in any order.
        """
        if self._version == 1:
            n = self._n_kept(ids, logits)
            is_kept = logits >= np.partition(logits, -n)[-n]
            return (ids[is_kept], logits[is_kept]) if np.count_nonzero(is_kept) == n else best_first(ids, logits, n)
        below = logits - logits[0]
        weights = np.exp(below)
        is_kept = (below >= np.log(weights.sum()) - self.mu * np.log(2)) & (weights > 0)
        is_kept[0] = True
        return ids[is_kept], logits[is_kept]

    def _n_kept(self, ids: np.ndarray, logits: np.ndarray) -> int:
        """How many the first algorithm keeps."""
        n_possible = int(np.count_nonzero(logits > -np.inf))
        fitted = best_first(ids, logits, min(_N_FITTED, n_possible))[1]
        if len(fitted) < 2:
            return 1
        t = np.log(np.arange(2, len(fitted) + 1) / np.arange(1, len(fitted)))
        s_hat = float((t * -np.diff(fitted)).sum() / (t * t).sum())
        if s_hat <= 0:  # all are equal: nothing says where to cut
            return n_possible
        epsilon = s_hat - 1
        with np.errstate(all="ignore"):
            scale = np.float64(epsilon) / (1 - np.float64(self._n_vocab) ** -epsilon) if epsilon else 1 / np.log(self._n_vocab)
            k = (scale * np.float64(2) ** self.mu) ** (1 / s_hat)
        return max(int(min(k, n_possible)), 1)

    def draws_from(self, ids: np.ndarray, probabilities: np.ndarray) -> None:
        """The token asked for is drawn from these."""
        self._drawn_from = ids, probabilities


_LEAST_SHARE = 0.2  # of a token that is kept, with its additions
_N_COMPARED = 512  # of the most probable tokens, whose texts are looked at: those of all would take most of a second


def infill(tokenizer: Tokenizer, end: int | None) -> SamplingStep:
    """Sampler `infill`: for code between a prefix and a suffix, where going on too long is worse than ending too soon.

    It ends the answer where the end tokens together are probable enough, or where no text is, by the token `end` even if that
    is no candidate. Otherwise of two tokens of which one begins like the other the less probable one gives its share to the
    more probable one, and tokens that are improbable after that are left out.

    Source: llama.cpp b11434, `src/llama-sampler.cpp` (`llama_sampler_infill`).
    """
    ends = np.array(sorted(tokenizer.eog), np.int32)

    def step(_: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = np.exp(logits - logits[0])
        shares = weights / weights.sum()
        is_end = np.isin(ids, ends) & (weights > 0)
        of_ends = float(shares[is_end].sum())
        if 3 * of_ends * len(ids) > 1 - of_ends:
            return ids[is_end], logits[is_end]
        texts = [b"" if tokenizer.is_special(token) else tokenizer.piece(token) for token in ids[:_N_COMPARED].tolist()]
        shares[:_N_COMPARED] = _combined(texts, shares[:_N_COMPARED])
        is_text = ~is_end & (shares >= _LEAST_SHARE)
        if not is_text.any():
            rest = is_end if is_end.any() else slice(1)
            return (ids[rest], logits[rest]) if end is None else (np.array([end], np.int32), np.zeros(1))
        least = shares[is_text | is_end].sum() / (np.count_nonzero(is_text) + 1)
        kept = (is_text & (shares >= least)) | is_end
        return ids[kept], logits[kept]

    return step


def _combined(texts: Sequence[bytes], shares: np.ndarray) -> np.ndarray:
    """The shares of tokens after those were given away; of one that has given its own, 0."""
    places = defaultdict[bytes, list[int]](list)
    for i, text in enumerate(texts):
        places[text].append(i)
    longer = defaultdict[int, list[int]](list)  # by token, the tokens that begin like it, the most probable first
    for i, text in enumerate(texts):
        for n in range(1, len(text) + 1):
            for shorter in places.get(text[:n], ()):
                longer[shorter].append(i)
    combined: list[float] = shares.tolist()
    for i in sorted(longer):
        for other in longer[i]:
            if i != other and combined[i] and combined[other]:
                to, of = (other, i) if combined[other] > combined[i] else (i, other)
                combined[to] += combined[of]
                combined[of] = 0.0
    return np.array(combined)
