"""One slot's round: the proposals of its drafters as one tree, the nodes of it that pay, and the outcome.

Equal prefixes of proposals merge::

    suffix   a b c          tree   a ┬ b ─ c      a: suffix and recycle
    recycle  a d            │      │ └ d          b, c: suffix
             e                     e              d, e: recycle

A node's chance, that it is right where its parent is, is the highest that one of its drafters has for it. Only one of the nodes
after one parent can be right: where their chances sum to more than 1, the likeliest keeps its own, and the others share the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from attrs import Factory, define

from augury.interfaces import Pace
from augury.speculation.chances import Agreement
from augury.speculation.constants import CHANCE, FIRST, IS_DRAWN, PARENT, PROPOSERS, REACH, TOKEN, TYPICAL, kernels
from augury.speculation.costs import PassCurve
from augury.speculation.drafter_guard import DraftedSequence
from augury.speculation.profiles import RequestDrafter, RequestDrafters
from augury.types import NO_DRAFT, Draft

Proposer = TypeVar("Proposer")


_ROOM = 64  # nodes: of most rounds


class JointTree(Generic[Proposer]):
    """A tree of drafted tokens, each with its drafters, 63 at most. A node comes after its parent.

    Attributes:
        n: How many nodes it has.
        nodes: (5, room) int64, the rows that `augury.speculation.constants` names.
        chances_and_reach: (2, room) float64, likewise.
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
        self.chances_and_reach = np.empty((2, _ROOM))
        self.n = 0

    @classmethod
    def alone(cls, proposer: Proposer, draft: Draft) -> JointTree[Proposer]:
        """One draft as it is, token by token."""
        tree, n = cls(), len(draft)
        tree.drafters, tree.n = [proposer], n
        tree.nodes = np.stack([draft.tokens, draft.above, *np.ones((2, n), np.int64), np.zeros(n, np.int64)])
        tree.chances_and_reach = np.stack([np.zeros(n) if draft.confidence is None else draft.confidence.astype(float)] * 2)
        return tree

    @classmethod
    def of(cls, drafters: Sequence[Proposer], nodes: np.ndarray, chances: np.ndarray, n: int) -> JointTree[Proposer]:
        """One that compiled code made, of drafters by their bits."""
        tree = cls.__new__(cls)
        tree.nodes, tree.chances_and_reach, tree.n, tree.drafters, tree.drawn = nodes, chances, n, [*drafters], {}
        return tree

    def __len__(self) -> int:
        return self.n

    @property
    def tokens(self) -> list[int]:
        """By node."""
        return self.nodes[TOKEN, : self.n].tolist()

    @property
    def parents(self) -> list[int]:
        """By node, -1: the history."""
        return self.nodes[PARENT, : self.n].tolist()

    @property
    def chances(self) -> np.ndarray:
        """By node: that it is right where its parent is; 0 of one that is forbidden, or where nobody plans or is confident."""
        return self.chances_and_reach[CHANCE, : self.n]

    @property
    def proposers(self) -> list[list[Proposer]]:
        """By node."""
        rows = self.nodes[FIRST : PROPOSERS + 1, : self.n].T.tolist()
        return [[self.drafters[i] for bits in (first, every & ~first) for i in _places(bits)] for first, every in rows]

    def add(self, proposer: Proposer, draft: Draft, chances: Sequence[float] | np.ndarray) -> np.ndarray:
        """Merge a proposal into it.

        Args:
            proposer: Whose.
            draft: k tokens.
            chances: (k,), that each is right where its parent is.

        Returns:
            The nodes (k,) int64 of its tokens.
        """
        if proposer not in self.drafters:
            self.drafters.append(proposer)
        bit = 1 << self.drafters.index(proposer)
        if (n_most := self.n + len(draft.tokens)) > self.nodes.shape[1]:
            more = ((0, 0), (0, n_most))
            self.nodes, self.chances_and_reach = np.pad(self.nodes, more), np.pad(self.chances_and_reach, more)
        places = np.empty(len(draft.tokens), np.int64)
        tree, own = (self.nodes, self.chances_and_reach, self.n), np.asarray(chances, float)
        self.n = kernels.add(*tree, draft.tokens, draft.above, own, bit, places)
        if (probabilities := draft.probabilities) is not None:
            parents = self.nodes[PARENT]
            for row, token, node in zip(probabilities, draft.tokens, places.tolist(), strict=True):
                if row[token] > 0 and parents[node] not in parents[[*self.drawn]]:
                    self.drawn[node], self.nodes[IS_DRAWN, node] = row, 1
        return places

    def forbid(self, nodes: Sequence[int]) -> None:
        """No node but these, which are rising, can be right."""
        self.chances[np.delete(np.arange(self.n), nodes)] = 0.0

    def reach(self, agreement: Agreement | None = None) -> np.ndarray:
        """By node: the chance that it is accepted, which falls from a parent to its children; a view that is written over."""
        table = _NOTHING if agreement is None else agreement.table
        kernels.find_reach(self.nodes, self.chances_and_reach, self.n, table, agreement is not None)
        return self.chances_and_reach[REACH, : self.n]

    def tried(self, emitted: Sequence[int]) -> list[tuple[list[int], int]]:
        """For each emitted token as far as all before it were proposed: the nodes in its place, and the right one or -1."""
        tokens, parents, right = self.tokens, self.parents, -1
        found = list[tuple[list[int], int]]()
        for token in emitted:
            nodes = [node for node in range(right + 1, self.n) if parents[node] == right]
            right = next((node for node in nodes if tokens[node] == token), -1)
            found.append((nodes, right))
            if right < 0:
                break
        return found

    def kinds(self) -> list[int]:
        """By node: whether other drafters propose the same, or something else after its parent."""
        own, parents = self.nodes[PROPOSERS, : self.n].tolist(), self.parents
        return [
            kernels.kind_of(each, kernels.proposers_after(self.nodes, self.n, at))
            for each, at in zip(own, parents, strict=True)
        ]

    def teach(self, agreement: Agreement, emitted: Sequence[int] | np.ndarray) -> None:
        """Let it learn from the emitted tokens."""
        kernels.learn_agreement(self.nodes, self.chances_and_reach, self.n, np.asarray(emitted, np.int64), agreement.table)

    def best_path(self) -> list[int]:
        """The nodes from the history on, each time to the child that was drawn, or else to the one of the highest `reach`."""
        path = np.empty(self.n, np.int64)
        return path[: kernels.find_best_path(self.nodes, self.chances_and_reach, self.n, path)].tolist()

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


_NONE = np.empty(0, np.int64)
_NO_EVIDENCE, _NO_CONFIDENCE = NO_DRAFT.tokens, np.empty(0, np.float32)


class Proposal(NamedTuple):
    """The proposal of one drafter."""

    draft: Draft  # after the history
    nodes: np.ndarray  # (k,) int64, of the slot's tree, also of tokens after others'; -1 of those left out
    buckets: np.ndarray = _NONE  # (k,) int64, see `Chances`; none where nobody plans
    is_ahead: bool = False  # it was made during the pass before

    def bucket(self, node: int) -> int:
        """The bucket of a node that it has."""
        return int(self.buckets[self.nodes == node][-1])


@define(eq=False)
class SlotProposals:
    """The proposals of a slot's drafters for a round."""

    sequence: DraftedSequence
    drafters: RequestDrafters
    limit: int  # at most so many tokens can be verified
    n_context: int  # tokens of the text
    n_min: int = 1  # fewer tokens are not wanted
    may_branch: bool = True  # otherwise one path alone can be verified
    agreement: Agreement | None = None  # None: nothing is learnt
    n_top: int = 0  # so many of the most probable tokens its drafters want to have, of those that were asked
    by_drafter: dict[RequestDrafter, Proposal] = Factory(dict)  # of the drafters that were asked
    # those of them that are asked for next to nothing, and whose proposals have to prove themselves
    lookups: list[RequestDrafter] = Factory(list)
    tree: JointTree[RequestDrafter] = Factory(JointTree)
    counts: list[list[int]] = Factory(list)  # see `VerifiedNodes.counts`; known once the round is settled
    # the nodes of the tree that are verified with any chance: drawn tokens, each after its parent. They are in the order of
    # their drafters, so which of them there is room for does not depend on what later ones drew. Known once `reach` was asked
    drawn: list[int] = Factory(list)
    _reach: np.ndarray | None = None

    def take(self, drafter: RequestDrafter, draft: Draft) -> None:
        """Take a draft as it is, alone."""
        self.tree = JointTree.alone(drafter, draft)
        self.by_drafter[drafter] = Proposal(draft, np.arange(len(draft)))

    def add(self, drafter: RequestDrafter, draft: Draft, *, is_ahead: bool = False) -> None:
        """Merge a drafter's draft into the tree."""
        self.n_top, chances = max(self.n_top, drafter.profile.n_top), drafter.chances
        if drafter not in self.by_drafter and not (drafter.profile.is_costly or drafter.profile.is_certain):
            self.lookups.append(drafter)
        nodes = buckets = _NONE
        if n := len(draft.tokens):
            buckets, own = np.empty(n, np.int64), np.empty(n)
            evidence = _NO_EVIDENCE if draft.evidence is None else draft.evidence
            confidence = _NO_CONFIDENCE if draft.confidence is None else draft.confidence
            run = drafter.run if chances.has_runs else -1
            kernels.judge(draft.above, evidence, confidence, run, chances.values, buckets, own)
            nodes, self._reach = self.tree.add(drafter, draft, own), None
        self.by_drafter[drafter] = Proposal(draft, nodes, buckets, is_ahead)

    def forbid(self, nodes: Sequence[int]) -> None:
        """Nothing but these nodes of the tree, which are rising, can be right."""
        self.tree.forbid(nodes)
        self._reach = None

    def reach(self) -> np.ndarray:
        """By node of the tree: the chance that it is accepted; 0 of one that cannot be verified."""
        if self._reach is None:
            self._reach = reach = self.tree.reach(self.agreement)
            self.drawn = []
            if self.tree.drawn:
                self.drawn = list(dict.fromkeys(each for node in self.tree.drawn for each in self.tree.ancestry([node])))
            if not self.may_branch:
                path = self.tree.best_path()
                reach[np.delete(np.arange(len(reach)), path)] = 0.0
                self.drawn = [node for node in self.drawn if node in path]
        return self._reach

    def score(self, drafter: RequestDrafter, emitted: Sequence[int] | np.ndarray) -> None:
        """Let a drafter's chances learn from the emitted tokens by its proposal, used or not. A forbidden token is no trial."""
        drafter.n_missed += len(emitted)
        drafter.n_right = 0
        proposal, own, tree = self.by_drafter.get(drafter), drafter.chances, self.tree
        if proposal is None or not len(proposal.nodes):
            drafter.run = 0  # its next find is another stretch
            if proposal is not None and drafter.profile.is_costly:
                own.see(TYPICAL, is_right=False)  # it was paid for
            return
        every = own.above or own
        drafter.run, drafter.n_right = kernels.score(
            *(tree.nodes, tree.chances_and_reach, tree.n, np.asarray(emitted, np.int64), proposal.nodes, proposal.buckets),
            *(every.table, every.prior, own.table, own.prior, *own.learning, drafter.run),
        )


class VerifiedNodes(NamedTuple):
    """The part of a slot's proposals that is verified."""

    proposals: SlotProposals
    draft: Draft = NO_DRAFT  # k tokens
    nodes: Sequence[int] = ()  # (k,) of the slot's tree
    probed: RequestDrafter | None = None  # asked not because it promises more, but to see whether it does

    @property
    def names(self) -> list[str]:
        """(k,) the first drafter of each token."""
        tree = self.proposals.tree
        names, bits = [each.profile.name for each in tree.drafters], tree.nodes[FIRST].tolist()
        return [names[bits[node].bit_length() - 1] for node in self.nodes]

    def counts(self, accepted: Sequence[int]) -> list[list[int]]:
        """Figures of each of the tree's drafters, and at last of all lookups as one, by the places of accepted nodes.

        How many of its nodes were verified, and accepted; how many could be accepted at most; and how many of those that it was
        the first to propose were verified, and accepted.
        """
        tree = self.proposals.tree
        counts = np.zeros((len(tree.drafters) + 1, 5), np.int64)
        lookups = sum([1 << i for i, each in enumerate(tree.drafters) if each in self.proposals.lookups])
        kernels.count(tree.nodes, np.array(self.nodes, np.int64), np.array(accepted, np.int64), lookups, counts)
        found: list[list[int]] = counts.tolist()
        return found

    def path(self) -> list[int]:
        """The nodes of the likeliest path, as far as it is verified."""
        self.proposals.reach()
        return list(takewhile(set(self.nodes).__contains__, self.proposals.tree.best_path()))


class Outcome(NamedTuple):
    """The target's answer to a choice."""

    path: Sequence[int]  # the tokens of the draft that were accepted, rising
    n_emitted: int
    is_stopped: bool = False  # the request ended within the right part of the draft
    top: tuple[np.ndarray, ...] | None = None  # `Verdict.top_after`, `top_parents`, `top_ids` and `top_logits`


class CostlyAsk(NamedTuple):
    """The drafts that a costly drafter is asked for."""

    slot: SlotProposals
    drafter: RequestDrafter
    k: int = 0  # tokens one after another; 0: its drafts for the last tokens of the text, by teacher forcing
    pace: Pace | None = None  # of one that ends drafts itself where they stop paying
    is_probe: bool = False  # not because it promises more, but to see whether it does


class Best(NamedTuple):
    """The nodes chosen from the trees."""

    nodes: list[list[int]]  # by slot, rising
    expected: list[float]  # tokens, by slot


def best_nodes(slots: Sequence[SlotProposals], curve: PassCurve, *, replays_accepted: bool = False) -> Best:
    """Rank the nodes of all trees by their chance to be accepted, and take the first n, for the best n by a pass's curve.

    A child never ranks before its parent. Drawn tokens come first, in the order of their proposal, and are taken in any case as
    far as there is room: this must not depend on the tokens themselves. No tree branches where the pass `replays_accepted`.
    """
    sizes, rows, end = [slot.tree.n for slot in slots], list[tuple[int, ...]](), 0
    if not any(sizes):  # nothing is proposed
        return Best([[] for _ in slots], [1.0] * len(slots))
    nodes, reach, ranks = slots[0].tree.nodes, slots[0].reach(), np.full(sum(sizes), -1)
    if len(slots) > 1:
        nodes = np.concatenate([slot.tree.nodes[:, :size] for slot, size in zip(slots, sizes, strict=True)], axis=1)
        reach = np.concatenate([slot.reach() for slot in slots])
    for slot, size in zip(slots, sizes, strict=True):
        paid = sum([1 << i for i, each in enumerate(slot.tree.drafters) if each not in slot.lookups])
        for rank, node in enumerate(slot.drawn):
            ranks[end + node] = rank
        start, end = end, end + size
        rows.append((start, end, slot.limit, slot.n_min, paid))
    is_chosen, expected = np.zeros(len(reach), np.bool_), np.ones(len(slots))
    kernels.choose(
        nodes,
        reach,
        ranks,
        np.array(rows, np.int64),
        np.array([(slot.drafters.budget.seconds, slot.drafters.budget.first) for slot in slots], float),
        np.asarray(curve.known),
        np.asarray(curve.hoped),
        float(sum([drafter.spent_s for slot in slots for drafter in slot.by_drafter])),
        replays_accepted,
        is_chosen,
        expected,
    )
    return Best([is_chosen[start:end].nonzero()[0].tolist() for start, end, *_ in rows], expected.tolist())
