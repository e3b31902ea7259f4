import numpy as np
import pytest
from hypothesis import given, strategies as st

from augury.speculation.costs import DraftCost, PassCosts, PassTime
from augury.speculation.kernels import FACTOR

FLAT = [PassTime(1, 0, 0.010), PassTime(4, 0, 0.011), PassTime(8, 0, 0.020)]


def test_what_a_trip_takes_is_no_draft_s_length():
    cost = DraftCost(per_trip=0.01)
    for k in (1, 2, 4):
        cost.observe(k, 0, 0.01 + 0.002 * k)
    assert np.isclose(cost.seconds(8, 0), 0.01 + 0.002 * 8)
    assert cost.seconds(0, 0) == 0


def test_between_measured_sizes_costs_are_interpolated_and_beyond_them_extended():
    costs = PassCosts(FLAT, n_largest=12)
    assert costs.seconds(4, 0) == pytest.approx(0.011)
    assert costs.seconds(6, 0) == pytest.approx(0.0155)
    assert costs.seconds(12, 0) == pytest.approx(0.029)
    assert costs.seconds(24, 0) == pytest.approx(0.058)


def test_a_pass_takes_as_long_as_the_next_size_that_passes_are_computed_for():
    times = [PassTime(n, 0, n / 100) for n in (1, 2, 4, 8)]
    costs = PassCosts([*times, PassTime(8, 100, 0.09)], n_largest=10, pass_sizes=(1, 2, 4, 8))
    assert costs.curves(10, 0)[0] == pytest.approx([0.01, 0.01, 0.02, 0.04, 0.04, 0.08, 0.08, 0.08, 0.08, 0.09, 0.10])
    assert costs.seconds(5, 100) == pytest.approx(0.09)


def test_a_context_costs_what_was_measured_for_it():
    costs = PassCosts([*FLAT, PassTime(1, 1000, 0.014), PassTime(8, 1000, 0.060)], n_largest=8)
    assert costs.seconds(1, 500) == pytest.approx(0.012)
    assert costs.seconds(8, 500) == pytest.approx(0.040)


def test_the_curve_is_what_single_figures_say():
    costs = PassCosts([*FLAT, PassTime(8, 100, 0.030)], n_largest=10)
    assert costs.curves(20, 70)[0] == pytest.approx([costs.seconds(n, 70) for n in range(21)])
    assert costs.curves(3, 70)[0][:4] == pytest.approx([costs.seconds(n, 70) for n in range(4)])


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(1e-6, 10.0)), max_size=60))
def test_costs_stay_positive_and_finite_whatever_is_observed(seen):
    costs = PassCosts(FLAT, n_largest=16)
    for n, seconds in seen:
        costs.observe(n, 0, seconds)
    curve = np.array(costs.curves(32, 0)[0][1:])
    assert len(curve) == 32
    assert np.isfinite(curve).all()
    assert (curve > 0).all()


def test_passes_that_cost_something_else_are_believed_within_a_few_dozen():
    costs = PassCosts(FLAT, n_largest=16)
    for _ in range(40):
        costs.observe(8, 0, 0.040)
        costs.observe(1, 0, 0.010)
    assert costs.seconds(8, 0) == pytest.approx(0.040, rel=0.1)
    assert costs.seconds(1, 0) == pytest.approx(0.010, rel=0.1)


def test_one_interrupted_pass_moves_little():
    costs = PassCosts(FLAT, n_largest=16)
    for _ in range(8):
        costs.observe(1, 0, 0.010)
    costs.observe(1, 0, 5.0)
    assert costs.seconds(1, 0) < 0.0115


def test_the_first_passes_of_a_size_say_most_about_it():
    costs = PassCosts([PassTime(1, 0, 0.010), PassTime(8, 0, 0.050)], n_largest=16)
    for _ in range(4):
        costs.observe(8, 0, 0.020)
    assert costs.seconds(8, 0) < 0.025
    assert costs.seconds(1, 0) == pytest.approx(0.010, rel=0.1)


def test_a_size_that_was_disturbed_when_it_was_measured_is_as_cheap_as_the_next():
    costs = PassCosts(
        [PassTime(1, 0, 0.010), PassTime(3, 0, 0.020), PassTime(4, 0, 0.011), PassTime(8, 0, 0.012)], n_largest=16
    )
    assert [costs.seconds(n, 0) for n in (1, 3, 4, 8)] == pytest.approx([0.010, 0.011, 0.011, 0.012])


def test_a_larger_pass_never_counts_as_cheaper_than_a_smaller_one():
    costs = PassCosts(FLAT, n_largest=16)
    for _ in range(100):
        costs.observe(8, 0, 0.001)
    assert costs.curves(16, 0)[0].tolist() == sorted(costs.curves(16, 0)[0])


def test_sizes_that_were_seen_little_may_be_cheaper_than_they_seem():
    costs = PassCosts(FLAT, n_largest=16)
    assert costs.curves(20, 0)[1][1] == costs.curves(20, 0)[0][1]
    assert costs.curves(20, 0)[1][8] == pytest.approx(0.9 * costs.curves(20, 0)[0][8])
    for _ in range(50):
        costs.observe(8, 0, 0.020)
    assert costs.curves(20, 0)[1][8] > 0.98 * costs.curves(20, 0)[0][8]


def test_what_a_context_costs_counts_from_the_least_depth_that_was_measured():
    costs = PassCosts([PassTime(1, 100, 0.010), PassTime(8, 100, 0.020), PassTime(8, 600, 0.060)], n_largest=8)
    assert costs.seconds(8, 500) - costs.seconds(8, 0) == pytest.approx(500 * 0.040 / 500)


def test_two_tokens_may_be_cheaper_than_they_seem_one_may_not():
    costs = PassCosts([PassTime(1, 0, 0.010), PassTime(2, 0, 0.050)], n_largest=4)
    assert costs.curves(2, 0)[1][1:3] == pytest.approx([0.010, 0.9 * 0.050])


@pytest.mark.parametrize(("n", "is_learnt"), [(0, False), (1, True), (16, True), (17, False), (99, False)])
def test_passes_of_sizes_that_have_figures_of_their_own_are_learnt_from(n, is_learnt):
    costs = PassCosts(FLAT, n_largest=16)
    before = costs.curves(99, 0)[0].tolist()
    costs.observe(n, 0, 1.5 * before[n] if n else 0.01)
    assert (costs.curves(99, 0)[0].tolist() != before) == is_learnt


@pytest.mark.parametrize(("n", "other"), [(1, 8), (8, 1)])
@pytest.mark.parametrize("change", [0.5, 1.6])
def test_figures_of_passes_that_are_no_longer_made_follow_the_machine_s_speed(n, other, change):
    costs = PassCosts(FLAT, n_largest=8)
    seconds, unseen = costs.seconds(n, 0), costs.seconds(other, 0)
    for _ in range(40):
        costs.observe(n, 0, seconds)
    for _ in range(60):
        costs.observe(n, 0, change * seconds)
    assert costs.seconds(other, 0) == pytest.approx(change * unseen, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_a_pass_says_more_of_those_with_drafts_or_of_those_without(n):
    costs = PassCosts(FLAT, n_largest=8)
    costs.observe(n, 0, 2 * costs.seconds(n, 0))
    grown = np.repeat(costs._common, [1, 7]) * costs._table[FACTOR, 1:]
    alike, others = (grown[:1], grown[1:]) if n == 1 else (grown[1:], grown[:1])
    assert others == pytest.approx(others[0])  # by what all passes have in common
    assert (alike > others[0] * 1.01).all()
    assert alike.max() == grown[n - 1]


def test_the_first_ask_says_what_a_token_takes_and_later_ones_a_fifth_each():
    cost = DraftCost()
    cost.observe(4, 0, 0.8)
    assert (cost.per_ask, cost.per_token, cost.per_missed, cost.n_asks) == (0.8, 0.2, 0.0, 1)
    cost.observe(2, 0, 0.8)
    assert cost.per_token == pytest.approx(0.2 + (0.4 - 0.2) / 5)
    cost.observe(0, 0, 0.2)  # it declined, which took as long as a token
    assert cost.per_token == pytest.approx(0.24 + (0.2 - 0.24) / 5)
    for _ in range(7):
        cost.observe(1, 0, 0.6)
    assert cost.per_ask == pytest.approx(0.6, abs=0.005), "on average, of few asks the plain one"
    assert cost.seconds(3, 5) == pytest.approx(3 * cost.per_token)


def test_a_warm_drafter_that_was_interrupted_once_counts_as_twice_as_slow_at_most():
    cost = DraftCost()
    for _ in range(17):
        cost.observe(1, 0, 0.1)
    cost.observe(1, 0, 50.0)
    assert cost.per_ask == pytest.approx(0.1 + (0.2 - 0.1) / 5)


def test_a_draft_of_fixed_cost_takes_the_same_whatever_its_length():
    cost = DraftCost(is_fixed=True)
    cost.observe(6, 0, 0.5)
    assert [cost.seconds(k, 0) for k in (0, 1, 9)] == [0.0, 0.5, 0.5]
    cost.observe(1, 0, 1.0)
    assert cost.seconds(4, 0) == pytest.approx(0.5 + (1.0 - 0.5) / 5)
    assert cost.per_further_token == 0.0
    cost.observe(2, 20, 10.6)  # much was missed
    assert cost.per_missed == pytest.approx(10.0 / 20 / 5)
    assert DraftCost(per_token=0.2).per_further_token == 0.2


@pytest.mark.parametrize(("k", "n_missed", "is_catching_up"), [(2, 8, False), (2, 9, True), (0, 4, False), (0, 5, True)])
def test_where_much_was_missed_it_is_that_which_took_the_time(k, n_missed, is_catching_up):
    cost = DraftCost(per_token=0.5, per_missed=0.25)
    cost.observe(k, n_missed, 10.0)
    assert not cost.is_known
    if is_catching_up:
        assert cost.per_token == 0.5
        assert cost.per_missed == pytest.approx(0.25 + ((10.0 - 0.5 * k) / n_missed - 0.25) / 5)
    else:
        assert cost.per_missed == 0.25
        assert cost.per_token == pytest.approx(0.5 + (2 * 0.5 - 0.5) / 5), "of what took longer no more than twice is believed"
    assert cost.seconds(3, 5) == pytest.approx(3 * cost.per_token + 5 * cost.per_missed)


@pytest.mark.parametrize("n_missed", [2, 20])
def test_less_time_than_expected_is_no_time_never_less(n_missed):
    cost = DraftCost(per_token=0.5, per_missed=0.25)
    cost.observe(1, n_missed, 0.1)
    assert min(cost.per_token, cost.per_missed) > 0
    assert (cost.per_token, cost.per_missed) == pytest.approx((0.5, 0.2) if n_missed == 20 else (0.4, 0.25))


def test_a_first_ask_that_was_slow_is_forgotten_once_another_was_not():
    cost = DraftCost(per_missed=0.1)
    cost.observe(1, 0, 9.0)
    assert (cost.is_known, cost.seconds(2, 3), cost.hopeful_seconds(2, 3)) == (False, 18.3, pytest.approx(0.3))
    cost.observe(1, 0, 4.0)
    assert (cost.is_known, cost.per_token) == (True, 4.0)
    assert cost.hopeful_seconds(2, 3) == cost.seconds(2, 3) == pytest.approx(8.3)
    cost.observe(1, 0, 2.0)  # not less than half
    assert cost.per_token == pytest.approx(4.0 + (2.0 - 4.0) / 5)


def test_a_prompt_says_what_catching_up_takes_unless_it_was_held_from_before():
    cost = DraftCost()
    cost.observe_prompt(100, 50.0)
    assert cost.per_missed == 0.5
    cost.observe_prompt(100, 25.0)  # far quicker
    assert cost.per_missed == 0.5
    cost.observe_prompt(100, 26.0)
    assert cost.per_missed == pytest.approx(0.5 + (0.26 - 0.5) / 5)


@pytest.mark.parametrize("n", [0, 9])
def test_a_pass_of_a_size_that_has_no_figure_teaches_nothing(n):
    costs = PassCosts(FLAT, n_largest=8)
    known = costs.curves(8, 0)[0].tolist()
    costs.observe(n, 0, 1.0)
    assert costs.curves(8, 0)[0].tolist() == known
