"""Token Recycling in plain Python: successors in a dict, and the tree as the best of all paths of ranks."""

from __future__ import annotations

import heapq
import itertools
import math


class NaiveRecycle:
    """What `recycle` learns and drafts."""

    def __init__(self, n_successors, n_max, depth, chances, runner_up_chances):
        self.successors = {}
        self.n_successors, self.n_max, self.depth = n_successors, n_max, depth
        self.chances, self.runner_up_chances = chances, runner_up_chances  # by rank

    def learn(self, after, ids):
        for token, best in zip(after, ids, strict=True):
            if best[0] >= 0:
                self.successors[token] = best[: self.n_successors]

    def chance(self, path):
        """That a path of ranks is right; a first rank beyond the successors is a runner-up's."""
        first, *others = path
        if first < self.n_successors:
            chance = self.chances[min(first, len(self.chances) - 1)]
        else:
            chance = self.runner_up_chances[min(first - self.n_successors, len(self.runner_up_chances) - 1)]
        return math.prod([chance, *[self.chances[min(rank, len(self.chances) - 1)] for rank in others]])  # in this order

    def best(self, n, first=None):
        """The chance of each of the n best paths, falling; `first` are the first ranks, by default all."""
        first = range(2 * self.n_successors - 1) if first is None else first
        lengths = range(self.depth)
        others = itertools.chain.from_iterable(itertools.product(range(self.n_successors), repeat=m) for m in lengths)
        return heapq.nlargest(n, (self.chance((rank, *rest)) for rest in others for rank in first))

    def runners_up(self, before, last):
        """The tokens that the one before the last might have been followed by, by rank; None for the last one's successors."""
        others = [token for token in self.successors.get(before, ()) if token != last][: self.n_successors - 1]
        return [None if token in self.successors.get(last, ()) else token for token in others]

    def tokens(self, before, last, path):
        """The tokens along a path of ranks after the tokens `before` and `last`."""
        first, *others = path
        n = self.n_successors
        last = self.successors[last][first] if first < n else self.runners_up(before, last)[first - n]
        yield last
        for rank in others:
            last = self.successors[last][rank]
            yield last


def row_of(of_pair, own, n):
    """The successors of a token, each with what tells it: those of it and the token before it, then its own ones."""
    first = [("pair", place, token) for place, token in enumerate(token for token in of_pair if token >= 0)][:n]
    known = {token for *_, token in first}
    return [*first, *(("own", rank, token) for rank, token in enumerate(own) if token not in known)][:n]
