import pytest

from augury.speculation.draft_cost import DraftCost


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


@pytest.mark.parametrize(("k", "n_missed", "is_catching_up"), [(2, 8, False), (2, 9, True), (0, 4, False), (0, 5, True)])
def test_where_much_was_missed_it_is_that_which_took_the_time(k, n_missed, is_catching_up):
    cost = DraftCost(per_token=0.5, per_missed=0.25)
    cost.observe(k, n_missed, 10.0)
    if is_catching_up:
        assert cost.per_token == 0.5
        assert cost.per_missed == pytest.approx(0.25 + ((10.0 - 0.5 * k) / n_missed - 0.25) / 5)
    else:
        assert cost.per_missed == 0.25
        assert cost.per_token == pytest.approx(0.5 + ((10.0 - 0.25 * n_missed) / max(k, 1) - 0.5) / 5)
    assert cost.seconds(3, 5) == pytest.approx(3 * cost.per_token + 5 * cost.per_missed)


@pytest.mark.parametrize("n_missed", [2, 20])
def test_less_time_than_expected_is_no_time_never_less(n_missed):
    cost = DraftCost(per_token=0.5, per_missed=0.25)
    cost.observe(1, n_missed, 0.1)
    assert min(cost.per_token, cost.per_missed) > 0
    assert (cost.per_token, cost.per_missed) == pytest.approx((0.5, 0.2) if n_missed == 20 else (0.4, 0.25))


def test_a_prompt_says_what_catching_up_takes_unless_it_was_held_from_before():
    cost = DraftCost()
    cost.observe_prompt(100, 50.0)
    assert cost.per_missed == 0.5
    cost.observe_prompt(100, 25.0)  # far quicker
    assert cost.per_missed == 0.5
    cost.observe_prompt(100, 26.0)
    assert cost.per_missed == pytest.approx(0.5 + (0.26 - 0.5) / 5)
