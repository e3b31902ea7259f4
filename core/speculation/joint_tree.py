"""The proposals of several drafters for one slot, as one tree.

Equal prefixes merge::

    suffix   a b c          tree   a ┬ b ─ c      a: suffix and recycle
    recycle  a d            │      │ └ d          b, c: suffix
             e                     e              d, e: recycle

A node's chance, that it is right where its parent is, is the highest that one of its drafters has for it. Only one of the nodes
after one parent can be right: where their chances sum to more than 1, the likeliest keeps its own, and the others share the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from augury.speculation.chances import Agreement
from augury.types import NO_DRAFT, Draft

__all__ = ["JointTree"]

Proposer = TypeVar("Proposer")


class JointTree(Generic[Proposer]):
    """A tree of drafted tokens, each with its drafters. A node comes after its parent.

    Attributes:
        tokens: By node.
        parents: By node, -1: the history.
        chances: By node: that it is right where its parent is; 0 of one that is forbidden. Of a tree made `alone` the draft's
            confidence, or empty.
        proposers: By node.
        children: By parent, -1: the history: the nodes after it, by token.
        drawn: For the nodes that a drafter drew, each one's distribution, (V,) float32, in the order of the drafters; at most
            one for each parent. They have to be verified with any chance: `verification.reject` would be biased against omitted
            ones.

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
        self.children: dict[int, dict[int, int]] = {}
        self.drawn: dict[int, np.ndarray] = {}
        self._rivals: dict[int, Proposer | None] = {}  # by parent: who alone proposes something after it; None: several do

    @classmethod
    def alone(cls, proposer: Proposer, draft: Draft) -> JointTree[Proposer]:
        """One draft as it is, token by token."""
        tree = cls()
        tree.tokens = draft.tokens.tolist()
        tree.parents = list(range(-1, len(draft) - 1)) if draft.parents is None else draft.parents.tolist()
        tree.chances = [] if draft.confidence is None else draft.confidence.tolist()
        tree.proposers = [[proposer]] * len(draft)
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
            tree.children.setdefault(parent, {}).setdefault(token, node)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, proposer: Proposer, draft: Draft, chances: Sequence[float], after: int = -1) -> list[int]:
        """Merge a proposal into it.

        Args:
            proposer: Whose.
            draft: k tokens.
            chances: (k,), that each is right where its parent is.
            after: The node that the draft follows, -1: the history.

        Returns:
            The nodes (k,) of its tokens.
        """
        probabilities, at = draft.probabilities, after
        parents = None if draft.parents is None else draft.parents.tolist()
        nodes: list[int] = []
        rivals, proposers = self._rivals, self.proposers
        for i, (token, chance) in enumerate(zip(draft.tokens.tolist(), chances, strict=True)):
            if parents is not None:
                at = nodes[parents[i]] if parents[i] >= 0 else after
            if (siblings := self.children.get(at)) is None:
                siblings = self.children[at] = {}
                rivals[at] = proposer
            elif rivals[at] is not proposer:
                rivals[at] = None
            if (node := siblings.get(token)) is None:
                node = siblings[token] = len(proposers)
                proposers.append([proposer])
                self.tokens.append(token)
                self.parents.append(at)
                self.chances.append(chance)
            elif proposer not in proposers[node]:
                proposers[node].append(proposer)
                self.chances[node] = max(self.chances[node], chance)
            else:
                self.chances[node] = max(self.chances[node], chance)
            if probabilities is not None and probabilities[i, token] > 0 and self.drawn.keys().isdisjoint(siblings.values()):
                self.drawn[node] = probabilities[i]
            nodes.append(node)
            at = node
        return nodes

    def forbid(self, nodes: Sequence[int]) -> None:
        """No node but these, which are rising, can be right."""
        allowed = set(nodes)
        self.chances = [chance if node in allowed else 0.0 for node, chance in enumerate(self.chances)]

    def reach(self, agreement: Agreement | None = None) -> list[float]:
        """By node: the chance that it is accepted, which falls from a parent to its children.

        Args:
            agreement: The effect of other drafters' proposals, the same or different ones, on a token's chance; None: none.
        """
        reach = self.chances.copy() if agreement is None else agreement.of(self.kinds(range(len(self))), self.chances)
        for parent, siblings in self.children.items():  # parents come before their children
            before = reach[parent] if parent >= 0 else 1.0
            if len(siblings) == 1:
                for node in siblings.values():
                    reach[node] *= before
                continue
            chances = [reach[node] for node in siblings.values()]
            total, most = sum(chances), max(chances)
            rest = (1 - most) / (total - most) if total > 1 else 1.0  # the share of the others
            best = chances.index(most)
            for i, node in enumerate(siblings.values()):
                reach[node] = chances[i] * (1.0 if i == best else rest) * before
        return reach

    def kinds(self, nodes: Iterable[int]) -> list[int]:
        """Of each of these nodes: whether other drafters propose the same, or something else after its parent."""
        alone, agreed, contested, rivals = Agreement.ALONE, Agreement.AGREED, Agreement.CONTESTED, self._rivals
        return [
            agreed if len(self.proposers[node]) > 1 else contested if rivals[self.parents[node]] is None else alone
            for node in nodes
        ]

    def teach(self, agreement: Agreement, emitted: Sequence[int]) -> None:
        """Let it learn from the emitted tokens."""
        chances, right = self.chances, -1
        for token in emitted:
            siblings = self.children.get(right, {})
            right = siblings.get(token, -1)
            for node, kind in zip(siblings.values(), self.kinds(siblings.values()), strict=True):
                if 0 < chances[node] < 1:
                    agreement.see(kind, chances[node], is_right=node == right)
            if right < 0:
                break

    def best_path(self, reach: Sequence[float]) -> list[int]:
        """The nodes from the history on, each time to the child that was drawn, or else to the likeliest."""
        path: list[int] = []
        while siblings := self.children.get(path[-1] if path else -1):
            drawn = [node for node in siblings.values() if node in self.drawn] if self.drawn else ()
            best = drawn[-1] if drawn else max(siblings.values(), key=reach.__getitem__)
            if not drawn and reach[best] <= 0:
                break
            path.append(best)
        return path

    def part(self, nodes: Sequence[int]) -> Draft:
        """These nodes, rising, with the parents of each among them, as a draft; a chain where they do not branch."""
        if not nodes:
            return NO_DRAFT
        places = {node: i for i, node in enumerate(nodes)}
        parents = [places.get(self.parents[node], -1) for node in nodes]
        is_chain = parents == list(range(-1, len(nodes) - 1))
        probabilities = None
        if self.drawn:
            certain = np.zeros_like(next(iter(self.drawn.values())))
            probabilities = np.array([self.drawn.get(node, certain) for node in nodes]).reshape(len(nodes), len(certain))
        return Draft([self.tokens[node] for node in nodes], None if is_chain else parents, probabilities)

    def ancestry(self, nodes: Iterable[int]) -> list[int]:
        """These nodes and all before them, rising."""
        found = set[int]()
        for node in nodes:
            while node >= 0 and node not in found:
                found.add(node)
                node = self.parents[node]  # noqa: PLW2901 - upwards
        return sorted(found)
