import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.speculation.estimates import LOOKUP, MODEL, Acceptance, Kind

tokens = st.lists(st.integers(0, 2), max_size=8)


@given(st.lists(st.tuples(tokens, tokens.filter(bool)), max_size=30), st.integers(0, 40))
def test_survival_is_a_falling_chance_whatever_was_seen(rounds, k):
    acceptance = Acceptance(LOOKUP).child()
    for proposed, emitted in rounds:
        acceptance.see(proposed, emitted)
    survival = acceptance.survival(k)
    assert len(survival) == k
    assert all(0 < chance < 1 for chance in survival)
    assert survival == sorted(survival, reverse=True)
    chances = [acceptance.chance(acceptance.run + j) for j in range(k)]
    assert survival == pytest.approx(np.cumprod(chances).tolist())


def test_the_run_counts_right_tokens_in_a_row():
    acceptance = Acceptance(LOOKUP)
    assert acceptance.see([1, 2, 3], [1, 2, 3, 4]) == 3
    assert acceptance.see([4], [4]) == 1
    assert acceptance.run == 4
    assert acceptance.see([5, 6, 9, 9], [5, 6, 7]) == 2
    assert acceptance.run == 0
    acceptance.see([1], [1])
    acceptance.decline()
    assert acceptance.run == 0


def test_a_cut_is_no_rejection_and_what_was_not_seen_counts_as_nothing():
    cut, whole = Acceptance(LOOKUP), Acceptance(LOOKUP)
    cut.see([1, 2, 3, 4, 5, 6], [1, 2])
    whole.see([1, 2], [1, 2])
    assert [cut.chance(run) for run in range(8)] == [whole.chance(run) for run in range(8)]


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_chances_are_learnt_by_run_from_censored_drafts(chance):
    rng = np.random.default_rng(3)
    acceptance = Acceptance(LOOKUP)
    for _ in range(3000):  # drafts of 3: a fully right one says "at least 3"
        n_right = int(rng.geometric(1 - chance)) - 1
        emitted = [1] * min(n_right, 3) + [0]
        acceptance.see([1, 1, 1], emitted)
    assert acceptance.chance(0) == pytest.approx(chance, abs=0.06)
    assert acceptance.chance(1) == pytest.approx(chance, abs=0.1)


def test_tokens_guessed_one_by_one_are_all_seen_also_after_a_wrong_one():
    one, other = Acceptance(MODEL), Acceptance(MODEL)
    one.see_each([True, False, True, True])
    for is_right in (1, 0, 1, 1):
        other.see([1], [is_right])
        other.run = 0
    assert one.chance(0) == other.chance(0)
    assert one.run == 2


def test_a_new_request_starts_from_what_others_taught():
    everyone = Acceptance(LOOKUP)
    first = everyone.child()
    for _ in range(50):
        first.see([1], [0])
    assert everyone.child().chance(0) < 0.1
    assert Acceptance(LOOKUP).child().chance(0) > 0.3


def test_runs_are_counted_apart_from_the_first_of_each_bucket_on():
    assert Kind((0, 1, 3, 4), (), 1.0, 1.0).buckets() == (0, 1, 1, 2, 3)
    fresh = Acceptance(LOOKUP)
    firsts = [run for run in range(1, 99) if fresh.chance(run) != fresh.chance(run - 1)]
    assert firsts == [1, 2, 3, 5, 9, 17, 33]
    assert [fresh.chance(run) for run in (0, *firsts, 999)] == [0.4, 0.55, 0.65, 0.75, 0.85, 0.9, 0.93, 0.96, 0.96]
    assert Acceptance(MODEL).survival(3) == pytest.approx([0.65, 0.65**2, 0.65**3])


def test_old_trials_count_less_those_of_all_requests_hardly_less():
    everyone, kind = Acceptance(MODEL), MODEL
    own = everyone.child()
    own.see_each([True, True, False])

    def chance(keep, before):
        return (keep**2 + keep + kind.weight * before) / (keep**2 + keep + 1 + kind.weight)

    assert everyone.chance(0) == pytest.approx(chance(0.998, kind.prior[0]))
    assert own.chance(0) == pytest.approx(chance(kind.keep, everyone.chance(0)))


@pytest.mark.parametrize("bucket", range(len(LOOKUP.runs)))
def test_a_token_counts_for_its_run_alone(bucket):
    first, after = LOOKUP.runs[bucket], [*LOOKUP.runs[1:], LOOKUP.runs[-1] + 9][bucket]
    for run in (first, after - 1):  # the first and the last run of the bucket
        acceptance = Acceptance(LOOKUP)
        acceptance.run = run
        acceptance.see([1], [0])
        changed = [acceptance.chance(each) != Acceptance(LOOKUP).chance(each) for each in LOOKUP.runs]
        assert changed == [each == first for each in LOOKUP.runs]
        assert acceptance.chance(first) == LOOKUP.prior[bucket] * LOOKUP.weight / (LOOKUP.weight + 1)
