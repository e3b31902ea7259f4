"""Who drafts in a round: asks the drafters of all slots, as the planner says or in turn, and tells them what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from augury.engine.verification import match_tree
from augury.interfaces import Ask
from augury.speculation.choice import Choice, Offer, Outcome, Wish
from augury.speculation.drafted import Course, Drafted
from augury.speculation.drafter_guard import DrafterGuard, draft_for_all, warn
from augury.speculation.planner import N_TEACHER_FORCED
from augury.types import Draft, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Items

    from augury.engine.sequence import Sequence
    from augury.interfaces import Drafter
    from augury.speculation.planner import DraftPlanner

__all__ = ["Drafting"]


class Drafting:
    """The drafters of all slots. Without a planner the first draft of a chain is taken as it is.

    A drafter that fails in a request is left out of the rest of it.

    Attributes:
        on_failure: Told of a drafter's name, the method that failed, the error, and the ids of the requests that it was called
            for, once in a request.
    """

    def __init__(self, chains: Items[Items[Drafter]], planner: DraftPlanner | None, n_vocab: int) -> None:
        """Take over the drafters.

        Args:
            chains: Of each slot, its drafters by priority, the same kinds in all slots.
            planner: Made for as many drafters; None to draft as far as is allowed.
            n_vocab: Of the target.
        """
        self.on_failure: Callable[..., object] = warn
        self._chains = chains
        self._names = [drafter.name for drafter in chains[0]]
        self._is_costly = [drafter.is_costly for drafter in chains[0]]
        self._planner = planner
        self._n_vocab = n_vocab
        self._courses: dict[int, Course] = {}  # by slot

    # A request begins and ends

    def begin(self, sequence: Sequence) -> None:
        """A request's prompt is processed: its drafters may begin."""
        speculation = sequence.request.speculation
        if speculation.members and speculation.n_max > 0:
            guards: dict[int, DrafterGuard] = {}
            track = None if self._planner is None else self._planner.track()
            self._courses[sequence.slot] = Course(guards, track, self._prefill(sequence, guards))

    def prefill(self, sequence: Sequence) -> bool:
        """Let a request's drafters go a step on with its prompt; returns whether all of them are through with it."""
        course = self._courses.get(sequence.slot)
        return course is None or next(course.prefill, True) is True

    def _prefill(self, sequence: Sequence, guards: dict[int, DrafterGuard]) -> Iterator[None]:
        """Begin with one drafter after another, and put it among `guards`; yields where others shall go on in between."""
        chain = self._chains[sequence.slot]
        for member in sequence.request.speculation.members:
            index = self._names.index(member.name)
            guard = guards[index] = DrafterGuard(chain[index], member.name, sequence, self._n_vocab, self.on_failure)
            seconds = yield from guard.begin(member.options)
            if self._planner is not None and not guard.is_left_out:
                self._planner.observe_prompt(index, len(sequence.history), seconds)

    def end(self, sequence: Sequence) -> None:
        """A request is over: tell those of its drafters that have begun."""
        course = self._courses.pop(sequence.slot, None)
        for guard in course.guards.values() if course is not None else ():
            guard.end()

    def name(self, drafted: Drafted) -> str | None:
        """The drafter whose draft is verified."""
        return None if drafted.choice.drafter is None else self._names[drafted.choice.drafter]

    # Before a pass

    def propose(self, limits: Items[tuple[Sequence, int]], n_beside: int) -> list[Drafted]:
        """What each sequence takes into the round.

        Args:
            limits: The sequences that decode, and how many tokens of a draft each can take.
            n_beside: Tokens of prompts in the same pass.
        """
        rounds = [Drafted(sequence, limit) for sequence, limit in limits]
        asking = [each for each in rounds if each.limit > 0 and each.sequence.slot in self._courses]
        if asking and self._planner is not None:
            self._plan(self._planner, asking, n_beside + len(rounds) - len(asking))
        elif asking:
            self._take_first(asking)
        return rounds

    def _take_first(self, rounds: Items[Drafted]) -> None:
        """Of every chain the first draft that is not empty, whole."""
        members = [self._courses[each.sequence.slot].members for each in rounds]
        for place in range(max(map(len, members))):
            asks: dict[int, list[tuple[Drafted, int]]] = {}
            for each, mine in zip(rounds, members, strict=True):
                if not len(each.draft) and place < len(mine):
                    asks.setdefault(mine[place], []).append((each, each.limit))
            for index, some in asks.items():
                self._ask(index, some)
                for each, _ in some:
                    speculation = each.sequence.request.speculation
                    # what a drafter drew may end it early: to throw that away would favour other draws
                    n_min = 0 if speculation.verify == "rejection" else speculation.n_min
                    if index in each.proposals and (k := len(each.proposals[index])) >= n_min:
                        each.use(index, k)

    def _plan(self, planner: DraftPlanner, rounds: Items[Drafted], n_beside: int) -> None:
        """Ask who costs nothing; then let the planner choose, and ask those costly drafters that it chose."""
        asks: dict[int, list[tuple[Drafted, int]]] = {}
        for each in rounds:
            course = self._courses[each.sequence.slot]
            assert course.track is not None
            for index in course.members:
                if planner.is_asked(index, course.track):
                    asks.setdefault(index, []).append((each, each.limit))
        for index, some in asks.items():
            self._ask(index, some)
        choices = planner.choose([self._wish(planner, each) for each in rounds], n_beside)
        asks.clear()
        for each, choice in zip(rounds, choices, strict=True):
            if choice.teacher_forced is not None:
                self._teacher_force(planner, each, choice.teacher_forced)
            if choice.drafter is not None and choice.drafter in each.proposals:
                each.use(choice.drafter, choice.k)
            elif choice.drafter is not None:
                each.choice = choice
                asks.setdefault(choice.drafter, []).append((each, choice.k))
        for index, some in asks.items():
            self._ask(index, some, is_waited_for=True)
            for each, _ in some:
                if (k := len(each.proposals.get(index, ()))) >= max(each.sequence.request.speculation.n_min, 1):
                    each.use(index, k, is_probe=each.choice.is_probe)

    def _teacher_force(self, planner: DraftPlanner, drafted: Drafted, index: int) -> None:
        """Have a drafter say what it would have drafted for the last tokens, and judge it by those that nobody drafted."""
        sequence, course = drafted.sequence, self._courses[drafted.sequence.slot]
        assert course.track is not None
        guard = course.guards[index]
        is_right, seconds = None, 0.0
        if not sequence.request.speculation.synthetic:
            tokens, seconds = guard.teacher_forced(N_TEACHER_FORCED), guard.seconds
            sequence.recorder.teacher_forced(guard.name, seconds)
            if guard.is_left_out:
                return
            if tokens is not None:
                pairs = zip(tokens.tolist(), sequence.pieces[-N_TEACHER_FORCED:], strict=True)
                is_right = [token == piece.token for token, piece in pairs if piece.drafter is None]
        planner.observe_teacher_forced(index, course.track, is_right, seconds)

    def _wish(self, planner: DraftPlanner, drafted: Drafted) -> Wish:
        course = self._courses[drafted.sequence.slot]
        assert course.track is not None
        offers = [Offer(index, len(proposal)) for index, proposal in drafted.proposals.items() if len(proposal)]
        offers += [Offer(index, drafted.limit) for index in course.members if planner.is_costly[index]]
        n_min = max(drafted.sequence.request.speculation.n_min, 1)
        return Wish(course.track, len(drafted.sequence.history), offers, n_min)

    def _ask(self, index: int, asked: Items[tuple[Drafted, int]], *, is_waited_for: bool = False) -> None:
        """Ask one drafter of several slots together."""
        guards = [self._courses[each.sequence.slot].guards[index] for each, _ in asked]
        asks = [Ask(guard.drafter, guard.history, limit) for guard, (_, limit) in zip(guards, asked, strict=True)]
        for (each, _), guard, draft in zip(asked, guards, draft_for_all(guards, asks), strict=True):
            each.sequence.recorder.drafted(guard.name, 0 if draft is None else len(draft), guard.seconds)
            if is_waited_for:
                each.draft_s += guard.seconds
            if draft is None:
                continue
            each.proposals[index] = draft
            if self._planner is not None:
                track = self._courses[each.sequence.slot].track
                assert track is not None
                self._planner.observe_draft(index, track, len(draft), guard.seconds)

    # After it

    def settle(self, drafted: Drafted, verdict: Verdict) -> None:
        """Tell a sequence's drafters what became of the round; the verdict is on the draft that was verified."""
        sequence, used = drafted.sequence, drafted.choice.drafter if len(drafted.draft) else None
        n_emitted = verdict.n_emitted
        sequence.recorder.round(verdict.n_offered, n_emitted)
        course = self._courses.get(sequence.slot)
        for index, guard in course.guards.items() if course is not None else ():
            assert course is not None
            proposal = drafted.proposals.get(index)
            n_proposed = 0 if proposal is None else len(proposal)
            if index == used:
                own = attrs.evolve(verdict, n_proposed=n_proposed)
                sequence.recorder.verified(guard.name, own, drafted.draft.depth)
            else:
                own = Verdict(0, 0, n_emitted, is_used=False, n_proposed=n_proposed)
            if guard.is_left_out:
                continue
            if course.track is not None:
                truth = sequence.history[-n_emitted:] if proposal is None else sequence.truth(proposal, n_emitted)
                proposed = None if proposal is None else _as_chain(proposal, truth.tolist())
                if proposed == [] and self._is_costly[index]:
                    proposed = _MISS  # it was paid for
                course.track.score(index, proposed, truth.tolist())
            guard.accept(own)
            sequence.recorder.told(guard.name, guard.seconds)

    def observe_round(self, rounds: Items[Drafted], verdicts: Items[Verdict], n_beside: int, pass_s: float) -> None:
        """A pass over `rounds` and `n_beside` other tokens took so long."""
        if self._planner is None or not rounds:
            return
        outcomes, depth = [], 0
        for each, verdict in zip(rounds, verdicts, strict=True):
            depth += len(each.sequence.history) - verdict.n_emitted
            course = self._courses.get(each.sequence.slot)
            if course is not None and course.track is not None:
                choice = each.choice if verdict.is_used else Choice(each.choice.drafter, 0, each.choice.is_probe)
                outcomes.append(Outcome(course.track, choice, verdict.n_accepted, each.draft_s))
        if outcomes:
            self._planner.observe_round(outcomes, depth / len(rounds), n_beside + len(rounds) - len(outcomes), pass_s)


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
