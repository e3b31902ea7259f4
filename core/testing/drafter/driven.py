"""A drafter under test in the engine's loop: all is real except the target, and a script decides the calls of drafters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from attrs import Factory, define, frozen

from augury.engine.channel import Channel
from augury.engine.checked_context import EngineTarget
from augury.engine.loop import Loop
from augury.engine.request import make_request
from augury.engine.sequence import RunningSequence
from augury.engine.session import EngineSession
from augury.errors import AuguryError
from augury.interfaces import Ask, Drafter, DrafterTraits, Pace, Progress
from augury.loader import Loader, make_backend
from augury.options import NoOptions, build
from augury.registry import Registry
from augury.speculation.ahead import draft_ahead
from augury.speculation.config import Member, Speculation, uses_mtp
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafting import Drafting
from augury.speculation.drafts import SlotProposals, VerifiedNodes
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import RequestDrafter
from augury.speculation.verification import RULES
from augury.testing.drafter import contract
from augury.testing.drafter.watched import watched
from augury.testing.tiny_model import PERIOD
from augury.testing.toys import TINY_TARGET, ToyDrafter
from augury.types import Draft, ModelOptions

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Way(Enum):
    """The engine's treatment of a drafter in a round."""

    VERIFIED = "its draft is verified"
    CUT = "the first half of its draft is verified"
    SCORED = "its draft is not used"
    SILENT = "it is not asked"
    OTHERS = "it is not asked, and another drafter's draft is verified"
    TEACHER_FORCED = "it is asked by teacher forcing, and for no draft"


@frozen
class ScriptedRound:
    """One round of a script: how the drafter is asked, and for how many tokens."""

    way: Way
    limit: int


@frozen(eq=False)
class ScriptedRequest:
    """A prompt, the rounds after it, and how surely the target repeats itself: the hotter, the less."""

    prompt: tuple[int, ...]
    rounds: tuple[ScriptedRound, ...]
    temperature: float = 0.8


_PHRASE = tuple(range(3 * PERIOD, 4 * PERIOD))  # one of the tiny models' circles
_WAYS = (
    *(Way.VERIFIED, Way.SILENT, Way.VERIFIED, Way.CUT, Way.VERIFIED),
    *(Way.SCORED, Way.VERIFIED, Way.OTHERS, Way.TEACHER_FORCED),
)

REPEATING = ScriptedRequest(
    prompt=_PHRASE * 16, rounds=tuple(ScriptedRound(_WAYS[i % 9], (64, 5, 1, 16, 9)[i % 5]) for i in range(24))
)
"""One long enough for any n-gram, with everything that may become of a draft."""

LONG = ScriptedRequest(_PHRASE * 44, REPEATING.rounds)
"""One that takes a drafter with a model several steps to begin with."""

PROMPTS: list[Sequence[int]] = [_PHRASE * 16, (*range(60, 72), 9, *range(60, 72), 7) * 7, (5,), (200, *_PHRASE[:5])]
"""For engines: two that repeat themselves, and two that do not."""


def requests(*, max_rounds: int = 14) -> SearchStrategy[ScriptedRequest]:
    """Strategy for requests: prompts of one token up to some hundreds, most of which repeat a phrase."""
    from hypothesis import strategies as st

    prompts = st.builds(
        lambda head, phrase, n: (*head, *(phrase * n)),
        st.lists(st.integers(0, 255), min_size=1, max_size=4),
        st.one_of(st.just(list(_PHRASE)), st.lists(st.integers(0, 255), max_size=6)),
        st.integers(0, 20),
    )
    limits = st.one_of(st.integers(1, 6), st.integers(1, 20))
    rounds = st.lists(st.builds(ScriptedRound, way=st.sampled_from(_WAYS), limit=limits), max_size=max_rounds).map(tuple)
    return st.builds(ScriptedRequest, prompt=prompts, rounds=rounds, temperature=st.sampled_from((0.8, 0.0, 4.0)))


def several(scripts: SearchStrategy[ScriptedRequest], *, least: int = 2) -> SearchStrategy[list[ScriptedRequest]]:
    """Strategy for up to three of them."""
    from hypothesis import strategies as st

    return st.lists(scripts, min_size=least, max_size=3)


_N_CTX = 768
_N_MAX = 64  # tokens of a draft
_N_AHEAD = 5  # tokens that are drafted ahead


@define
class DrafterReport:
    """A drafter's work in the engines of its checks. One that drafted nothing has proven little."""

    n_requests: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


@frozen(eq=False)
class Subject:
    """A drafter with options, and where to find everything else."""

    drafter: type[Drafter]
    values: Mapping[str, Any]  # of its options, by name
    registry: Registry  # with the toys
    backends: Sequence[str]  # that outputs are compared on
    verify: Literal["match", "rejection"] = "match"  # how its drafts are verified
    report: DrafterReport = Factory(DrafterReport)

    @property
    def name(self) -> str:
        """The drafter's."""
        return self.drafter.name

    @cached_property
    def traits(self) -> DrafterTraits:
        """What one that has been made, and has drafted, says of itself."""
        with DrivenLoop(self) as loop:
            loop.play(REPEATING)
            return loop.drafters[0].traits

    @property
    def is_alone(self) -> bool:
        """Whether it is independent of other slots."""
        return self.traits.scope != "process"

    @property
    def params(self) -> dict[str, Any]:
        """The parameter of a request that it drafts from, in an engine."""
        return {"prediction": PROMPTS[0]} if self.drafter.traits.serves == "prediction" else {}

    def options(self, **values: Any) -> Any:
        """The drafter's options, some of them changed."""
        return build(self.drafter.options_class, {**self.values, **values}, self.name)

    def drafts(self, requests: Sequence[ScriptedRequest], *, n_slots: int = 1) -> list[list[tuple[int, ...]]]:
        """A new drafter's drafts in requests one after another, by request and round."""
        with DrivenLoop(self, n_slots) as loop:
            return [loop.play(request).drafts for request in requests]


@define(eq=False)
class Play:
    """A request that runs by a script."""

    sequence: RunningSequence
    rounds: deque[ScriptedRound]  # to come
    drafts: list[tuple[int, ...]] = Factory(list)  # of the drafter, whenever it was asked

    @property
    def is_over(self) -> bool:
        """Whether the request has ended."""
        return self.sequence.channel.outcome is not None

    def cancel(self) -> None:
        """End it before the next round."""
        self.sequence.channel.cancel()


class _AlwaysAhead(DraftPlanner):
    """Has time for every draft that is made ahead."""

    def __init__(self) -> None:
        super().__init__(PassCosts([PassTime(1, 0, 1.0)], 1), ())

    def n_ahead(self, choices: Sequence[VerifiedNodes], able: Sequence[Any], *_: Any, **__: Any) -> list[int]:  # noqa: ARG002
        return [_N_AHEAD for _ in able]


class ScriptedDrafting(Drafting):
    """Asks drafters as scripts say, where an engine's asks its planner."""

    def __init__(
        self, chains: Sequence[Sequence[Drafter]], n_vocab: int, features: Collection[str], pace: Pace | None = None
    ) -> None:
        super().__init__(chains, None, n_vocab, features=features)
        for profile in self._profiles:
            profile.is_costly = True  # as any may turn out to be; others are not asked during a pass
        self._pace = pace
        self.plays: dict[str, Play] = {}  # by the request's id

    def draft_ahead(self, choices: Sequence[VerifiedNodes], n_others: int, begun_s: float) -> float:
        """Draft ahead of every draft that is verified, as if all of it were right."""
        for choice in choices:
            choice.proposals.tree.chances[:] = 1.0
        return draft_ahead(_AlwaysAhead(), choices, n_others, begun_s)

    def _first(self, slots: Sequence[SlotProposals]) -> dict[SlotProposals, VerifiedNodes]:
        choices: dict[SlotProposals, VerifiedNodes] = {}
        asked: dict[SlotProposals, tuple[Way, Play]] = {}
        asks = []
        for slot in slots:
            play = self.plays[slot.sequence.id]
            if not play.rounds:
                play.cancel()
                continue
            now, (tested, other) = play.rounds.popleft(), slot.drafters.every
            limit = min(slot.limit, now.limit)
            if now.way is Way.TEACHER_FORCED:
                tested.guard.teacher_forced(min(now.limit, slot.n_context - 1))
            elif now.way is Way.OTHERS:
                for _, _, draft in self._ask([(slot, other, Ask(other.guard.drafter, other.guard.history, limit))]):
                    choices[slot] = self._part(slot, other, draft, limit)
            elif now.way is not Way.SILENT and not tested.guard.is_left_out:
                asked[slot] = now.way, play
                asks.append((slot, tested, Ask(tested.guard.drafter, tested.guard.history, limit, pace=self._pace)))
        for slot, tested, draft in self._ask(asks):
            way, play = asked[slot]
            self._compare(slot, draft)
            self._keeps_pace(tested, draft)
            play.drafts.append(tuple(draft.tokens.tolist()))
            n = 0 if way is Way.SCORED else len(draft) if way is Way.VERIFIED else (len(draft) + 1) // 2
            choices[slot] = self._part(slot, tested, draft, n)
        return choices

    def _part(self, slot: SlotProposals, drafter: RequestDrafter, draft: Draft, k: int) -> VerifiedNodes:
        slot.take(drafter, draft)
        part = draft.cut(k)
        return VerifiedNodes(slot, part, range(len(part)))

    def _keeps_pace(self, drafter: RequestDrafter, draft: Draft) -> None:
        """See that a draft ends where it does not pay to go on."""
        if (pace := self._pace) is None:
            return
        detail, reach = "", [1.0]  # of the history, then of each token
        if draft.depth > pace.depth:
            detail = f"{draft.depth} tokens one after another, where {pace.depth} were asked for"
        confidence = np.ones(len(draft)) if draft.confidence is None else draft.confidence
        for parent, chance in zip(draft.above.tolist(), confidence.tolist(), strict=True):
            if reach[parent + 1] < pace.min_path_probability:
                detail = f"a token after a path of {reach[parent + 1]:.3f}, where {pace.min_path_probability} was asked for"
            reach.append(reach[parent + 1] * chance)
        if detail:
            raise contract.PACE.broken(drafter.profile.name, detail)

    def _compare(self, slot: SlotProposals, draft: Draft) -> None:
        """Check that a draft ahead equals the present draft, as far as both go."""
        ahead, slot.drafters.ahead = slot.drafters.ahead, None
        if ahead is not None and ahead.follows(slot.sequence.history):
            before, now = ahead.draft.tokens.tolist(), draft.tokens.tolist()
            if any(one != other for one, other in zip(before, now, strict=False)):
                raise contract.AHEAD.broken(ahead.drafter.profile.name, f"{now}, ahead it was {before}")


class DrivenLoop:
    """The engine's loop on a toy target; each slot has the drafter, under watch, and another one for company."""

    def __init__(
        self,
        subject: Subject,
        n_slots: int = 1,
        *,
        is_together: bool = True,
        is_ahead: bool = False,
        pace: Pace | None = None,
        **values: Any,
    ) -> None:
        """Load as an engine would, with other `values` of the drafter's options. Raises AuguryError: it refuses to be made.

        Where it can, it drafts for several slots together if `is_together`, and ahead if `is_ahead`. `pace` says how deep it
        pays to.
        """
        options = subject.options(**values)
        self._loader = Loader(subject.registry, make_backend(subject.registry, "toy"), Progress())
        load_options = ModelOptions(n_slots=n_slots, n_ctx=_N_CTX, threads=1)
        wants_mtp = uses_mtp(subject.registry, [(subject.drafter, Member(subject.drafter.name, options))])
        context = self._loader.load(TINY_TARGET, load_options, purpose="target", wants_mtp=wants_mtp)
        context.is_asynchronous = is_ahead
        target, tokenizer = EngineTarget(context), self._loader.load_tokenizer(TINY_TARGET)
        self._n_vocab = context.info.n_vocab
        drafter = watched(subject.drafter, is_together=is_together)
        sessions = [EngineSession(i, context.info, load_options, tokenizer, self._loader, target) for i in range(n_slots)]
        with ExitStack() as stack:
            stack.callback(self._loader.close)
            with contract.CHOSEN.kept(subject.name, but=(AuguryError,)):
                self.drafters = [drafter(options, session) for session in sessions]
            stack.pop_all()
        members = (Member(subject.name, options), Member(_Other.name, NoOptions()))
        self._speculation = Speculation(members, _N_MAX, 0, is_fixed=True, rule=RULES[subject.verify], timeout_s=math.inf)
        chains = [[each, _Other(NoOptions(), each.session)] for each in self.drafters]
        self._failures: list[tuple[str, BaseException]] = []
        self._drafting = ScriptedDrafting(chains, self._n_vocab, context.model.features, pace)
        self._drafting.on_failure = lambda _, method, error, *ids: self._failures.append((method, error))  # noqa: ARG005
        self._loop = Loop(context, self._drafting)

    def start(self, request: ScriptedRequest) -> Play:
        """Add a request, which waits for a slot if all are taken."""
        params = {"temperature": request.temperature, "top_k": 20, "seed": 7, "prediction": request.prompt}
        prompt, registry, shared = np.array(request.prompt, np.int32), self._loader.registry, self._loader.shared.get
        made = make_request(prompt, params, speculation=self._speculation, n_vocab=self._n_vocab, registry=registry)
        sequence = RunningSequence(made, Channel(), tokenizer=None, n_vocab=self._n_vocab, n_ctx=_N_CTX, shared=shared)
        play = self._drafting.plays[made.id] = Play(sequence, deque(request.rounds))
        self._loop.add(sequence)
        return play

    def round(self) -> None:
        """Run one round of all requests. Raises ContractError: the drafter broke a contract."""
        self._loop.round()
        for method, error in self._failures:
            promise = {"draft_together": contract.TOGETHER, "begin": contract.BEGIN}.get(method, contract.ERROR)
            with promise.kept(self.drafters[0].name, f", in `{method}`"):
                raise error
        for play in self._drafting.plays.values():
            if isinstance(outcome := play.sequence.channel.outcome, BaseException):
                raise outcome

    def run(self, *plays: Play) -> None:
        """Run rounds until some requests are over."""
        while not all(play.is_over for play in plays):
            self.round()

    def play(self, request: ScriptedRequest) -> Play:
        """Run a request to its end."""
        play = self.start(request)
        self.run(play)
        return play

    def close(self) -> None:
        """End all requests; close the drafters, then their shared objects."""
        self._loop.abandon()
        for drafter in self.drafters:
            drafter.close()
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._loader.close()


class _Other(ToyDrafter):
    name = "another"
