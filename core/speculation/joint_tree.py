"""The proposals of several drafters for one slot, as one tree.

Equal prefixes merge::

    suffix   a b c          tree   a ┬ b ─ c      a: suffix and recycle
    recycle  a d            │      │ └ d          b, c: suffix
             e                     e              d, e: recycle

A node's chance, that it is right where its parent is, is the highest that one of its drafters has for it. Of the nodes after
one parent only one can be right, so their chances are scaled down where they sum to more than 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Items
from typing import Generic, TypeVar

import numpy as np

from augury.types import Draft

__all__ = ["JointTree"]

Proposer = TypeVar("Proposer")


class JointTree(Generic[Proposer]):
    """A tree of drafted tokens, each with those who proposed it. A node comes after its parent.

    Attributes:
        tokens: By node.
        parents: By node, -1: the history.
        chances: By node: that it is right where its parent is; 0 of one that is forbidden.
        proposers: By node.
        drawn: Of the nodes that a drafter drew, what each was drawn from, (V,) float32; of each parent's one at most. They have
            to be verified whatever their chance, for `verification.reject` would be biased against what is left out.

    Example:
        >>> from augury.types import Draft
        >>> tree = JointTree()
        >>> tree.add("suffix", Draft([5, 6, 7]), [0.8, 0.9, 0.9]), tree.add("recycle", Draft([5, 8], [-1, 0]), [0.4, 0.2])
        ([0, 1, 2], [0, 3])
        >>> tree.proposers
        [['suffix', 'recycle'], ['suffix'], ['suffix'], ['recycle']]
        >>> [round(chance, 3) for chance in tree.reach()]
        [0.8, 0.655, 0.589, 0.145]
        >>> tree.part([0, 3]).tokens.tolist()
        [5, 8]
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.proposers: list[list[Proposer]] = []
        self.drawn: dict[int, np.ndarray] = {}
        self._nodes: dict[tuple[int, int], int] = {}  # by parent and token
        self._has_drawn: set[int] = set()  # nodes one of whose children was drawn

    @classmethod
    def alone(cls, proposer: Proposer, draft: Draft) -> JointTree[Proposer]:
        """One draft as it is, token by token."""
        tree = cls()
        tree.tokens = draft.tokens.tolist()
        tree.parents = list(range(-1, len(draft) - 1)) if draft.parents is None else draft.parents.tolist()
        tree.chances, tree.proposers = [1.0] * len(draft), [[proposer]] * len(draft)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, proposer: Proposer, draft: Draft, chances: Items[float]) -> list[int]:
        """Merge a proposal into it.

        Args:
            proposer: Whose.
            draft: k tokens.
            chances: (k,), that each is right where its parent is.

        Returns:
            The nodes (k,) of its tokens.
        """
        parents = None if draft.parents is None else draft.parents.tolist()
        nodes: list[int] = []
        at = -1
        for i, (token, chance) in enumerate(zip(draft.tokens.tolist(), chances, strict=True)):
            if parents is not None:
                at = nodes[parents[i]] if parents[i] >= 0 else -1
            node = self._nodes.setdefault((at, token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(at)
                self.chances.append(chance)
                self.proposers.append([proposer])
            else:
                self.chances[node] = max(self.chances[node], chance)
                if proposer not in self.proposers[node]:
                    self.proposers[node].append(proposer)
            if draft.probabilities is not None and at not in self._has_drawn:
                self.drawn[node] = draft.probabilities[i]
                self._has_drawn.add(at)
            nodes.append(node)
            at = node
        return nodes

    def forbid(self, nodes: Items[int]) -> None:
        """No node but these, which are rising, can be right."""
        allowed = set(nodes)
        self.chances = [chance if node in allowed else 0.0 for node, chance in enumerate(self.chances)]

    def reach(self) -> list[float]:
        """By node: the chance that it is accepted, which falls from a parent to its children."""
        sums = [0.0] * (len(self.tokens) + 1)
        for parent, chance in zip(self.parents, self.chances, strict=True):
            sums[parent] += chance  # -1: the last
        reach: list[float] = []
        for parent, chance in zip(self.parents, self.chances, strict=True):
            alive = 1.0 if parent < 0 else reach[parent]
            reach.append(alive * chance / sums[parent] if sums[parent] > 1 else alive * chance)
        return reach

    def best_path(self, reach: Items[float]) -> list[int]:
        """The nodes from the history on, each time to the child that is likeliest."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            if reach[node] > (reach[best[parent]] if parent in best else 0.0):
                best[parent] = node
        path, node = list[int](), -1
        while (node := best.get(node, -1)) >= 0:
            path.append(node)
        return path

    def part(self, nodes: Items[int]) -> Draft:
        """These nodes, rising, with the parents of each among them, as a draft; a chain where they do not branch."""
        places = {node: i for i, node in enumerate(nodes)}
        parents = [places.get(self.parents[node], -1) for node in nodes]
        is_chain = all(parent == i - 1 for i, parent in enumerate(parents))
        probabilities = None
        if self.drawn:
            rows = [self.drawn.get(node) for node in nodes]
            n_vocab = len(next(iter(self.drawn.values())))
            probabilities = np.zeros((len(nodes), n_vocab), np.float32)
            for i, row in enumerate(rows):
                if row is not None:
                    probabilities[i] = row
        confidence = np.array([self.chances[node] for node in nodes], np.float32)
        tokens = [self.tokens[node] for node in nodes]
        return Draft(tokens, None if is_chain else parents, probabilities, confidence)

    def ancestry(self, nodes: Iterable[int]) -> list[int]:
        """These nodes and all before them, rising."""
        found = set[int]()
        for node in nodes:
            while node >= 0 and node not in found:
                found.add(node)
                node = self.parents[node]  # noqa: PLW2901 - upwards
        return sorted(found)
