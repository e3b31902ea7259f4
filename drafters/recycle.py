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

from functools import cache
from heapq import heapify, heappop, heappush

import numpy as np
from attrs import evolve, frozen

from augury.drafters.ngram.successors import CHANCES, RUNNER_UP_CHANCES, TARGET_CHANCES, Successors, tokens_of
from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft, Verdict


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
    traits = DrafterTraits(scope="process", evidence_chances=CHANCES, kernels="augury.drafters.ngram.kernels")
    options_class = RecycleOptions
    options: RecycleOptions

    def __init__(self, options: RecycleOptions, session: Session) -> None:
        super().__init__(options, session)
        n_vocab = session.model.n_vocab
        self._n_successors = n = min(options.n_successors, n_vocab)
        self.traits = evolve(self.traits, n_top=n)
        self._successors: Successors = session.shared(
            (self.name, n, options.text),
            lambda: Successors(tokens_of(options.text, session.tokenizer, n_vocab), n_vocab, n),
        )

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the table from the last token and its runners-up."""
        shapes = _tree_shapes(min(self.options.n_max, limit), self.options.depth, self._n_successors)
        return self._successors.draft(*shapes, int(history[max(len(history) - 2, 0)]), int(history[-1]))

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Keep the successors of every token that was verified."""
        if verdict.top_after is not None and verdict.top_ids is not None:
            self._successors.learn(verdict.top_after, verdict.top_ids)


@cache
def _tree_shapes(n: int, depth: int, n_successors: int) -> tuple[np.ndarray, np.ndarray]:
    """The shapes where the last token has a row, and where it has none."""
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


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `recycle`."""
    return [Recycle]
