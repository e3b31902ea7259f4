"""The tokens that a draft is chosen among: the most frequent of a vocabulary, and the tokens of the texts.

The output matrix is a large part of a small model's weights: 37 % of Qwen2.5's 0.5B model. Tokenizers number
their tokens by how frequent they were where the vocabulary was made. So the first ones are most of any text, and the text
itself names the others that matter.

Source: frequency-ranked draft vocabularies are those of FR-Spec (Zhao et al. 2025, arXiv 2502.14856).
"""

from __future__ import annotations

import numpy as np

_SHARE = 4  # of the vocabulary is a quarter, unless a number is given,
_LEAST = 16384  # but no less than this
_MOST_SEEN = 16  # a sixteenth as many tokens are kept that were seen beyond the first ones,
_FEW_SEEN = 64  # but these in any case

_KEEP = 0.99  # of the estimated share of missing tokens, with each new one
_TOO_OFTEN = 0.06  # missing: every draft is then cut short more often than the smaller matrix saves


class DraftVocabulary:
    """Which logits a draft model computes, for all slots together.

    Texts in other scripts than most of the vocabulary's, or a tokenizer whose numbers follow another order, miss many tokens.
    In that case the whole vocabulary is used until few are missing.
    """

    def __init__(self, n_vocab: int, n_first: int | None = None) -> None:
        """Begin with the first tokens.

        Args:
            n_vocab: The size of the vocabulary of the model.
            n_first: How many of them; 0: all, None: a quarter, if that saves anything worth having.
        """
        self._n_first = min(max(n_vocab // _SHARE, _LEAST) if n_first is None else n_first, n_vocab)
        self._is_whole = not 0 < self._n_first < n_vocab
        self._n_vocab = n_vocab
        self._missing = 0.0  # share of the tokens
        self._seen: set[int] = set()  # beyond the first
        self._n_seen: dict[int, int] = {}  # tokens of a slot's text, by slot
        self._tokens = np.arange(self._n_first, dtype=np.int32)

    @property
    def tokens(self) -> np.ndarray | None:
        """(m,) int32, rising, the same array until there are others; None: all."""
        return None if self._is_whole or self._missing > _TOO_OFTEN else self._tokens

    def begin(self, slot: int, history: np.ndarray) -> None:
        """A slot has a new text, `history` (h,) int32."""
        self._n_seen[slot] = len(history)
        if not self._is_whole:
            self._add(history)

    def follow(self, slot: int, history: np.ndarray) -> None:
        """A slot's text went on, to `history` (h,) int32."""
        new = history[self._n_seen.get(slot, 0) :]
        self._n_seen[slot] = len(history)
        if self._is_whole:
            return
        for token in new.tolist():
            is_missing = token >= self._n_first and token not in self._seen
            self._missing += (1 - _KEEP) * (is_missing - self._missing)
        self._add(new)

    def _add(self, tokens: np.ndarray) -> None:
        found = set(tokens[(tokens >= self._n_first) & (tokens < self._n_vocab)].tolist()) - self._seen
        if not found:
            return
        most = max(self._n_first // _MOST_SEEN, _FEW_SEEN)
        if len(self._seen) + len(found) > most:
            self._seen.clear()  # of older texts
        self._seen.update(sorted(found)[:most])
        self._tokens = np.array([*range(self._n_first), *sorted(self._seen)], np.int32)
