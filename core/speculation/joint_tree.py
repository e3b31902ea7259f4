"""The proposals of several drafters for one slot, as one tree.

Equal prefixes merge::

    suffix   a b c          tree   a ┬ b ─ c      a: suffix and recycle
    recycle  a d            │      │ └ d          b, c: suffix
             e                     e              d, e: recycle

A node's chance, that it is right where its parent is, is the highest that one of its drafters has for it. Of the nodes after
one parent only one can be right: where their chances sum to more than 1, the likeliest keeps its own, and the others share what
it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Items
from typing import Generic, TypeVar

import numpy as np

from augury.speculation.chances import Agreement
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
        drawn: Of the nodes that a drafter drew, what each was drawn from, (V,) float32, in the order of the drafters; of each
            parent's one at most. They have to be verified whatever their chance: `verification.reject` would be biased against
            what is left out.

    Example:
        >>> from augury.types import Draft
        >>> tree = JointTree()
        >>> tree.add("suffix", Draft([5, 6, 7]), [0.8, 0.9, 0.9]), tree.add("recycle", Draft([5, 8], [-1, 0]), [0.4, 0.2])
        ([0, 1, 2], [0, 3])
        >>> tree.proposers
        [['suffix', 'recycle'], ['suffix'], ['suffix'], ['recycle']]
        >>> [round(chance, 3) for chance in tree.reach()]
        [0.8, 0.72, 0.648, 0.08]
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

    def add(self, proposer: Proposer, draft: Draft, chances: Items[float], after: int = -1) -> list[int]:
        """Merge a proposal into it.

        Args:
            proposer: Whose.
            draft: k tokens.
            chances: (k,), that each is right where its parent is.
            after: The node that the draft follows, -1: the history.

        Returns:
            The nodes (k,) of its tokens.
        """
        parents = None if draft.parents is None else draft.parents.tolist()
        nodes: list[int] = []
        at = after
        for i, (token, chance) in enumerate(zip(draft.tokens.tolist(), chances, strict=True)):
            if parents is not None:
                at = nodes[parents[i]] if parents[i] >= 0 else after
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
            if draft.probabilities is not None and draft.probabilities[i, token] > 0 and at not in self._has_drawn:
                self.drawn[node] = draft.probabilities[i]
                self._has_drawn.add(at)
            nodes.append(node)
            at = node
        return nodes

    def child(self, parent: int, token: int) -> int | None:
        """The node of a token after a node, or after the history, -1; None where nobody proposed it."""
        return self._nodes.get((parent, token))

    def forbid(self, nodes: Items[int]) -> None:
        """No node but these, which are rising, can be right."""
        allowed = set(nodes)
        self.chances = [chance if node in allowed else 0.0 for node, chance in enumerate(self.chances)]

    def reach(self, agreement: Agreement | None = None) -> list[float]:
        """By node: the chance that it is accepted, which falls from a parent to its children.

        Args:
            agreement: What it says of a token that others propose the same or something else; None: nothing.
        """
        chances = self.chances
        if agreement is not None:
            pairs = zip(self._kinds(), chances, strict=True)
            chances = [agreement.of(kind, chance) if 0 < chance < 1 else chance for kind, chance in pairs]
        sums = [0.0] * (len(chances) + 1)  # of the children of each node, and last of the history
        best: dict[int, int] = {}  # the likeliest of them
        for node, (parent, chance) in enumerate(zip(self.parents, chances, strict=True)):
            sums[parent] += chance
            if chance > chances[best.setdefault(parent, node)]:
                best[parent] = node
        reach: list[float] = []
        for node, (parent, chance) in enumerate(zip(self.parents, chances, strict=True)):
            alive = 1.0 if parent < 0 else reach[parent]
            if sums[parent] > 1 and node != best[parent]:
                most = chances[best[parent]]
                chance *= (1 - most) / (sums[parent] - most)  # noqa: PLW2901 - its share of what is left
            reach.append(alive * chance)
        return reach

    def _kinds(self) -> list[int]:
        """By node: whether other drafters propose the same, or something else after its parent."""
        first: dict[int, Proposer] = {}
        contested = set[int]()
        for parent, proposers in zip(self.parents, self.proposers, strict=True):
            if len(proposers) > 1 or first.setdefault(parent, proposers[0]) is not proposers[0]:
                contested.add(parent)
        return [
            Agreement.AGREED if len(proposers) > 1 else Agreement.CONTESTED if parent in contested else Agreement.ALONE
            for parent, proposers in zip(self.parents, self.proposers, strict=True)
        ]

    def teach(self, agreement: Agreement, emitted: Items[int]) -> None:
        """Let it learn from what was emitted."""
        kinds, node = self._kinds(), -1
        for token in emitted:
            following = [i for i in range(node + 1, len(self.tokens)) if self.parents[i] == node and 0 < self.chances[i] < 1]
            for i in following:
                agreement.see(kinds[i], self.chances[i], is_right=self.tokens[i] == token)
            if (node := next((i for i in following if self.tokens[i] == token), -1)) < 0:
                break

    def best_path(self, reach: Items[float]) -> list[int]:
        """The nodes from the history on, each time to the child that was drawn, or else to the likeliest."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            is_better = reach[node] > (reach[best[parent]] if parent in best else 0.0)
            if node in self.drawn or (is_better and best.get(parent) not in self.drawn):
                best[parent] = node
        path, node = list[int](), -1
        while (node := best.get(node, -1)) >= 0:
            path.append(node)
        return path

    def part(self, nodes: Items[int]) -> Draft:
        """These nodes, rising, with the parents of each among them, as a draft; a chain where they do not branch."""
        if not nodes:
            return Draft()
        places = {node: i for i, node in enumerate(nodes)}
        parents = [places.get(self.parents[node], -1) for node in nodes]
        is_chain = all(parent == i - 1 for i, parent in enumerate(parents))
        probabilities = None
        if self.drawn:
            certain = np.zeros_like(next(iter(self.drawn.values())))
            probabilities = np.array([self.drawn.get(node, certain) for node in nodes]).reshape(len(nodes), len(certain))
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
