"""What became of proposed tokens: in a tree made by hand, and in an engine."""

import pytest
from oracles.planner_scenarios import request_of, slot_of
from support.toys import ScriptedDrafter, planner_of, toy_engine

from augury.interfaces import DrafterTraits
from augury.speculation.chances import Agreement, Bucket
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import SlotProposals
from augury.speculation.kernels import AGREED, ALONE, CONTESTED, RATIO, step_of
from augury.speculation.planner import DraftPlanner
from augury.speculation.profiles import DrafterProfile, RequestDrafter
from augury.speculation.trials import Trial, Trials
from augury.types import Draft

COSTS = [PassTime(n, 0, 0.02 + 0.001 * n) for n in (1, 4, 16)]


class Telling:
    def __init__(self, name, *evidence_chances):
        self.name, self.traits = name, DrafterTraits(evidence_chances=evidence_chances)


@pytest.fixture
def slot():
    """The tree 1 (0.5) ┬ 2 (0.8), and 3 (0.2), of which `b` proposes 1, too."""
    planner = DraftPlanner(PassCosts(COSTS, 17), map(DrafterProfile.of, [Telling("a", 0.5, 0.8), Telling("b", 0.4, 0.2)]))
    drafts = {0: Draft([1, 2], evidence=[0, 1]), 1: Draft([1, 3, 4], [-1, -1, 0], evidence=[0, 1, 1])}
    agreement = Agreement()
    agreement.table[RATIO] = 1.0  # as if no drafter said anything of another's tokens
    return slot_of(request_of(planner), drafts, agreement=agreement)


A, B = {"a": Bucket("evidence 0", 0.5)}, {"b": Bucket("evidence 1", 0.2)}


def test_a_token_is_tried_where_all_before_it_was_right(slot):
    both = A | {"b": Bucket("evidence 0", 0.4)}
    agreed, contested = Agreement.bucket(AGREED, 0.5), Agreement.bucket(CONTESTED, 0.2)
    first = [Trial(0.5, True, both, 0.5, agreed), Trial(0.2, False, B, 0.2, contested)]
    sure = Agreement.bucket(CONTESTED, 0.8)
    after = [
        Trial(pytest.approx(0.8), False, {"a": Bucket("evidence 1", 0.8)}, 0.8, sure),
        Trial(pytest.approx(0.2), True, B, 0.2, contested),
    ]
    assert list(Trials(slot, [1])) == first, "what comes after the last token was not seen"
    assert list(Trials(slot, [1, 4])) == first + after
    assert list(Trials(slot, [1, 4, 2])) == first + after
    assert [trial.is_right for trial in Trials(slot, [9, 1])] == [False, False]


def test_what_is_forbidden_is_not_tried(slot):
    slot.forbid([0, 1])
    assert [trial.is_right for trial in Trials(slot, [1, 4])] == [True, False]


def test_a_chance_is_that_of_the_planner(slot):
    slot.agreement.table[RATIO, 3 * step_of(0.5) + AGREED] = 1.9
    slot.forbid(range(4))  # nothing, but it is asked again
    first, other = Trials(slot, [1])
    assert first.chance > 0.9
    assert first.own_chance == 0.5
    assert other.chance == pytest.approx(1 - first.chance), "of tokens after one parent one alone can be right"


def test_agreement_is_tried_only_where_it_is_learnt(slot):
    slot.tree.chances[0] = 1.0
    assert [trial.agreement is None for trial in Trials(slot, [1, 4])] == [True, False, False], "what is certain stays so"
    alone = slot_of(slot.drafters, {0: Draft([1, 2], evidence=[0, 1])}, agreement=slot.agreement)
    assert [trial.agreement for trial in Trials(alone, [1, 2])] == [None, None], "nobody else was asked"


def test_agreement_is_named_by_kind_and_chance():
    tokens = [(ALONE, 0.0), (AGREED, 0.05), (CONTESTED, 0.74), (ALONE, 0.9)]
    assert [Agreement.bucket(*token).name for token in tokens] == [
        "alone, chance 0 to 0.05", "agreed, chance 0.05 to 0.15", "contested, chance 0.6 to 0.75", "alone, chance 0.9 to 1",
    ]  # fmt: skip
    for kind, chance in tokens[1:]:
        assert Agreement().table[RATIO, 3 * step_of(chance) + kind] == Agreement.bucket(kind, chance).prior


def test_buckets_have_names():
    chances = DrafterProfile("toy").chances
    names = [chances.bucket(bucket).name for bucket in (0, 1, 4, 8, 9, 10, 22)]
    assert names == [
        "any", "run from 0", "run from 3", "run from 33", "confidence 0 to 0.02", "confidence 0.02 to 0.05",
        "confidence 0.98 to 1",
    ]  # fmt: skip
    child = chances.child()
    for draft, prior in ((Draft([1]), chances.bucket(1).prior), (Draft([1], confidence=[0.5]), 0.55)):
        slot, drafter = SlotProposals(None, None, 9, 0), RequestDrafter(DrafterProfile("toy"), None, child)
        slot.add(drafter, draft)
        assert slot.tree.chances.tolist() == [prior]
        assert [chances.bucket(bucket).prior for bucket in slot.by_drafter[drafter].buckets] == [prior]


@pytest.mark.parametrize("is_planned", [True, False])
def test_an_engine_tells_every_round_in_which_a_planner_gave_chances(is_planned):
    planner = planner_of(PassCosts(COSTS, 17), False) if is_planned else None
    script = [(2, 1), (0, 0), (0, 2)]
    seen = []
    with toy_engine(drafter=lambda model: ScriptedDrafter(model, script), planner=planner) as engine:
        engine.watch_trials(seen.append)
        n_emitted = engine.generate([1, 2, 3], max_tokens=24, temperature=0).stats.n_emitted
        engine.watch_trials(None)
        engine.generate([1, 2, 3], max_tokens=8, temperature=0)
    trials = [trial for each in seen for trial in each]
    assert n_emitted == 24
    assert bool(trials) is is_planned
    assert all(list(trial.buckets) == ["scripted"] and 0 < trial.chance < 1 for trial in trials)
    if is_planned:
        rounds = [[trial.is_right for trial in each] for each in seen]
        assert {tuple(each) for each in rounds} >= {(), (False,)}
        assert any(any(each) for each in rounds)


def test_a_watcher_that_fails_changes_nothing(caplog):
    planner = planner_of(PassCosts(COSTS, 17), False)
    with toy_engine(drafter=ScriptedDrafter, planner=planner) as engine:
        plain = engine.generate([1, 2, 3], max_tokens=12, temperature=0).tokens
        engine.watch_trials(lambda _: 1 / 0)
        assert engine.generate([1, 2, 3], max_tokens=12, temperature=0).tokens == plain
    assert "ZeroDivisionError" in caplog.text
