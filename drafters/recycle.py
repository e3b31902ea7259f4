"""`recycle`: Token Recycling, a tree of the tokens that the target last found most probable after each token.

Every verified token comes with logits, of which all but one are thrown away. Here the most probable successors of every token
are kept in a table, a row for each token of the vocabulary, and a draft follows the table from the last token on, into several
branches at once::

    table    a → b c        draft after a    b ┬ d        ranks 0, 0 0 and 0 1
             b → d e                         │ └ e
             c → a f                         c ─ a        ranks 1 and 1 0

The tree has one shape for all texts: the nodes that are most likely to be right, going by how often successors of each rank
were. A pass that computes a tree fills the rows of all of its tokens, wrong ones included. The rows are shared by the slots and
live as long as the engine. It needs no text that repeats itself.

Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
(arXiv 2408.08696), section 3. The differences: rows begin empty, and the tree's nodes are in the order of their chances, so
that a part of it is the best tree of that size.
"""

from __future__ import annotations

from functools import cache
from heapq import heappop, heappush

import numpy as np
from attrs import frozen

from augury.hookspecs import hookimpl
from augury.interfaces import Drafter, Session
from augury.options import option
from augury.types import NO_DRAFT, Draft, Verdict

__all__ = ["Recycle", "RecycleOptions"]

_CHANCES = (0.44, 0.096, 0.049, 0.036, 0.026, 0.015, 0.012, 0.01)  # by rank; docs/benchmarks.md has how they were measured


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
    evidence_chances = _CHANCES

    def __init__(self, options: RecycleOptions, session: Session) -> None:
        super().__init__(options, session)
        shape = (session.model.n_vocab, min(options.n_successors, session.model.n_vocab))
        self.n_top = shape[1]
        self._table: np.ndarray = session.shared(("recycle", shape), lambda: np.full(shape, -1, np.int32))

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        """Follow the table from the last token."""
        successors = {-1: self._table[history[-1]].tolist()}  # of a node of the draft; lists, for NumPy's calls take longer
        if successors[-1][0] < 0:
            return NO_DRAFT
        tokens: list[int] = []
        parents: list[int] = []
        evidence: list[int] = []
        places = {-1: -1}  # by node of the shape: where it is in the draft, which has those that are known
        for node, (parent, rank) in enumerate(_tree_shape(min(self.options.n_max, limit), self.options.depth, self.n_top)):
            if (at := places.get(parent)) is None:
                continue
            if at not in successors:
                successors[at] = self._table[tokens[at]].tolist()
            if (token := successors[at][rank]) >= 0:
                places[node] = len(tokens)
                tokens.append(token)
                parents.append(at)
                evidence.append(min(rank, len(_CHANCES) - 1))
        return Draft(tokens, parents, evidence=evidence)

    def accept(self, history: np.ndarray, verdict: Verdict) -> None:  # noqa: ARG002 - the interface's
        """Keep the successors of every token that was verified."""
        if verdict.top_after is not None and verdict.top_ids is not None:
            for token, ids in zip(verdict.top_after.tolist(), verdict.top_ids, strict=True):
                if ids[0] >= 0:  # -1: its row is not finite
                    self._table[token] = ids


@cache
def _tree_shape(n: int, depth: int, n_successors: int) -> list[tuple[int, int]]:
    """The n nodes that are most likely to be right, `depth` deep at most, with up to `n_successors` children each.

    Returns:
        The parent of each, -1 for the text's last token, and which of that one's successors it is.
    """
    found: list[tuple[int, int]] = []
    open_nodes = [(-_chance(0), 0, -1, 0, 0)]  # chance of the path, order found, parent, rank, depth
    n_seen = 1
    while open_nodes and len(found) < n:
        path, _, parent, rank, level = heappop(open_nodes)
        found.append((parent, rank))
        if rank + 1 < n_successors:
            heappush(open_nodes, (path / _chance(rank) * _chance(rank + 1), n_seen, parent, rank + 1, level))
        if level + 1 < depth:
            heappush(open_nodes, (path * _chance(0), n_seen + 1, len(found) - 1, 0, level + 1))
        n_seen += 2
    return found


def _chance(rank: int) -> float:
    return _CHANCES[min(rank, len(_CHANCES) - 1)]


@hookimpl
def augury_drafters() -> list[type[Drafter]]:
    """Offer `recycle`."""
    return [Recycle]
