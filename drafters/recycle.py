"""`recycle`: Token Recycling, a tree of the tokens that the target last found most probable after each token.

Every verified token comes with logits, of which all but one are thrown away. Here the most probable successors of every token
are kept in a table, a row for each token of the vocabulary, and a draft follows the table from the last token on, into several
branches at once::

    table    a → b c        draft after a    b ┬ d        ranks 0, 0 0 and 0 1
             b → d e                         │ └ e
             c → a f                         c ─ a        ranks 1 and 1 0

The rows begin with the tokens that most often follow each other in a text that ships, of short answers to common questions, or
in a file of the user's own. A row that the target filled takes the place of the text's, but where two tokens stood in the text
one after the other, the tokens that followed them there come first.

Next to the successors of the last token stand its *runners-up*, the rest of the row that it was chosen from: a token that the
target nearly wrote is often the one that it writes next, above all after a token that has no row yet.

The tree has one shape for all texts: the nodes that are most likely to be right, going by how often successors and runners-up
of each rank were. A pass that computes a tree fills the rows of all of its tokens, wrong ones included. The rows are shared by
the slots and live as long as the engine. They need no text that repeats itself.

Sources: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(arXiv 2408.08696), section 3. The differences: rows begin with a text's successors, not with the target's own of earlier use,
and the tree's nodes are in the order of their chances, so that a part of it is the best tree of that size. Runners-up as the
next token are of Liu et al. 2025, "LogitSpec: Accelerating Retrieval-based Speculative Decoding via Next Next Token
Speculation" (arXiv 2507.01449).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from heapq import heapify, heappop, heappush
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, frozen

from augury.compiled import address_of
from augury.drafters.ngram import RECYCLE_ARRAYS, RECYCLE_STATE
from augury.errors import OptionError
from augury.interfaces import Ask, CompiledDraft, Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import NO_DRAFT, Draft, Verdict

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

    def state(self, shape: np.ndarray, shape_without: np.ndarray) -> np.ndarray:
        """The `RECYCLE_STATE` by which compiled drafts follow it; see `draft` for the arguments, which are to live as long."""
        state = np.zeros((), RECYCLE_STATE)
        for name, each in zip(RECYCLE_ARRAYS, (*self._table, shape, shape_without), strict=True):
            state[name], state[f"n_{name}"], state[f"m_{name}"] = each.ctypes.data, len(each), each.shape[-1]
        return state

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


@frozen
class RecycleOptions:
    """Options of `recycle`."""

    n_successors: int = option(8, help="successors kept for each token of the vocabulary", ge=1, le=64)
    n_max: int = option(80, help="tokens of the tree at most", ge=1, le=1024, per_request=True)
    depth: int = option(6, help="length of the tree's longest branch", ge=1, le=64, per_request=True)
    text: str | None = option(
        None,
        help="UTF-8 file whose successors the table begins with, 8 characters read for each token of the vocabulary; "
        "empty: none, by default one that ships",
    )


class Recycle(Drafter):
    """Learns successors into the engine's table and drafts from it."""

    name = "recycle"
    traits = DrafterTraits(scope="process", evidence_chances=CHANCES, kernels="augury.drafters.ngram.compiled_drafts")
    options_class = RecycleOptions
    options: RecycleOptions

    def __init__(self, options: RecycleOptions, session: Session) -> None:
        super().__init__(options, session)
        n_vocab = session.model.n_vocab
        self._n_successors = n = min(options.n_successors, n_vocab)
        self.traits = evolve(self.traits, n_top=n)
        self._compiled: dict[tuple[int, int, int], CompiledDraft] = {}  # by the tree's sizes
        self._kept: list[np.ndarray] = []  # that their states lie in
        self._successors: Successors = session.shared(
            (self.name, n, options.text),
            lambda: Successors(tokens_of(options.text, session.tokenizer, n_vocab), n_vocab, n),
        )

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the table from the last token and its runners-up."""
        shapes = _tree_shapes(min(self.options.n_max, limit), self.options.depth, self._n_successors)
        return self._successors.draft(*shapes, int(history[max(len(history) - 2, 0)]), int(history[-1]))

    def compiled_draft(self, ask: Ask, n_more: int, features: Mapping[str, np.ndarray]) -> CompiledDraft | None:  # noqa: ARG002 - the interface's
        """See `Drafter.compiled_draft`."""
        from augury.drafters.ngram.compiled_drafts import draft_recycle, learn_recycle

        how = min(self.options.n_max, ask.limit), self.options.depth, self._n_successors
        if how not in self._compiled:
            state = self._successors.state(*_tree_shapes(*how))
            self._kept.append(state)
            self._compiled[how] = CompiledDraft(address_of(draft_recycle), address_of(learn_recycle), state.ctypes.data)
        return self._compiled[how]

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Keep the successors of every token that was verified."""
        if verdict.top_after is not None and verdict.top_ids is not None:
            self._successors.learn(verdict.top_after, verdict.top_ids)


@cache
def _tree_shapes(n: int, depth: int, n_successors: int) -> tuple[np.ndarray, np.ndarray]:
    return _tree_shape(n, depth, n_successors, has_row=True), _tree_shape(n, depth, n_successors, has_row=False)


def _tree_shape(n: int, depth: int, n_successors: int, *, has_row: bool) -> np.ndarray:
    """The n nodes that are most likely to be right, `depth` deep at most, with up to `n_successors` children each.

    The last token has one runner-up less than that, and successors only if it `has_row`. All rows count as the target's.

    Returns:
        (3, n) int32, see `Successors.draft`.
    """
    buckets = [min(rank, len(TARGET_CHANCES) - 1) for rank in range(n_successors)]  # by rank
    buckets += [len(TARGET_CHANCES) + min(rank, len(RUNNER_UP_CHANCES) - 1) for rank in range(n_successors - 1)]
    chances = [CHANCES[bucket] for bucket in buckets]
    found: list[tuple[int, int, int]] = []
    ranks = range(0 if has_row else n_successors, len(chances))
    open_nodes = [(-chances[rank], rank, -1, rank, 0) for rank in ranks]  # chance of the path, order, parent, rank, depth
    heapify(open_nodes)
    n_seen = len(chances)
    while open_nodes and len(found) < n:
        path, _, parent, rank, level = heappop(open_nodes)
        found.append((parent, rank, buckets[rank]))
        for successor in range(n_successors if level + 1 < depth else 0):
            heappush(open_nodes, (path * chances[successor], n_seen + successor, len(found) - 1, successor, level + 1))
        n_seen += n_successors
    return np.array(found, np.int32).reshape(-1, 3).T.copy()
