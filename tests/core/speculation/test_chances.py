from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.speculation.chances import Chances, survival
from augury.speculation.constants import TYPICAL
from augury.speculation.drafts import SlotProposals
from augury.speculation.profiles import DrafterProfile, RequestDrafter
from augury.types import Draft

RUNS = (0, 1, 2, 3, 5, 9, 17, 33)
RUN_CHANCES = [0.78, 0.78, 0.85, 0.84, 0.94, 0.96, 0.98, 0.99]
tokens = st.lists(st.integers(0, 2), max_size=8)


def judged(chances, draft, run=0):
    """The buckets of a draft's tokens, and their chances."""
    slot, drafter = SlotProposals(None, None, 999, 0), RequestDrafter(DrafterProfile("toy"), None, chances, run)
    slot.add(drafter, draft)
    return slot.by_drafter[drafter].buckets, chances.values[slot.by_drafter[drafter].buckets].tolist()


def chances_of(chances, draft, run=0):
    return judged(chances, draft, run)[1]


def drafter_of(evidence=(), **facts):
    profile = DrafterProfile("toy", **facts, chances=Chances(evidence, **facts))
    return RequestDrafter(profile, SimpleNamespace(is_left_out=False))


def score(drafter, draft, emitted):
    slot = SlotProposals(None, None, 99, 0)
    slot.add(drafter, draft if isinstance(draft, Draft) else Draft(draft))
    slot.score(drafter, emitted)
    return drafter.n_right


@given(st.lists(st.tuples(tokens, tokens.filter(bool)), max_size=30), st.integers(0, 40))
def test_chances_are_chances_whatever_was_seen(rounds, k):
    drafter = drafter_of()
    for proposed, emitted in rounds:
        score(drafter, proposed, emitted)
    found = chances_of(drafter.chances, Draft([0] * k), drafter.run)
    assert len(found) == k
    assert all(0 < chance < 1 for chance in found)


def test_the_run_counts_right_tokens_in_a_row():
    drafter = drafter_of()
    assert score(drafter, [1, 2, 3], [1, 2, 3, 4]) == 3
    assert score(drafter, [4], [4]) == 1
    assert drafter.run == 4
    assert score(drafter, [5, 6, 9, 9], [5, 6, 7]) == 2
    assert drafter.run == 0
    score(drafter, [1], [1])
    SlotProposals(None, None, 99, 0).score(drafter, [1])
    assert drafter.run == 0, "what it finds next is another stretch"


def test_a_cut_is_no_rejection_and_what_was_not_seen_counts_as_nothing():
    cut, whole = drafter_of(), drafter_of()
    score(cut, [1, 2, 3, 4, 5, 6], [1, 2])
    score(whole, [1, 2], [1, 2])
    assert chances_of(cut.chances, Draft([0] * 8)) == chances_of(whole.chances, Draft([0] * 8))


def test_a_request_keeps_what_each_drafter_had_right_and_since_when_it_was_not_asked():
    asked, silent, unasked = (drafter_of() for _ in range(3))
    for proposed in ([7, 8, 9], [1], [7]):  # two right, none, one
        score(asked, proposed, [7, 8])
        score(silent, [], [7, 8])
        SlotProposals(None, None, 99, 0).score(unasked, [7, 8])
    assert [each.n_missed for each in (asked, silent, unasked)] == [6, 6, 6]  # whoever asks takes that back
    assert [each.n_right for each in (asked, silent, unasked)] == [1, 0, 0]


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_chances_are_learnt_by_run_from_censored_drafts(chance):
    rng = np.random.default_rng(3)
    drafter = drafter_of()
    for _ in range(3000):  # drafts of 3: a fully right one says "at least 3"
        n_right = int(rng.geometric(1 - chance)) - 1
        score(drafter, [1, 1, 1], [1] * min(n_right, 3) + [0])
    first, second = chances_of(drafter.profile.chances, Draft([0, 0]))
    assert first == pytest.approx(chance, abs=0.06)
    assert second == pytest.approx(chance, abs=0.1)


def test_a_new_request_starts_from_what_others_taught():
    everyone = Chances()
    first = everyone.child()
    for _ in range(50):
        first.see(judged(first, Draft([0]))[0][0], is_right=False)
    assert chances_of(everyone.child(), Draft([0]))[0] < 0.1
    assert chances_of(Chances().child(), Draft([0]))[0] > 0.3


def test_runs_are_counted_apart_from_the_first_of_each_bucket_on():
    buckets, found = judged(Chances(), Draft([0] * 999))
    firsts = [run for run in range(1, 99) if buckets[run] != buckets[run - 1]]
    assert firsts == list(RUNS[1:])
    assert [found[run] for run in (*RUNS, 998)] == [*RUN_CHANCES, 0.99]
    assert chances_of(Chances(), Draft([0] * 2), run=4) == RUN_CHANCES[3:5]
    assert chances_of(Chances(), Draft([0] * 4, [-1, -1, 1, 2]), run=1) == [RUN_CHANCES[place] for place in (1, 1, 2, 3)], (
        "of a tree by depth"
    )
    assert chances_of(Chances(is_costly=True), Draft([0] * 3)) == [0.65] * 3
    assert chances_of(Chances(is_certain=True), Draft([0] * 3)) == [1.0] * 3
    assert survival(0.65, 3) == pytest.approx([0.65, 0.65**2, 0.65**3])


@pytest.mark.parametrize(
    ("confidence", "chance"), [(0.0, 0.01), (0.019, 0.01), (0.02, 0.035), (0.5, 0.55), (0.97, 0.965), (0.98, 0.99), (1.0, 0.99)]
)
def test_a_confidence_is_believed_until_it_was_seen_what_it_is_worth(confidence, chance):
    chances = Chances(is_costly=True)
    draft = Draft([1], confidence=[confidence])
    assert chances_of(chances, draft) == [chance]
    for _ in range(2000):
        chances.see(judged(chances, draft)[0][0], is_right=False)
    assert chances_of(chances, draft)[0] < 0.05


def test_evidence_goes_before_all_else_and_each_bucket_is_learnt_apart():
    drafter = drafter_of((0.9, 0.2, 0.5))
    draft = Draft([7, 8, 9], [-1, -1, 0], confidence=[0.5] * 3, evidence=[0, 1, 2])
    assert chances_of(drafter.chances, draft) == [0.9, 0.2, 0.5]
    assert score(drafter, draft, [8, 5]) == 1
    first, second, third = chances_of(drafter.profile.chances, draft)
    assert first < 0.9
    assert second == pytest.approx((1 + 14 * 0.2) / 15)
    assert third == 0.5, "nothing follows the history but what was emitted"


def test_a_model_s_tokens_are_also_judged_together():
    drafter = drafter_of(is_costly=True)
    before = drafter.chances.typical
    score(drafter, Draft([1, 2], confidence=[0.9, 0.9]), [1, 2, 3])
    assert drafter.chances.typical > before
    assert score(drafter, [], [1]) == 0
    assert drafter.chances.typical < before + 0.05, "one that was asked and had nothing was paid for"


def test_what_is_forbidden_is_no_trial():
    drafter = drafter_of()
    slot = SlotProposals(None, None, 99, 0)
    slot.add(drafter, Draft([7, 8, 9], [-1, -1, 1]))
    slot.forbid([1, 2])
    slot.score(drafter, [7])
    assert drafter.chances.typical == pytest.approx((4 * 0.65 * 4 / 5) / 5), "token 8 was wrong, which all requests know"
    before = drafter.chances.typical
    slot.forbid([])
    slot.score(drafter, [7])
    assert drafter.chances.typical == before


def test_old_trials_count_less_those_of_all_requests_hardly_less():
    everyone = Chances(is_costly=True)
    own = everyone.child()
    for is_right in (True, True, False):
        own.see(TYPICAL, is_right=is_right)

    def chance(keep, before):
        return (keep**2 + keep + 14.0 * before) / (keep**2 + keep + 1 + 14.0)

    assert everyone.typical == pytest.approx(chance(0.998, 0.65))
    assert own.typical == pytest.approx(chance(0.98, everyone.typical))


@pytest.mark.parametrize("place", range(len(RUNS)))
def test_a_token_counts_for_its_run_alone(place):
    first, after = RUNS[place], [*RUNS[1:], RUNS[-1] + 9][place]
    for run in (first, after - 1):  # the first and the last run of the bucket
        chances = Chances()
        chances.see(judged(chances, Draft([0]), run)[0][0], is_right=False)
        changed = [chances_of(chances, Draft([0]), each) != chances_of(Chances(), Draft([0]), each) for each in RUNS]
        assert changed == [each == first for each in RUNS]
        assert chances_of(chances, Draft([0]), first) == [RUN_CHANCES[place] * 4 / 5]
