"""Who drafts in a round: asks the drafters of all slots, as the planner says or in turn, and tells them what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence as Items

import attrs
import numpy as np

from augury.engine.sequence import Sequence
from augury.engine.verification import match_tree
from augury.errors import UnsupportedError
from augury.interfaces import Ask, Drafter
from augury.speculation.ahead import draft_ahead
from augury.speculation.drafter_guard import DrafterGuard, draft_for_all, warn
from augury.speculation.drafts import AheadDraft, RequestDrafters, SlotDraft
from augury.speculation.planner import N_TEACHER_FORCED, DraftPlanner
from augury.types import Draft, Verdict, read_only

__all__ = ["Drafting"]


class Drafting:
    """The drafters of all slots. Without a planner the first draft of a chain is taken as it is.

    A drafter that fails in a request is left out of the rest of it.

    Attributes:
        on_failure: Told of a drafter's name, the method that failed, the error, and the ids of the requests that it was called
            for, once in a request.
    """

    def __init__(
        self,
        chains: Items[Items[Drafter]],
        planner: DraftPlanner | None,
        n_vocab: int,
        *,
        may_branch: bool = True,
        features: Collection[str] = (),
    ) -> None:
        """Take over the drafters.

        Args:
            chains: Of each slot, its drafters by priority, the same kinds in all slots.
            planner: Made for as many drafters; None to draft as far as is allowed.
            n_vocab: Of the target.
            may_branch: Whether drafts may be trees; of a tree the first path is taken otherwise.
            features: What the target can give its drafters of each token.

        Raises:
            UnsupportedError: A drafter wants other features.
        """
        self.on_failure: Callable[..., object] = warn
        self._chains = chains
        self._names = [drafter.name for drafter in chains[0]]
        self._n_top = [int(drafter.n_top) for drafter in chains[0]]
        self._features = [tuple(drafter.features) for drafter in chains[0]]
        for name, wanted in zip(self._names, self._features, strict=True):
            if missing := [each for each in wanted if each not in features]:
                known = ", ".join(features) or "none"
                raise UnsupportedError(f"drafter {name} wants {missing[0]!r} of every token; features of this target: {known}")
        self._planner = planner
        self._n_vocab = n_vocab
        self._may_branch = may_branch
        self._drafters: dict[int, RequestDrafters] = {}  # by slot, of its request; empty of one without drafts

    @property
    def plain_s(self) -> float | None:
        """Seconds of a pass of one token, as the planner knows them; None without one. Any thread may ask."""
        return None if self._planner is None else self._planner.plain_s

    # A request begins and ends

    def open(self, sequence: Sequence, n_reused: int) -> int:
        """A request has a slot, which holds so many tokens of its prompt; how many of them its drafters can do without."""
        speculation = sequence.request.speculation
        members = speculation.members if speculation.n_max else ()
        indices = [self._names.index(member.name) for member in members]
        drafters = RequestDrafters() if self._planner is None else self._planner.new_request(indices)
        self._drafters[sequence.slot] = drafters
        for index, member in zip(indices, members, strict=True):
            drafter = self._chains[sequence.slot][index]
            guard = DrafterGuard(drafter, member.name, sequence, self._n_vocab, self.on_failure)
            drafters.guards[index] = guard
            guard.is_left_out = sequence.counter.has_failed(member.name)  # before the text was cut
            if not guard.is_left_out:
                n_reused = min(n_reused, guard.n_held(n_reused)) if n_reused else 0
        return n_reused

    def begin(self, sequence: Sequence) -> None:
        """A request's prompt is processed: its drafters may begin."""
        if (drafters := self._drafters[sequence.slot]).guards:
            drafters.prefill = self._prefill(sequence, drafters.guards)

    def prefill(self, sequence: Sequence) -> bool:
        """Let a request's drafters go a step on with its prompt; returns whether all of them are through with it."""
        return next(self._drafters[sequence.slot].prefill, True) is True

    def _prefill(self, sequence: Sequence, guards: dict[int, DrafterGuard]) -> Iterator[None]:
        """Let one drafter after another begin; yields where others shall go on in between."""
        for (index, guard), member in zip(guards.items(), sequence.request.speculation.members, strict=True):
            if guard.is_left_out:
                continue
            seconds = yield from guard.begin(member.options)
            if self._planner is not None and not guard.is_left_out:
                self._planner.observe_prompt(index, len(sequence.history), seconds)

    def features(self, sequences: Items[Sequence]) -> tuple[str, ...]:
        """What the drafters of some requests want to be fed."""
        if not any(self._features):
            return ()
        members = (index for each in sequences for index in self._drafters[each.slot].members)
        return tuple(sorted({name for index in members for name in self._features[index]}))

    def feed(self, sequence: Sequence, start: int, tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> None:
        """Tokens from `start` on are computed, and kept: feed the request's drafters."""
        drafters = self._drafters[sequence.slot]
        for index in drafters.members:
            if names := self._features[index]:
                guard = drafters.guards[index]
                guard.feed(start, read_only(tokens), {name: read_only(features[name]) for name in names})
                sequence.counter.told(guard.name, guard.seconds)

    def end(self, sequence: Sequence) -> None:
        """A request is over: tell those of its drafters that have begun."""
        if (drafters := self._drafters.pop(sequence.slot, None)) is not None:
            for guard in drafters.guards.values():
                guard.end()

    def n_top(self, slot: SlotDraft) -> int:
        """How many of the most probable tokens its drafters want to be told of."""
        return max((self._n_top[index] for index in slot.drafters.members), default=0) if any(self._n_top) else 0

    def name(self, slot: SlotDraft) -> str | None:
        """The drafter whose draft is verified."""
        return None if slot.drafter is None else self._names[slot.drafter]

    # Before a pass

    def propose(self, limits: Items[tuple[Sequence, int]], n_beside: int) -> list[SlotDraft]:
        """What each sequence takes into the round.

        Args:
            limits: The sequences that decode, and how many tokens of a draft each can take.
            n_beside: Tokens of prompts in the same pass.
        """
        slots = [SlotDraft(sequence, self._drafters[sequence.slot], limit, len(sequence.history)) for sequence, limit in limits]
        asking = [slot for slot in slots if slot.limit > 0 and slot.drafters.guards]
        if asking and self._planner is not None:
            for slot in asking:
                if slot.drafters.ahead is not None:
                    self._take_ahead(self._planner, slot, slot.drafters.ahead)
            self._plan(self._planner, asking, n_beside + len(slots) - len(asking))
        elif asking:
            self._take_first(asking)
        return slots

    def _take_first(self, slots: Items[SlotDraft]) -> None:
        """Of every chain the first draft that is not empty, whole."""
        members = [slot.drafters.members for slot in slots]
        for place in range(max(map(len, members))):
            asks: dict[int, list[tuple[SlotDraft, int]]] = {}
            for slot, mine in zip(slots, members, strict=True):
                if not len(slot.draft) and place < len(mine):
                    asks.setdefault(mine[place], []).append((slot, slot.limit))
            for index, asked in asks.items():
                self._ask(index, asked)
                for slot, _ in asked:
                    speculation = slot.sequence.request.speculation
                    # what a drafter drew may end it early: to throw that away would favour other draws
                    n_min = 0 if speculation.verify == "rejection" else speculation.n_min
                    if index in slot.proposals and (k := len(slot.proposals[index])) >= n_min:
                        slot.choose(index, k)
                        slot.verify(k)

    def _plan(self, planner: DraftPlanner, slots: Items[SlotDraft], n_beside: int) -> None:
        """Ask who costs nothing; then let the planner choose, and ask those costly drafters that it chose."""
        asks: dict[int, list[tuple[SlotDraft, int]]] = {}
        for slot in slots:
            for index in slot.drafters.members:
                if planner.is_asked(index, slot.drafters):
                    asks.setdefault(index, []).append((slot, slot.limit))
        for index, asked in asks.items():
            self._ask(index, asked)
        for slot in slots:
            slot.offer(planner.is_costly)
        planner.choose(slots, n_beside)
        for slot in slots:
            if slot.teacher_forced is not None:
                self._teacher_force(planner, slot, slot.teacher_forced)
        self._draft([slot for slot in slots if slot.drafter is not None])

    def _draft(self, slots: Items[SlotDraft]) -> None:
        """Of each slot what was chosen: a part of a proposal, or a draft that is still to be made."""
        asks: dict[int, list[tuple[SlotDraft, int]]] = {}
        for slot in slots:
            assert slot.drafter is not None
            if slot.k <= len(slot.proposals.get(slot.drafter, ())):
                slot.verify(slot.k)
            else:
                asks.setdefault(slot.drafter, []).append((slot, slot.k))
        for index, asked in asks.items():
            self._ask(index, asked, is_waited_for=True)
            for slot, _ in asked:
                if (k := len(slot.proposals.get(index, ()))) >= slot.n_min:
                    slot.verify(k)

    def _teacher_force(self, planner: DraftPlanner, slot: SlotDraft, index: int) -> None:
        """Have a drafter say what it would have drafted for the last tokens, and judge it by those that nobody drafted."""
        sequence, guard = slot.sequence, slot.drafters.guards[index]
        is_right, seconds = None, 0.0
        if not sequence.request.speculation.synthetic:
            tokens, seconds = guard.teacher_forced(N_TEACHER_FORCED), guard.seconds
            sequence.counter.teacher_forced(guard.name, seconds)
            if guard.is_left_out:
                return
            if tokens is not None:
                pairs = zip(tokens.tolist(), sequence.pieces[-N_TEACHER_FORCED:], strict=True)
                is_right = [token == piece.token for token, piece in pairs if piece.drafter is None]
        planner.observe_teacher_forced(index, slot.drafters, is_right, seconds)

    def _ask(self, index: int, asked: Items[tuple[SlotDraft, int]], *, is_waited_for: bool = False) -> None:
        """Ask one drafter of several slots together."""
        guards = [slot.drafters.guards[index] for slot, _ in asked]
        asks = [Ask(guard.drafter, guard.history, limit) for guard, (_, limit) in zip(guards, asked, strict=True)]
        for (slot, _), guard, draft in zip(asked, guards, draft_for_all(guards, asks), strict=True):
            slot.sequence.counter.drafted(guard.name, 0 if draft is None else len(draft), guard.seconds)
            if is_waited_for:
                slot.draft_s += guard.seconds
            if slot.ahead == index:
                slot.ahead = None  # asked for more
            if draft is None:
                continue
            self._offer(slot, index, draft)
            if self._planner is not None:
                self._planner.observe_draft(index, slot.drafters, len(draft), guard.seconds)

    def _offer(self, slot: SlotDraft, index: int, draft: Draft) -> None:
        """What may be verified of a draft is a drafter's proposal."""
        proposal, nodes = (draft, None) if self._may_branch else draft.trunk()
        if (possible := slot.sequence.possible(proposal)) is not None:
            proposal, nodes = proposal.only(possible), possible if nodes is None else nodes[possible]
        slot.proposals[index], slot.origins[index] = proposal, (len(draft), nodes)

    def _take_ahead(self, planner: DraftPlanner, slot: SlotDraft, ahead: AheadDraft) -> None:
        """A draft that was made ahead is proposed, if its guess was right."""
        slot.drafters.ahead = None
        if ahead.drafter not in slot.drafters.members or not ahead.follows(slot.sequence.history):
            return
        planner.observe_proposal(ahead.drafter, slot.drafters)
        if len(draft := ahead.draft.cut(slot.limit)):
            slot.ahead = ahead.drafter
            slot.sequence.counter.drafted(self._names[ahead.drafter], len(draft), 0.0)
            self._offer(slot, ahead.drafter, draft)

    # During it, where the target computes on a device of its own

    def draft_ahead(self, slots: Items[SlotDraft], n_beside: int, begun_s: float) -> float:
        """See `augury.speculation.ahead`; 0 without a planner, which alone knows what pays."""
        return 0.0 if self._planner is None else draft_ahead(self._planner, slots, n_beside, begun_s)

    # After it

    def settle(self, slot: SlotDraft, verdict: Verdict) -> None:
        """Tell a sequence's drafters what became of the round; the verdict is on the draft that was verified."""
        sequence, drafters, n_emitted = slot.sequence, slot.drafters, verdict.n_emitted
        slot.k, slot.n_accepted = verdict.n_offered, verdict.n_accepted
        sequence.counter.round(verdict.n_offered, n_emitted)
        for index, guard in drafters.guards.items():
            proposal = slot.proposals.get(index)
            n_proposed, nodes = slot.origins.get(index, (0, None))
            if index == slot.drafter and slot.k:
                path = verdict.path if nodes is None else nodes[list(verdict.path)].tolist()
                own = attrs.evolve(verdict, n_proposed=n_proposed, path=path)
                sequence.counter.verified(guard.name, own, slot.draft.depth, is_ahead=index == slot.ahead)
                if slot.is_stopped:  # what follows was not rejected
                    own = attrs.evolve(own, n_offered=own.n_accepted, is_used=own.n_accepted > 0)
            else:
                own = Verdict(0, 0, n_emitted, is_used=False, n_proposed=n_proposed)
            if guard.is_left_out:
                continue
            if (n_top := self._n_top[index]) and slot.top is not None:
                after, ids, logits = slot.top
                own = attrs.evolve(own, top_after=after, top_ids=ids[:, :n_top], top_logits=logits[:, :n_top])
            if self._planner is not None:
                truth = sequence.history[-n_emitted:] if proposal is None else sequence.truth(proposal, n_emitted)
                proposed = None if proposal is None else _as_chain(proposal, truth.tolist())
                if proposed == [] and self._planner.is_costly[index]:
                    proposed = _MISS  # it was paid for
                drafters.score(index, proposed, truth.tolist())
            guard.accept(own)
            sequence.counter.told(guard.name, guard.seconds)

    def observe_round(self, slots: Items[SlotDraft], n_beside: int, pass_s: float) -> None:
        """A pass over `slots` and `n_beside` other tokens took so long."""
        planned = [] if self._planner is None else [slot for slot in slots if slot.drafters.guards]
        if self._planner is not None and planned:
            depth = sum(slot.n_context for slot in slots) / len(slots)
            self._planner.observe_round(planned, depth, n_beside + len(slots) - len(planned), pass_s)


_MISS = [-1]  # no token of any text


def _as_chain(proposal: Draft, emitted: Items[int]) -> list[int]:
    """What a drafter proposed; of a tree the path that the text took, and a wrong token where it went on otherwise."""
    tokens: list[int] = proposal.tokens.tolist()
    if proposal.parents is None:
        return tokens
    parents = proposal.parents.tolist()
    path = match_tree(tokens, parents, lambda _, depth: [*emitted, *_MISS][depth]).path
    is_at_leaf = (path[-1] if len(path) else -1) not in parents
    return [tokens[node] for node in path] + ([] if is_at_leaf else _MISS)
