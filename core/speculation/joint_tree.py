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

from augury.speculation.chances import Agreement, Chances
from augury.speculation.constants import CHANCE, FIRST, IS_DRAWN, PARENT, PROPOSERS, REACH, TOKEN, kernels
from augury.types import NO_DRAFT, Draft

Proposer = TypeVar("Proposer")


_ROOM = 64  # nodes: of most rounds


class JointTree(Generic[Proposer]):
    """A tree of drafted tokens, each with its drafters, 63 at most. A node comes after its parent.

    Attributes:
        nodes: (5, room) int64, the rows that `augury.speculation.constants` names.
        drafters: Those that propose something, each with the bit of its place.
        drawn: For the nodes that a drafter drew, each one's distribution, (V,) float32, in the order of the drafters; at most
            one for each parent. They have to be verified with any chance: `verification.reject` would be biased against omitted
            ones.

    Example:
        >>> from augury.types import Draft
        >>> tree = JointTree()
        >>> tree.add("suffix", Draft([5, 6, 7]), [0.8, 0.9, 0.9]).tolist()
        [0, 1, 2]
        >>> tree.add("recycle", Draft([5, 8], [-1, 0]), [0.4, 0.2]).tolist()
        [0, 3]
        >>> tree.proposers
        [['suffix', 'recycle'], ['suffix'], ['suffix'], ['recycle']]
        >>> tree.reach().round(3).tolist()
        [0.8, 0.72, 0.648, 0.08]
        >>> tree.part([0, 3]).tokens.tolist()
        [5, 8]
    """

    def __init__(self) -> None:
        self.nodes = np.empty((5, _ROOM), np.int64)
        self.drafters: list[Proposer] = []
        self.drawn: dict[int, np.ndarray] = {}
        self._chances = np.empty((2, _ROOM))
        self._n = 0

    @classmethod
    def alone(cls, proposer: Proposer, draft: Draft) -> JointTree[Proposer]:
        """One draft as it is, token by token."""
        tree, n = cls(), len(draft)
        tree.drafters, tree._n = [proposer], n
        tree.nodes = np.stack([draft.tokens, draft.above, *np.ones((2, n), np.int64), np.zeros(n, np.int64)])
        tree._chances = np.stack([np.zeros(n) if draft.confidence is None else draft.confidence.astype(float)] * 2)
        return tree

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> list[int]:
        """By node."""
        return self.nodes[TOKEN, : self._n].tolist()

    @property
    def parents(self) -> list[int]:
        """By node, -1: the history."""
        return self.nodes[PARENT, : self._n].tolist()

    @property
    def chances(self) -> np.ndarray:
        """By node: that it is right where its parent is; 0 of one that is forbidden, or where nobody plans or is confident."""
        return self._chances[CHANCE, : self._n]

    @property
    def proposers(self) -> list[list[Proposer]]:
        """By node."""
        rows = self.nodes[FIRST : PROPOSERS + 1, : self._n].T.tolist()
        return [[self.drafters[i] for bits in (first, every & ~first) for i in _places(bits)] for first, every in rows]

    def proposed(self, nodes: Sequence[int], *, is_first: bool = False) -> list[int]:
        """The bits of all drafters of some nodes, or of the first one of each."""
        bits = self.nodes[FIRST if is_first else PROPOSERS, : self._n].tolist()
        return [bits[node] for node in nodes]

    def bits(self, proposers: Iterable[Proposer]) -> int:
        """The bits of some drafters."""
        return sum([1 << self.drafters.index(each) for each in proposers if each in self.drafters])

    def add(self, proposer: Proposer, draft: Draft, chances: Sequence[float] | np.ndarray, after: int = -1) -> np.ndarray:
        """Merge a proposal into it.

        Args:
            proposer: Whose.
            draft: k tokens.
            chances: (k,), that each is right where its parent is.
            after: The node that the draft follows, -1: the history.

        Returns:
            The nodes (k,) int64 of its tokens.
        """
        if proposer not in self.drafters:
            self.drafters.append(proposer)
        bit = 1 << self.drafters.index(proposer)
        if (n_most := self._n + len(draft.tokens)) > self.nodes.shape[1]:
            more = ((0, 0), (0, n_most))
            self.nodes, self._chances = np.pad(self.nodes, more), np.pad(self._chances, more)
        places = np.empty(len(draft.tokens), np.int64)
        self._n = kernels.add(
            self.nodes, self._chances, self._n, draft.tokens, draft.above, np.asarray(chances, float), bit, after, places
        )
        if (probabilities := draft.probabilities) is not None:
            parents = self.nodes[PARENT]
            for row, token, node in zip(probabilities, draft.tokens, places.tolist(), strict=True):
                if row[token] > 0 and parents[node] not in parents[[*self.drawn]]:
                    self.drawn[node], self.nodes[IS_DRAWN, node] = row, 1
        return places

    def forbid(self, nodes: Sequence[int]) -> None:
        """No node but these, which are rising, can be right."""
        self.chances[np.delete(np.arange(self._n), nodes)] = 0.0

    def reach(self, agreement: Agreement | None = None) -> np.ndarray:
        """By node: the chance that it is accepted, which falls from a parent to its children; a view that is written over."""
        table = _NOTHING if agreement is None else agreement.table
        kernels.find_reach(self.nodes, self._chances, self._n, table, agreement is not None)
        return self._chances[REACH, : self._n]

    def tried(self, emitted: Sequence[int]) -> list[tuple[list[int], int]]:
        """For each emitted token as far as all before it were proposed: the nodes in its place, and the right one or -1."""
        tokens, parents, right = self.tokens, self.parents, -1
        found = list[tuple[list[int], int]]()
        for token in emitted:
            nodes = [node for node in range(right + 1, self._n) if parents[node] == right]
            right = next((node for node in nodes if tokens[node] == token), -1)
            found.append((nodes, right))
            if right < 0:
                break
        return found

    def score(
        self, nodes: np.ndarray, buckets: np.ndarray, chances: Chances, run: int, emitted: Sequence[int]
    ) -> tuple[int, int]:
        """Let the chances of a request, and of all, learn from the emitted tokens by a proposal's nodes and buckets (k,) int64.

        Returns:
            The tokens that its drafter had right in a row, `run` before, and how many of the tokens the proposal had.
        """
        every, tree = chances.above or chances, (self.nodes, self._chances, self._n, np.array(emitted, np.int64))
        tables = every.table, every.prior, chances.table, chances.prior
        found: tuple[int, int] = kernels.score(*tree, nodes, buckets, *tables, *chances.learning, run)
        return found

    def count(self, chosen: Sequence[int], path: Sequence[int], together: Iterable[Proposer]) -> list[list[int]]:
        """Figures of each of the drafters, and at last of those `together` as one, by the places of accepted nodes.

        How many of its nodes were verified, and accepted; how many could be accepted at most; and how many of those that it was
        the first to propose were verified, and accepted.
        """
        counts = np.zeros((len(self.drafters) + 1, 5), np.int64)
        kernels.count(self.nodes, np.array(chosen, np.int64), np.array(path, np.int64), self.bits(together), counts)
        found: list[list[int]] = counts.tolist()
        return found

    def kinds(self) -> list[int]:
        """By node: whether other drafters propose the same, or something else after its parent."""
        own, parents = self.nodes[PROPOSERS, : self._n].tolist(), self.parents
        return [
            kernels.kind_of(each, kernels.proposers_after(self.nodes, self._n, at))
            for each, at in zip(own, parents, strict=True)
        ]

    def teach(self, agreement: Agreement, emitted: Sequence[int]) -> None:
        """Let it learn from the emitted tokens."""
        kernels.learn_agreement(self.nodes, self._chances, self._n, np.array(emitted, np.int64), agreement.table)

    def best_path(self) -> list[int]:
        """The nodes from the history on, each time to the child that was drawn, or else to the one of the highest `reach`."""
        path = np.empty(self._n, np.int64)
        return path[: kernels.find_best_path(self.nodes, self._chances, self._n, path)].tolist()

    def part(self, nodes: Sequence[int]) -> Draft:
        """These nodes, rising, with the parents of each among them, as a draft; a chain where they do not branch."""
        if not nodes:
            return NO_DRAFT
        draft = np.empty((2, len(nodes)), np.int32)
        is_chain = kernels.take(self.nodes, np.array(nodes, np.int64), draft)
        probabilities = None
        if self.drawn:
            certain = np.zeros_like(next(iter(self.drawn.values())))
            probabilities = np.array([self.drawn.get(node, certain) for node in nodes]).reshape(len(nodes), len(certain))
        return Draft(draft[0], None if is_chain else draft[1], probabilities)

    def ancestry(self, nodes: Iterable[int]) -> list[int]:
        """These nodes and all before them, rising."""
        found, parents = set[int](), self.parents
        for node in nodes:
            while node >= 0 and node not in found:
                found.add(node)
                node = parents[node]  # noqa: PLW2901 - upwards
        return sorted(found)


_NOTHING = np.empty((3, 0))  # is learnt


def _places(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
