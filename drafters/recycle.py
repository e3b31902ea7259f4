"""`recycle`: Token Recycling, a tree of the tokens that the target last found most probable after each token.

Every verified token comes with logits, of which all but one are thrown away. Here the most probable successors of every token
are kept in a table, a row for each token of the vocabulary, and a draft follows the table from the last token on, into several
branches at once::

    table    a → b c        draft after a    b ┬ d        ranks 0, 0 0 and 0 1
             b → d e                         │ └ e
             c → a f                         c ─ a        ranks 1 and 1 0

Next to the successors of the last token stand its *runners-up*, the rest of the row that it was chosen from: a token that the
target nearly wrote is often the one that it writes next, above all after a token that has no row yet.

The tree has one shape for all texts: the nodes that are most likely to be right, going by how often successors and runners-up
of each rank were. A pass that computes a tree fills the rows of all of its tokens, wrong ones included. The rows are shared by
the slots and live as long as the engine. It needs no text that repeats itself.

Sources: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(arXiv 2408.08696), section 3. The differences: rows begin empty, and the tree's nodes are in the order of their chances, so
that a part of it is the best tree of that size. Runners-up as the next token are of Liu et al. 2025, "LogitSpec: Accelerating
Retrieval-based Speculative Decoding via Next Next Token Speculation" (arXiv 2507.01449).
"""

from __future__ import annotations

from functools import cache
from heapq import heapify, heappop, heappush

import numpy as np
from attrs import frozen

from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session
from augury.options import option
from augury.types import NO_DRAFT, Draft, Verdict

__all__ = ["Recycle", "RecycleOptions"]

# By rank; docs/benchmarks.md has how they were measured
_CHANCES = (0.44, 0.096, 0.049, 0.036, 0.026, 0.015, 0.012, 0.01)
_RUNNER_UP_CHANCES = (0.046, 0.029, 0.024, 0.021, 0.022, 0.017, 0.015)


@frozen
class RecycleOptions:
    """Options of `recycle`."""

    n_successors: int = option(8, help="successors kept for each token of the vocabulary", ge=1, le=64)
    n_max: int = option(80, help="tokens of the tree at most", ge=1, le=1024, per_request=True)
    depth: int = option(6, help="length of the tree's longest branch", ge=1, le=64, per_request=True)


class Recycle(Drafter):
    """Learns successors into the engine's table and drafts from it."""

    name = "recycle"
    scope = "process"
    options_class = RecycleOptions
    evidence_chances = (*_CHANCES, *_RUNNER_UP_CHANCES)

    def __init__(self, options: RecycleOptions, session: Session) -> None:
        super().__init__(options, session)
        shape = (session.model.n_vocab, min(options.n_successors, session.model.n_vocab))
        self.n_top = shape[1]
        self._table: np.ndarray = session.shared(("recycle", shape), lambda: np.full(shape, -1, np.int32))

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the table from the last token and its runners-up."""
        last, n = int(history[-1]), self.n_top
        row = self._table[last].tolist()  # lists, for NumPy's calls take longer
        runners_up = [token for token in self._table[history[-2:][0]].tolist() if token != last][: n - 1]
        shape = _tree_shape(min(self.options.n_max, limit), self.options.depth, n, has_row=row[0] >= 0)
        successors = {-1: row + [-1 if token in row else token for token in runners_up]}  # by node of the draft
        tokens: list[int] = []
        parents: list[int] = []
        evidence: list[int] = []
        places = {-1: -1}  # by node of the shape: where it is in the draft, which has those that are known
        for node, (parent, rank, ground) in enumerate(shape):
            if (at := places.get(parent)) is None:
                continue
            if at not in successors:
                successors[at] = self._table[tokens[at]].tolist()
            if (token := successors[at][rank]) >= 0:
                places[node] = len(tokens)
                tokens.append(token)
                parents.append(at)
                evidence.append(ground)
        return Draft(tokens, parents, evidence=evidence) if tokens else NO_DRAFT

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Keep the successors of every token that was verified."""
        if verdict.top_after is not None and verdict.top_ids is not None:
            for token, ids in zip(verdict.top_after.tolist(), verdict.top_ids, strict=True):
                if ids[0] >= 0:  # -1: its row is not finite
                    self._table[token] = ids


@cache
def _tree_shape(n: int, depth: int, n_successors: int, *, has_row: bool) -> list[tuple[int, int, int]]:
    """The n nodes that are most likely to be right, `depth` deep at most, with up to `n_successors` children each.

    The last token has one runner-up less than that, and successors only if it `has_row`.

    Returns:
        Of each node its parent, -1 for the last token, which of that one's successors it is, and after these which of its
        runners-up, and its place in `Recycle.evidence_chances`.
    """
    grounds = [min(rank, len(_CHANCES) - 1) for rank in range(n_successors)]  # by rank
    grounds += [len(_CHANCES) + min(rank, len(_RUNNER_UP_CHANCES) - 1) for rank in range(n_successors - 1)]
    chances = [Recycle.evidence_chances[ground] for ground in grounds]
    found: list[tuple[int, int, int]] = []
    ranks = range(0 if has_row else n_successors, len(chances))
    open_nodes = [(-chances[rank], rank, -1, rank, 0) for rank in ranks]  # chance of the path, order, parent, rank, depth
    heapify(open_nodes)
    n_seen = len(chances)
    while open_nodes and len(found) < n:
        path, _, parent, rank, level = heappop(open_nodes)
        found.append((parent, rank, grounds[rank]))
        for successor in range(n_successors if level + 1 < depth else 0):
            heappush(open_nodes, (path * chances[successor], n_seen + successor, len(found) - 1, successor, level + 1))
        n_seen += n_successors
    return found


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `recycle`."""
    return [Recycle]
