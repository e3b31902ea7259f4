"""The planner in scenarios of invented costs: what it may lose, what it must win, and how soon it notices a change."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles.planner_scenarios import DEPTH, Scenario, Source, chosen, slot_of, stretches

from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.types import Draft

# milliseconds of passes of 0 to 17 tokens: Qwen2.5-Coder 1.5B on two cores, with fast memory and with slow
FAST = [18.2, 18.2, 18.2, 18.2, 18.3, 21.8, 24.2, 26.2, 28.3, 32.5, 34.3, 36.2, 38.0, 42.5, 44.8, 47.1, 49.5, 54.0]
SLOW = [28.3, 28.3, 28.3, 29.3, 29.3, 29.4, 30.8, 32.8, 34.8, 35.3, 37.1, 39.0, 40.9, 43.7, 46.4, 49.2, 52.0, 57.1]
# and on two cores of another CPU
XEON = [41.5, 41.5, 46.0, 51.4, 54.5, 54.5, 57.1, 59.5, 61.9, 69.3, 73.0, 76.8, 80.5, 85.4, 90.3, 95.1, 100.0, 108.0]
FAST, SLOW, XEON = (np.array(milliseconds) / 1e3 for milliseconds in (FAST, SLOW, XEON))
LINEAR = np.arange(18) * 0.9 / 100 + 0.001  # drafting hardly ever pays
STEEP = np.arange(18) * 0.0015 + 0.010  # drafting pays where it is right
MODEL = {"per_token_s": 0.0077, "per_missed_s": 0.0008, "is_costly": True}
N = 4000


def bernoulli(chance, n=N, seed=1):
    return np.random.default_rng(seed).random(n) < chance


@pytest.mark.parametrize("costs", [FAST, SLOW, LINEAR])
def test_a_drafter_that_is_never_right_costs_under_two_percent(costs):
    for n in (128, N):
        scenario = Scenario(costs, [Source(bernoulli(0.0, n))])
        assert scenario.play() <= 1.02 * scenario.plain()


@pytest.mark.parametrize("costs", [FAST, SLOW, XEON])
@pytest.mark.parametrize("n", [14, 18, 24, 33])
@pytest.mark.parametrize("n_drafters", [1, 2])
def test_a_lookup_that_is_never_right_takes_under_one_percent_of_a_short_answer(costs, n, n_drafters):
    scenario = Scenario(costs, [Source(bernoulli(0.0, n)) for _ in range(n_drafters)])
    assert scenario.play() <= (1 + 0.01 * n_drafters) * scenario.plain()


@pytest.mark.parametrize("costs", [FAST, SLOW, LINEAR])
def test_a_draft_model_that_is_never_right_costs_under_four_percent(costs):
    for n in (48, 64, 96, N):
        scenario = Scenario(costs, [Source(bernoulli(0.0, n), **MODEL)])
        assert scenario.play() <= 1.04 * scenario.plain()


@pytest.mark.sample(4)
@pytest.mark.parametrize("costs", [FAST, SLOW])
@pytest.mark.parametrize("chance", [0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("drafting", [{}, MODEL])
def test_regret_against_the_best_fixed_length_is_under_five_percent(costs, chance, drafting):
    scenarios = [Scenario(costs, [Source(bernoulli(chance, seed=seed), **drafting)]) for seed in (1, 2, 3)]
    assert sum(scenario.play() for scenario in scenarios) <= 1.05 * sum(scenario.best_fixed() for scenario in scenarios)


@pytest.mark.parametrize(
    ("per_token_s", "chance", "gain"),
    [
        (0.05, 0.9, 1.08),
        (0.2, 0.8, 1.15),
        (0.3, 0.9, 1.2),
        (0.5, 0.7, 1.15),
        (0.1, 0.3, 0.995),
        (0.3, 0.0, 0.995),
        (0.8, 0.9, 1.0),
    ],
)
def test_drafting_ahead_gains_where_a_model_is_often_right_and_costs_nothing_where_it_is_not(per_token_s, chance, gain):
    costs = 1 + np.arange(18) / 100
    source = Source(bernoulli(chance, 2000), per_token_s=per_token_s, per_missed_s=per_token_s / 10, is_costly=True)
    scenario = Scenario(costs, [source])
    assert scenario.play() >= gain * scenario.play(overlaps=True)


@pytest.mark.parametrize("costs", [FAST, SLOW])
def test_text_that_is_copied_in_stretches_is_drafted_better_than_any_fixed_length(costs):
    scenario = Scenario(costs, [Source(stretches(np.random.default_rng(2), N, mean_right=30, mean_wrong=10))])
    assert scenario.play() < scenario.best_fixed()


@pytest.mark.parametrize(("drafting", "n_rounds"), [({}, 48), (MODEL, 256)])
def test_a_drafter_that_becomes_right_is_used_soon(drafting, n_rounds):
    change = 1500
    for seed in range(4):
        right = np.concatenate([bernoulli(0.02, change, seed=10 + seed), bernoulli(0.95, 1500, seed=seed)])
        scenario = Scenario(FAST, [Source(right, **drafting)])
        scenario.play()
        later = [choice for position, choice in scenario.choices if position >= change]
        after = later[n_rounds : n_rounds + 50]
        assert min(choice.k for choice in after) >= 2


@pytest.mark.parametrize("n_drafters", [1, 3, 8])
def test_a_lookup_that_was_wrong_at_first_is_used_as_soon_as_it_is_right(n_drafters):
    change = 8
    never, at_first = Source(bernoulli(0.0, 200)), Source(np.arange(200) >= change)
    scenario = Scenario(STEEP, [at_first, *[never] * (n_drafters - 1)])
    scenario.play()
    later = [choice.k for position, choice in scenario.choices if position >= change]
    assert max(later[:4]) > 0


def test_a_drafter_that_becomes_wrong_is_left_soon():
    change = 1500
    right = np.concatenate([bernoulli(0.95, change), bernoulli(0.0, 1500, seed=2)])
    for drafting in ({}, MODEL):
        scenario = Scenario(LINEAR if not drafting else FAST, [Source(right, **drafting)])
        scenario.play()
        later = [choice.k for position, choice in scenario.choices if position >= change]
        assert sum(later[48:200]) <= 6  # two probes of a costly one


def test_a_chain_is_as_fast_as_its_best_member():
    rng = np.random.default_rng(4)
    texts = [stretches(rng, N, 30, 20), bernoulli(0.5)]
    alone = [Scenario(FAST, [Source(text)]).play() for text in texts]
    for order in (1, -1):
        assert Scenario(FAST, [Source(text) for text in texts][::order]).play() <= 1.03 * min(alone)


def test_of_a_lookup_and_a_model_each_is_used_where_it_pays():
    seconds, used = [], set()
    for seed in range(6):  # a model that was wrong at first has little to be tried with while the lookup copies
        rng = np.random.default_rng(seed)
        lookup, model = Source(stretches(rng, N, 100, 100)), Source(bernoulli(0.8, seed=seed), **MODEL)
        both = Scenario(FAST, [lookup, model])
        seconds.append((both.play(), min(Scenario(FAST, [lookup]).play(), Scenario(FAST, [model]).play())))
        used |= {choice.drafter for _, choice in both.choices}
    together, alone = np.array(seconds).T
    assert together.sum() < 0.97 * alone.sum()
    assert (together < 1.01 * alone).all()
    assert used >= {0, 1}


@pytest.mark.parametrize("costs", [FAST, SLOW])
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("n_copied", [0, 60, 3000])
def test_others_never_wait_long_for_a_model_that_catches_up(costs, chance, n_copied):
    # what a lookup copied the model has missed
    scenario = Scenario(
        costs, [Source(np.arange(n_copied + 1500) < n_copied), Source(bernoulli(chance, n_copied + 1500), **MODEL)]
    )
    planner, seconds = scenario.planner(), []
    observe = planner.observe_draft
    planner.observe_draft = lambda *seen: seconds.append(seen[-1]) or observe(*seen)
    scenario.play(planner)
    assert max(seconds) <= 8 * costs[1]
    assert max(seconds) > 0 or chance < 0.9


def test_a_model_that_missed_much_is_teacher_forced_beside_the_draft_of_another():
    planner = DraftPlanner(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), [False, True])
    (drafters,) = sure(planner, chance=0.3)
    for n_missed, expected in ((24, None), (25, 1)):
        planner.observe_teacher_forced(1, drafters, [True] * 16, 0.001)  # it was right, and may be tried at once
        drafters.score(1, None, [0] * n_missed)
        for _ in range(200):
            planner.observe_round([slot_of(drafters)], DEPTH, 0, FAST[1])
        planner._costly_budgets[1].book(1.0)
        slot = slot_of(drafters, {0: 3, 1: 16})
        planner.choose([slot])
        assert slot.teacher_forced == expected
    assert (slot.drafter, slot.k) == (0, 3)


def test_in_a_round_one_slot_is_teacher_forced():
    planner = DraftPlanner(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), [True])
    requests = [planner.new_request() for _ in range(4)]
    planner._costly_budgets[0].book(8.0)
    for drafters in requests:
        drafters.score(0, None, [0] * 30)
    for _ in range(8):
        planner.observe_round([slot_of(drafters) for drafters in requests], DEPTH, 0, FAST[4])
    slots = [slot_of(drafters, {0: 16}) for drafters in requests]
    planner.choose(slots)
    assert sum(slot.teacher_forced is not None for slot in slots) == 1


def test_teacher_forcing_on_what_others_drafted_says_nothing():
    planner = DraftPlanner(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), [True])
    drafters = planner.new_request()
    before = drafters.estimates[0].survival(4)
    planner.observe_teacher_forced(0, drafters, [], 0.001)
    assert drafters.estimates[0].survival(4) == before
    assert planner._intervals[0] > 8, "it was not right, so it waits longer"


def test_a_model_that_cannot_be_teacher_forced_is_tried_by_drafts():
    change = 200
    right = np.concatenate([bernoulli(0.0, change), bernoulli(0.95, 400, seed=2)])
    scenario = Scenario(FAST, [Source(right, **MODEL | {"per_missed_s": 0.0, "can_be_teacher_forced": False})])
    planner = scenario.planner()
    scenario.play(planner)
    assert sum(choice.teacher_forced is not None for _, choice in scenario.choices) == 1
    later = [choice.k for position, choice in scenario.choices if position >= change]
    assert max(later) > 2


def test_what_one_request_taught_the_next_one_knows():
    scenario = Scenario(LINEAR, [Source(bernoulli(0.0, 100))])
    planner = scenario.planner()
    scenario.play(planner)
    scenario.play(planner)
    assert sum(choice.k for _, choice in scenario.choices) == 0


def costs_of(table, n_largest=64):
    return PassCosts([PassTime(n, 0, seconds) for n, seconds in table.items()], n_largest)


def sure(planner, n_slots=1, chance=0.95):
    """Tracks of slots whose drafter 0 was right in that share of many rounds."""
    rng = np.random.default_rng(6)
    requests = [planner.new_request() for _ in range(n_slots)]
    for drafters in requests:
        for _ in range(300):
            drafters.estimates[0].see([1] * 8, [1] * min(int(rng.geometric(1 - chance)), 8) + [0])
        drafters.estimates[0].see([1] * 16, [1] * 16)
        drafters.budgets[0].book(1.0)  # seconds, gained by it
    return requests


def test_a_cliff_is_not_stepped_over():
    # 34B at Q8_0: passes of 8 at 160 tok/s, of 9 at 80, as a user of llama.cpp measured
    planner = DraftPlanner(costs_of({1: 0.040, 2: 0.041, 4: 0.043, 8: 0.050, 9: 0.1125, 16: 0.200}), [False])
    (drafters,) = sure(planner)
    assert chosen(planner, slot_of(drafters, {0: 16})) == [(0, 7, False)]


def test_slots_share_what_a_pass_can_take():
    planner = DraftPlanner(costs_of({1: 0.040, 2: 0.041, 4: 0.043, 8: 0.050, 9: 0.1125, 16: 0.200, 64: 0.8}), [False])
    slots = [slot_of(drafters, {0: 16}) for drafters in sure(planner, 4)]
    planner.choose(slots)
    assert 4 + sum(slot.k for slot in slots) == 8


@pytest.mark.parametrize("is_costly", [False, True])
@pytest.mark.parametrize(("seconds", "is_used"), [(0.0, True), (-1e-12, False)])
def test_a_drafter_drafts_up_to_its_last_allowed_second_and_not_beyond(is_costly, seconds, is_used):
    planner = DraftPlanner(costs_of({1: 0.040, 2: 0.040, 4: 0.040, 8: 0.040}, 8), [is_costly])  # what is drafted costs nothing
    (drafters,) = sure(planner)
    planner.observe_draft(0, drafters, 4, 0.0)
    drafters.budgets[0].seconds = seconds
    assert chosen(planner, slot_of(drafters, {0: 7})) == [(0, 7, False) if is_used else (None, 0, False)]


def test_a_draft_that_was_made_ahead_may_make_a_pass_dearer_than_one_that_is_yet_to_be_made():
    def dearest(**how):
        taken = []
        for pass_s in np.arange(0.04, 0.16, 0.0004):
            planner = DraftPlanner(costs_of({1: 0.04, 2: pass_s}, 2), [True])
            (drafters,) = sure(planner)
            planner.observe_draft(0, drafters, 4, 0.0)  # takes no time either way
            if chosen(planner, slot_of(drafters, {0: 1}, **how)) == [(0, 1, False)]:
                taken.append(pass_s)
        return max(taken)

    assert dearest(proposals={0: Draft([5])}) / dearest() == pytest.approx(1.03, abs=0.01)


def test_beside_a_long_prompt_drafts_cost_what_its_tokens_cost():
    planner = DraftPlanner(costs_of({1: 0.018, 4: 0.018, 8: 0.028, 16: 0.050, 64: 0.200}), [False])
    (drafters,) = sure(planner, chance=0.5)
    alone, beside = slot_of(drafters, {0: 16}), slot_of(drafters, {0: 16})
    planner.choose([alone])
    planner.choose([beside], n_beside=128)
    assert beside.k > alone.k  # the pass takes long anyway


@pytest.mark.parametrize("n_min", [1, 3, 9])
def test_drafts_shorter_than_wanted_are_not_made(n_min):
    scenario = Scenario(FAST, [Source(bernoulli(0.3, 300))])
    planner = scenario.planner()
    slot = slot_of(planner.new_request(), {0: 16}, n_min)
    planner.choose([slot])
    assert slot.k == 0 or slot.k >= n_min


def test_a_drafter_that_turns_out_slow_is_not_asked_in_vain():
    planner = DraftPlanner(costs_of({1: 0.018, 8: 0.028}), [False])
    drafters = planner.new_request()
    for _ in range(20):
        planner.observe_draft(0, drafters, 4, 0.004)
    assert planner.is_costly == [True]


@pytest.mark.parametrize("n_min", [1, 3])
def test_a_model_whose_time_is_not_known_drafts_little_at_first(n_min):
    planner = DraftPlanner(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), [True])
    (drafters,) = sure(planner)
    slot = slot_of(drafters, {0: 16}, n_min)
    planner.choose([slot])
    assert slot.k == n_min
    planner.observe_draft(0, drafters, slot.k, 0.002)
    planner.choose([slot])
    assert slot.k > 3


def test_a_first_slow_call_makes_no_drafter_costly():
    planner = DraftPlanner(costs_of({1: 0.018, 8: 0.028}), [False])
    drafters = planner.new_request()
    for seconds in (0.030, *[0.0001] * 20):
        planner.observe_draft(0, drafters, 4, seconds)
    assert planner.is_costly == [False]


def test_asking_costs_next_to_nothing_where_nothing_comes_of_it():
    costs = LINEAR / 4  # a small model: a plain pass of 2.5 ms
    scenario = Scenario(costs, [Source(bernoulli(0.0), per_ask_s=80e-6)])
    assert scenario.play() <= 1.01 * scenario.plain()
    change = 1500
    right = np.concatenate([bernoulli(0.0, change), bernoulli(0.95, 1500, seed=2)])
    scenario = Scenario(FAST / 4, [Source(right, per_ask_s=80e-6)])
    scenario.play()
    later = [choice.k for position, choice in scenario.choices if position >= change]
    assert min(later[48:100]) >= 2


times = st.floats(1e-5, 10.0)


@given(
    table=st.lists(times, min_size=5, max_size=5),
    seen=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), times, times), max_size=25),
    is_costly=st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_whatever_happens_a_choice_respects_its_limits(table, seen, is_costly):
    planner = DraftPlanner(costs_of(dict(zip((1, 2, 4, 8, 16), table, strict=True))), is_costly)
    drafters = planner.new_request()
    for limit, n_right, draft_s, pass_s in seen:
        slot = slot_of(drafters, dict.fromkeys(range(len(is_costly)), limit), draft_s=draft_s)
        planner.choose([slot])
        assert 0 <= slot.k <= limit
        assert (slot.drafter is None) == (slot.k == 0)
        slot.n_accepted = min(n_right, slot.k)
        if slot.drafter is not None:
            planner.observe_draft(slot.drafter, drafters, slot.k, draft_s)
            drafters.estimates[slot.drafter].see([1] * slot.k, [1] * slot.n_accepted + [0])
        planner.observe_round([slot], DEPTH, 0, pass_s)


@pytest.mark.parametrize(("is_stopped", "n_waits"), [(True, 1), (False, 16)])
def test_a_stop_within_what_was_right_does_not_put_off_the_next_try(is_stopped, n_waits):
    planner = DraftPlanner(costs_of({1: 1.0, 2: 1.1}), [True])
    slot = slot_of(planner.new_request(), drafter=0, k=1, is_probe=True, is_stopped=is_stopped)
    planner.observe_round([slot], DEPTH, 0, 1.1)
    assert planner._intervals == [n_waits]


def test_a_model_is_not_tried_where_not_even_a_perfect_one_would_be_better():
    lookup, model = Source(np.ones(N, bool)), Source(bernoulli(0.95), **MODEL)
    both = Scenario(FAST, [lookup, model])
    assert both.play() <= 1.02 * Scenario(FAST, [lookup]).play()


def test_costs_that_were_measured_on_a_busy_machine_are_corrected():
    scenario = Scenario(FAST, [Source(stretches(np.random.default_rng(7), N, 20, 5))])
    right_s = scenario.play()
    for factor, most in ((1.6, 1.1), (3.0, 1.25)):
        busy = costs_of({n: FAST[n] * (factor if n > 1 else 1.0) for n in (1, 2, 4, 8, 16)}, 17)
        assert scenario.play(DraftPlanner(busy, [False])) < most * right_s


def test_passes_that_seemed_free_are_not_filled_with_hopeless_drafts():
    dearer = np.concatenate([FAST[:2], 1.04 * FAST[2:]])
    scenario = Scenario(dearer, [Source(bernoulli(0.0))])
    flat = costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}, 17)
    assert scenario.play(DraftPlanner(flat, [False])) <= 1.005 * scenario.plain()


def test_a_size_that_was_measured_too_dear_is_tried_and_corrected():
    # as a burst of other work left it: passes of one and two tokens right, those of 3 to 8 a third too dear
    scenario = Scenario(FAST, [Source(stretches(np.random.default_rng(8), N, 3, 4))])
    right_s = scenario.play()
    wrong = costs_of({1: FAST[1], 2: FAST[2], 3: 1.33 * FAST[3], 4: 1.33 * FAST[4], 8: 1.33 * FAST[8], 16: FAST[16]}, 17)
    assert scenario.play(DraftPlanner(wrong, [False])) < 1.04 * right_s
