"""Sampler `infill`: for code between a prefix and a suffix, where going on too long is worse than ending too soon.

It ends the answer where the end tokens together are probable enough, or where no text is. Otherwise of two tokens of which one
begins like the other the less probable one gives its share to the more probable one, and tokens that are improbable after that
are left out.

Source: llama.cpp b11434, `src/llama-sampler.cpp` (`llama_sampler_infill`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from augury.engine.sampling_step import SamplingStep

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

_LEAST_SHARE = 0.2  # of a token that is kept, with its additions
_N_COMPARED = 512  # of the most probable tokens, whose texts are looked at: those of all would take most of a second


def infill(tokenizer: Tokenizer, end: int | None) -> SamplingStep:
    """Make the step. The token `end` ends an answer where no text is probable, even if it is no candidate."""
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
