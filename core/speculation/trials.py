"""What a round showed of the planner's chances, for those who compare them with what came true."""

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
        tree, reach = self.proposals.tree, self.proposals.reach().tolist()
        of = self.proposals.by_drafter
        kinds, chances, proposers = tree.kinds() if len(of) > 1 else (), tree.chances.tolist(), tree.proposers
        reached = 1.0
        for tried, right in tree.tried(self.emitted):
            for i in tried:
                if reach[i] > 0:
                    buckets = {each.profile.name: each.profile.chances.bucket(of[each].bucket(i)) for each in proposers[i]}
                    agreement = Agreement.bucket(kinds[i], chances[i]) if kinds and chances[i] < 1 else None
                    yield Trial(reach[i] / reached, i == right, buckets, chances[i], agreement)
            if right < 0 or not (reached := reach[right]):
                return
