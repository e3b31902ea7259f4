"""Token Recycling in plain Python: successors in a dict, and the tree as the best of all paths of ranks."""

from __future__ import annotations

import heapq
import itertools
import math


class NaiveRecycle:
    """What `recycle` learns and drafts."""

    def __init__(self, n_successors, n_max, depth, chances):
        self.successors = {}
        self.n_successors, self.n_max, self.depth = n_successors, n_max, depth
        self.chances = chances  # by rank

    def learn(self, after, ids):
        for token, best in zip(after, ids, strict=True):
            if best[0] >= 0:
                self.successors[token] = best[: self.n_successors]

    def chance(self, path):
        """That a path of ranks is right."""
        return math.prod(self.chances[min(rank, len(self.chances) - 1)] for rank in path)

    def best(self, n):
        """The chance of each of the n best paths, falling."""
        lengths = range(1, self.depth + 1)
        paths = itertools.chain.from_iterable(itertools.product(range(self.n_successors), repeat=m) for m in lengths)
        return heapq.nlargest(n, map(self.chance, paths))

    def tokens(self, last, path):
        """The tokens along a path of ranks after the token `last`; None where they are not known."""
        for rank in path:
            if last not in self.successors:
                return None
            last = self.successors[last][rank]
            yield last
