"""Drafting ahead: while a device verifies a draft, drafters write what would follow it."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from oracles.planner_scenarios import choice_of, request_of, slot_of
from support.toys import planner_of, toy_engine

from augury.engine.checked_context import EngineTarget
from augury.engine.engine import Engine
from augury.errors import OptionError
from augury.interfaces import Ask, Drafter, DrafterTraits
from augury.passes import ArrayPass
from augury.speculation import ahead
from augury.speculation.config import Speculation
from augury.speculation.constants import TYPICAL
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import SlotProposals
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import AheadDraft
from augury.speculation.verification import RULES
from augury.testing.toy_model import ToyModel
from augury.types import Draft

PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 1]]
WAYS = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 4, "top_k": 4},
    {"temperature": 0.9, "seed": 5, "repeat_penalty": 1.3},
]
PASS_S = 1.0


class DevicePass(ArrayPass):
    """A pass that is over when somebody says so."""

    end = None  # called before it is over

    def wait(self):
        if self.end is not None:
            self.end()
        return PASS_S


class DeviceModel(ToyModel):
    """A toy whose passes are computed elsewhere."""

    is_asynchronous = True

    def forward(self, batch):
        passed = DevicePass(super().forward(batch).rows())
        passed.end = self.end_of_draft if len(batch.rows) > len(set(batch.slots[batch.rows])) else None
        return passed

    def end_of_draft(self):
        """What a pass over a draft waits for."""


class Writer(Drafter):
    """Writes as the target would, but for every `error`-th place of the text."""

    name = "writer"
    traits = DrafterTraits(is_costly=True, drafts_ahead=True)
    error = 10**9

    def __init__(self, model):
        super().__init__(None, None)
        self.model, self.guesses = model, []

    def write(self, text, limit):
        for _ in range(limit):
            best = int(np.argmax(self.model.logits(np.array(text))))
            text = [*text, best if len(text) % self.error else (best + 1) % 16]
        return Draft(text[len(text) - limit :])

    def draft(self, history, limit):
        return self.write(history.tolist(), limit)

    @classmethod
    def draft_together(cls, asks):
        for ask in asks:
            if len(ask.guess):
                ask.drafter.during(ask)
        return [ask.drafter.write([*ask.history.tolist(), *ask.guess.tolist()], ask.limit) for ask in asks]

    def during(self, ask):
        self.guesses.append(ask.guess.tolist())


def planner(per_token=0.0, n_drafters=1, kind=DraftPlanner):
    """Passes of up to 64 tokens take a second."""
    costs = PassCosts([PassTime(1, 0, PASS_S), PassTime(64, 0, PASS_S * (1 + 63 * per_token))], 64)
    return planner_of(costs, *[True] * n_drafters, kind=kind)


def ahead_engine(drafter=Writer, **how):
    return toy_engine(**{"drafter": drafter, "target": DeviceModel, "planner": planner(), "n_max": 2, **how})


def test_a_draft_is_written_while_the_pass_before_it_is_computed():
    drafted = threading.Event()

    class Device(DeviceModel):
        def end_of_draft(self):
            assert drafted.wait(30), "nobody drafts while the pass is computed"
            drafted.clear()

    class Watched(Writer):
        def during(self, ask):
            drafted.set()

    with ahead_engine(Watched, target=Device, n_ctx=200) as engine:
        result = engine.generate([1, 2, 3], max_tokens=60, temperature=0.0)
    drafts = result.stats.drafters["writer"]
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], 60)
    assert drafts.ahead >= drafts.ahead_used > drafts.drafted / 2, "most drafts took no time"
    assert drafts.hidden_s > 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("error", [5, 9])
def test_what_is_drafted_ahead_changes_no_token(way, slots, error):
    class Erring(Writer):
        pass

    Erring.error = error
    how = {"max_tokens": 40, "logprobs": 1, **way}
    with toy_engine(period=3) as plain, ahead_engine(Erring, slots=slots, period=3) as engine:
        expected, results = plain.generate(PROMPTS, **how), engine.generate(PROMPTS, **how)
    drafts = [each.stats.drafters["writer"] for each in results]
    for result, one in zip(results, expected, strict=True):
        assert result.tokens == one.tokens
        assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in one.pieces]
    assert sum(each.ahead for each in drafts) > sum(each.ahead_used for each in drafts) > 0, "some guesses are wrong"


def test_what_was_drafted_after_a_wrong_guess_is_dropped(monkeypatch):
    class Erring(Writer):
        error = 5

    right, proposed, follows, add = [], [], AheadDraft.follows, SlotProposals.add
    monkeypatch.setattr(AheadDraft, "follows", lambda *a: right.append(follows(*a)) or right[-1])
    monkeypatch.setattr(
        SlotProposals, "add", lambda *a, is_ahead=False: proposed.append(is_ahead) or add(*a, is_ahead=is_ahead)
    )
    with ahead_engine(Erring) as engine:
        engine.generate([1, 2, 3], max_tokens=40, temperature=0.0)
    assert proposed.count(True) == right.count(True) > 0
    assert False in right


def test_where_it_fails_ahead_it_drafts_on_by_itself():
    class Failing(Writer):
        def during(self, ask):
            super().during(ask)
            raise MemoryError("no room for a guess")

    with ahead_engine(Failing, kind=Engine) as engine:
        results = [engine.generate([1, 2], max_tokens=20, temperature=0.0) for _ in range(2)]
        (writer,) = engine._drafters
    assert all(list(result.tokens) == ToyModel().plain([1, 2], 20) for result in results)
    stats = results[0].stats.drafters["writer"]
    assert len(writer.guesses) == 2, "once in a request"
    assert (stats.ahead, stats.failed) == (0, None)
    assert stats.accepted > 2


def test_no_drafter_writes_over_the_logits_of_a_pass_that_is_computed():
    errors = []

    class Meddling(Writer):
        def during(self, ask):
            try:
                self.target.forward({0: ask.history[-1:]}, 1)
            except OptionError as error:
                errors.append(str(error))
                raise

    with ahead_engine(Meddling, kind=Engine) as engine:
        for writer in engine._drafters:
            writer.target = EngineTarget(engine._worker._loop._context)
        result = engine.generate([1, 2], max_tokens=20, temperature=0.0)
    assert list(result.tokens) == ToyModel().plain([1, 2], 20)
    assert len(errors) == 1
    assert "while the target verifies a draft" in errors[0]


@pytest.mark.parametrize(
    ("drafter", "how"),
    [
        (type("Unable", (Writer,), {"traits": DrafterTraits(is_costly=True)}), {}),
        (Writer, {"target": ToyModel}),
        (Writer, {"planner": None}),
        (Writer, {"rule": RULES["rejection"]}),
    ],
    ids=["drafter cannot", "target computes on the CPU", "no planner", "drafts by chance"],
)
def test_nobody_drafts_ahead_where(drafter, how):
    with ahead_engine(drafter, **how) as engine:
        result = engine.generate([1, 2], max_tokens=20, temperature=0.8, seed=1)
        (writer,) = engine._drafters
    assert result.stats.n_drafted > 0
    assert (writer.guesses, result.stats.drafters["writer"].ahead) == ([], 0)


@pytest.mark.parametrize("what", ["cancel", "close"])
def test_a_request_may_end_while_its_drafter_drafts_ahead(what):
    class Ending(Writer):
        end = None

        def during(self, ask):
            super().during(ask)
            self.end()

    with ahead_engine(Ending, slots=2, n_ctx=300) as engine:
        begun, running = threading.Event(), []
        for writer in engine._drafters[:2]:
            writer.end = lambda: begun.wait(30) and (running[0].cancel() if what == "cancel" else engine.close())
        running.append(engine.submit([1, 2, 3], max_tokens=200, temperature=0.0))
        begun.set()
        assert running[0].result().finish_reason == "cancelled"
        if what == "cancel":
            assert list(engine.generate([1, 2, 3], max_tokens=20, temperature=0.0).tokens) == ToyModel().plain([1, 2, 3], 20)


def test_what_takes_longer_than_the_pass_is_lost_and_the_rest_is_hidden(monkeypatch):
    now = [0.0]
    for module in ("speculation.drafter_guard", "engine.loop"):
        monkeypatch.setattr(f"augury.{module}.perf_counter", lambda: now[0])

    class Slow(Writer):
        def during(self, ask):
            now[0] += 1.5  # all at once, as nobody expects

    rounds, losses = [], []

    class Watched(DraftPlanner):
        def observe_round(self, rounds, *others):
            every = [choice.proposals.drafters for choice, _ in rounds]
            losses.extend(drafters.every[0].spent_s for drafters in every if drafters.ahead is not None)
            super().observe_round(rounds, *others)

    watched = planner(kind=Watched)
    with ahead_engine(Slow, planner=watched, observers=(lambda **seen: rounds.append(seen["round"]), None)) as engine:
        stats = engine.generate([1, 2, 3], max_tokens=9, temperature=0.0).stats.drafters["writer"]
    n = len(losses)
    assert n >= 1
    assert losses == [0.5] * n
    assert (stats.draft_s, stats.hidden_s) == (0.5 * n, 1.0 * n)
    assert [each.forward_s for each in rounds] == [PASS_S] * len(rounds)
    assert sum(each.draft_s >= 0.5 for each in rounds) == n


# What the planner says of it


def choices_of(planner, *lengths, limit=8):
    """What is verified of slots whose drafts are so long, and their drafters."""
    choices = []
    for k in lengths:
        slot = slot_of(request_of(planner), {0: k} if k else {}, limit=limit)
        choices.append((choice_of(slot, range(k)), slot.drafters.every[0], range(k)))
    return choices


def n_ahead(planner, choices, able, begun_s=0.0):
    return planner.n_ahead([choice for choice, *_ in choices], able, 0, begun_s)


def knowing(per_token_s, n_right=1000):
    """A planner that knows a drafter's time, which is mostly right."""
    made = planner()
    for _ in range(2):
        made.profiles[0].cost.observe(4, 0, 4 * per_token_s)
    for _ in range(n_right):
        made.profiles[0].chances.see(TYPICAL, is_right=True)
    return made


@pytest.mark.parametrize(
    ("per_token_s", "begun_s", "expected"),
    [(0.01, 0.0, 8), (0.25, 0.0, 3), (0.25, 0.3, 1), (0.25, 0.6, 0), (0.6, 0.0, 0), (0.01, 1.5, 0)],
)
def test_as_much_is_drafted_ahead_as_the_rest_of_the_pass_hides(per_token_s, begun_s, expected):
    made = knowing(per_token_s)
    choices = choices_of(made, 3)
    assert n_ahead(made, choices, choices, begun_s) == [expected]


def test_slots_share_the_time():
    made = knowing(0.1)
    choices = choices_of(made, 3, 2, 0)
    assert n_ahead(made, choices, choices[:2]) == [4, 4]


def test_what_is_not_likely_to_be_accepted_is_not_drafted_ahead():
    made = knowing(0.001, n_right=0)  # 0.65 is what is expected of a model: to the fifth power 0.116, to the sixth 0.075
    choices = choices_of(made, 0, 2, 5)
    assert n_ahead(made, choices, choices) == [4, 2, 0]


@pytest.mark.parametrize(
    ("parents", "confidence", "guess", "n"),
    # as likely as what follows that path: of a model 0.65 to the fifth power is enough, to the sixth it is not
    [
        (None, None, [1, 2, 3], 1),
        ([-1, 0, 0], None, [1, 2], 2),
        ([-1, -1, 0], None, [1, 3], 2),
        ([-1, -1, 1], None, [1], 3),
        ([-1, -1, 1], [0.1, 0.8, 0.9], [2, 3], 2),  # the likeliest path is not the first
        ([-1, -1, 1], [0.8, 0.1, 0.9], [1], 3),  # nor the deepest
    ],
)
def test_of_a_draft_that_branches_the_likeliest_path_is_taken_for_accepted(parents, confidence, guess, n, monkeypatch):
    made, asked = knowing(0.001, n_right=0), []
    monkeypatch.setattr(
        ahead, "draft_for_all", lambda asks: asked.extend(dict(asks).values()) or dict.fromkeys(dict(asks), Draft())
    )
    slot = slot_of(request_of(made), {0: Draft([1, 2, 3], parents, confidence=confidence)}, limit=8)
    slot.sequence = SimpleNamespace(speculation=Speculation())
    guard = Mock(drafts_ahead=True, seconds=0.0, ask=lambda limit, guess: Ask(None, None, limit, guess))
    slot.drafters.every[0].guard = guard
    ahead.draft_ahead(made, [choice_of(slot, [0, 1, 2])], 0, 0.0)
    assert [ask.guess.tolist() for ask in asked] == [guess]
    assert [ask.limit - 1 for ask in asked] == [n]


def test_one_whose_draft_was_made_ahead_is_not_asked_again():
    made = knowing(0.001)
    slot = slot_of(request_of(made), limit=8)
    assert [ask.k for ask in made.asks([slot])] == [8]
    slot.add(slot.drafters.every[0], Draft([5, 6]), is_ahead=True)
    assert made.asks([slot]) == []
    assert made.choose([slot]) == [[0, 1]]


def test_a_guess_is_right_if_the_text_went_on_with_all_of_it():
    ahead = AheadDraft(None, 2, np.int32([7, 8]), Draft([9]), 0.0)
    right, *wrong = [1, 2, 7, 8], [1, 2, 7], [1, 2, 7, 9], [1, 2, 7, 8, 9], [1, 2, 3, 7, 8]
    assert ahead.follows(np.int32(right))
    assert not any(ahead.follows(np.int32(text)) for text in wrong)
