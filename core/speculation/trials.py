"""Proposed tokens and whether they were right, for programs that check chances and the worth of buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from augury.speculation.chances import Agreement, Bucket
from augury.speculation.drafts import SlotProposals


@frozen
class Trial:
    """A token that was proposed, used or not, where all before it was right."""

    chance: float  # that it is right, as the planner had it
    is_right: bool
    buckets: Mapping[str, Bucket]  # by the names of the drafters that proposed it
    own_chance: float = 0.0  # the highest of theirs, before the effect of other proposals
    agreement: Bucket | None = None  # that effect's; None where nothing is learnt of it


@frozen(eq=False)
class Trials:
    """The trials of one slot's round. They are worked out when they are iterated over: no round waits for that."""

    proposals: SlotProposals
    emitted: Sequence[int]

    def __iter__(self) -> Iterator[Trial]:
        tree, reach = self.proposals.tree, self.proposals.reach()
        of = self.proposals.by_drafter
        kinds = tree.kinds(range(len(tree))) if len(of) > 1 else ()
        node, reached = -1, 1.0
        for token in self.emitted:
            tried = [i for i in range(node + 1, len(tree)) if tree.parents[i] == node and reach[i] > 0]
            for i in tried:
                on = {
                    drafter.profile.name: drafter.profile.chances.bucket(of[drafter].buckets[i])
                    for drafter in tree.proposers[i]
                }
                own = tree.chances[i]
                agreement = Agreement.bucket(kinds[i], own) if kinds and own < 1 else None
                yield Trial(reach[i] / reached, tree.tokens[i] == token, on, own, agreement)
            if (node := next((i for i in tried if tree.tokens[i] == token), -1)) < 0:
                return
            reached = reach[node]
