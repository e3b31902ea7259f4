"""The likely successors of every token: the target's most probable ones, and before it has told them a text's most frequent."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import OptionError
from augury.types import NO_DRAFT, Draft

if TYPE_CHECKING:
    from augury.text.tokenizer import Tokenizer

# docs/benchmarks.md has how they were measured
TARGET_CHANCES = (0.42, 0.091, 0.042, 0.025, 0.029, 0.015, 0.012, 0.01)  # by rank
RUNNER_UP_CHANCES = (0.036, 0.02, 0.02, 0.016, 0.013, 0.012, 0.011)  # by rank
_TEXT_CHANCES = (0.14, 0.055, 0.039, 0.018, 0.011, 0.015, 0.01, 0.01)  # by rank
_PAIR_CHANCES = (0.27, 0.11, 0.11, 0.39, 0.082, 0.31, 0.91)  # see `_pair_kinds`
CHANCES = (*TARGET_CHANCES, *RUNNER_UP_CHANCES, *_TEXT_CHANCES, *_PAIR_CHANCES)
FIRST_OF_TEXT = len(TARGET_CHANCES) + len(RUNNER_UP_CHANCES)
FIRST_OF_PAIRS = FIRST_OF_TEXT + len(_TEXT_CHANCES)

_N_OF_PAIR = 3  # successors kept for two tokens
_N_CHARACTERS = 8  # of text for each token of the vocabulary: more takes long to tokenize, and adds rare successors


class Successors:
    """Rows of tokens, the most likely first, and the bucket of each, which is its place in `CHANCES`.

    A row is of one token. Where this token and the one before it stood in the text, the tokens that followed there come first.
    """

    def __init__(self, text: np.ndarray, n_vocab: int, n: int) -> None:
        """Count a text.

        Args:
            text: (t,) int32.
            n_vocab: Tokens of the vocabulary.
            n: Length of a row.
        """
        from augury.drafters.ngram import kernels

        self._kernels = kernels
        rows = np.full((n_vocab, n), -1, np.int32)
        places = text.astype(np.int64)
        tokens, rows[tokens], *_ = most_frequent(places[:-1], text[1:], n)
        pairs, of_pairs, *counts = most_frequent(places[:-2] * n_vocab + places[1:-1], text[2:], _N_OF_PAIR)
        buckets = np.array([0, FIRST_OF_TEXT, len(TARGET_CHANCES), FIRST_OF_PAIRS], np.int32)
        self._table = rows, np.zeros(n_vocab, bool), pairs, of_pairs, _pair_kinds(*counts).astype(np.int32), buckets

    def draft(self, shape: np.ndarray, shape_without: np.ndarray, before: int, last: int) -> Draft:
        """Follow the rows from `last`, which follows `before`, and from its runners-up.

        Args:
            shape: (3, m) int32, of each node its parent, -1 for the last token, which of that one's successors it is, and after
                these which of its runners-up, and its bucket.
            shape_without: The same where the last token has no row.
            before: The token before the last.
            last: The last token of the text.
        """
        tree = np.empty((3, max(shape.shape[1], shape_without.shape[1])), np.int32)
        if not (k := self._kernels.draft_successors(*self._table, shape, shape_without, before, last, tree)):
            return NO_DRAFT
        return Draft.of_table(tree[:, :k])

    def learn(self, tokens: np.ndarray, best: np.ndarray) -> None:
        """Keep the target's most probable tokens (m, n) int32 after each of the (m,) tokens; -1 is not finite."""
        self._kernels.learn_successors(*self._table[:2], tokens, best)


def tokens_of(path: str | None, tokenizer: Tokenizer | None, n_vocab: int) -> np.ndarray:
    """The tokens of a file's beginning, (t,) int32, those below n_vocab.

    Args:
        path: A file of UTF-8 text; None: one that ships, empty: none.
        tokenizer: None: there are no tokens.
        n_vocab: Tokens of the vocabulary.

    Raises:
        OptionError: The file cannot be read, or is no UTF-8.
    """
    if path == "" or tokenizer is None:
        return np.empty(0, np.int32)
    source = files("augury.drafters").joinpath("common_text.txt") if path is None else Path(path).expanduser()
    try:
        with source.open(encoding="utf-8") as file:
            text = file.read(_N_CHARACTERS * n_vocab)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"recycle: text {path} could not be read: {reason}; name a file of UTF-8 text") from error
    tokens = np.array(tokenizer.encode(text, add_special=False), np.int32)
    return tokens[tokens < n_vocab]


def most_frequent(contexts: np.ndarray, after: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Count the tokens that follow each context.

    Args:
        contexts: (t,) int64.
        after: (t,) int32, the token after each.
        n: Tokens kept of each context.

    Returns:
        The different contexts (c,), their most frequent tokens (c, n), -1 where there are fewer, how often each follows (c, n),
        and how often each context occurs (c,).
    """
    different, places, totals = np.unique(contexts, return_inverse=True, return_counts=True)
    both, counts = np.unique(places << 32 | after, return_counts=True)
    places, after = both >> 32, both & (1 << 32) - 1
    order = np.lexsort((-counts, places))
    places = places[order]
    ranks = np.arange(len(order)) - np.searchsorted(places, places)
    is_kept = ranks < n
    at, kept = (places[is_kept], ranks[is_kept]), order[is_kept]
    rows, n_followed = np.full((len(different), n), -1, np.int32), np.zeros((len(different), n), np.int64)
    rows[at], n_followed[at] = after[kept], counts[kept]
    return different, rows, n_followed, totals


def _pair_kinds(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The kinds of tokens after two others, (c, n), by how many of the (c,) occurrences each of the (c, n) follows.

    0: after the only one. Of two or three 1: a third at most, 2: more, 3: all. Of more 4 to 6 in the same way.
    """
    totals = totals[:, None]
    kinds = 1 + 3 * (totals > 3) + (3 * counts > totals) + (counts == totals)
    return np.where(totals == 1, 0, kinds)
