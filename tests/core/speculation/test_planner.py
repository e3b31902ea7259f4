"""The planner in scenarios of invented costs: what it may lose, what it must win, and how soon it notices a change."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracles.planner_scenarios import DEPTH, Scenario, Source, choice_of, chosen, outcome_of, request_of, slot_of, stretches
from support.toys import planner_of

from augury.speculation.costs import PassCosts, PassTime
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


@pytest.mark.parametrize("costs", [FAST, SLOW, XEON])
@pytest.mark.parametrize("n", [14, 18, 24])
def test_a_short_answer_that_nothing_foretells_stays_above_098_with_the_time_of_asking(costs, n):
    scenario = Scenario(costs, [Source(bernoulli(0.0, n), per_ask_s=1e-4) for _ in range(2)])
    assert scenario.plain() > 0.98 * scenario.play()


@pytest.mark.parametrize("n", [14, 18, 24])
def test_after_some_answers_that_nothing_foretold_small_models_feel_the_asking_little(n):
    scenario = Scenario(FAST / 4, [Source(bernoulli(0.0, n), per_ask_s=80e-6) for _ in range(2)])
    planner = scenario.planner()
    seconds = [scenario.play(planner) for _ in range(8)]
    assert seconds[-1] <= 1.02 * scenario.plain() < seconds[0]


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


def test_a_model_that_pays_only_where_passes_hide_its_drafts_is_used_there():
    costs = np.maximum(1 + 0.28 * (np.arange(18) - 1), 1)  # of one thread, and a model of half the target's depth
    scenario = Scenario(costs, [Source(bernoulli(0.9, 1500), per_token_s=0.5, per_missed_s=0.05, is_costly=True)])
    assert scenario.play(overlaps=True) * 1.3 <= scenario.plain()
    assert scenario.play() >= 0.98 * scenario.plain()


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
        later = [choice for choice in scenario.rounds if choice.position >= change]
        after = later[n_rounds : n_rounds + 50]
        assert min(choice.k for choice in after) >= 2


@pytest.mark.parametrize("n_drafters", [1, 3, 8])
def test_a_lookup_that_was_wrong_at_first_is_used_as_soon_as_it_is_right(n_drafters):
    change = 8
    never, at_first = Source(bernoulli(0.0, 200)), Source(np.arange(200) >= change)
    scenario = Scenario(STEEP, [at_first, *[never] * (n_drafters - 1)])
    scenario.play()
    later = [choice.k for choice in scenario.rounds if choice.position >= change]
    assert max(later[:4]) > 0


def test_a_drafter_that_becomes_wrong_is_left_soon():
    change = 1500
    right = np.concatenate([bernoulli(0.95, change), bernoulli(0.0, 1500, seed=2)])
    for drafting in ({}, MODEL):
        scenario = Scenario(LINEAR if not drafting else FAST, [Source(right, **drafting)])
        scenario.play()
        later = [choice.k for choice in scenario.rounds if choice.position >= change]
        assert sum(later[48:200]) <= 6  # two probes of a costly one


def test_a_head_that_is_good_at_first_gives_way_to_another_drafter_within_a_few_rounds():
    change = 300
    for seed in range(2):
        right = np.concatenate([bernoulli(0.8, change, seed), bernoulli(0.02, 160, seed + 10)])
        head = Source(right, per_token_s=0.0012, is_costly=True)
        scenario = Scenario(STEEP, [head, Source(bernoulli(0.5, change + 160, seed + 20), wrong=2_000_000)])
        scenario.play()
        n_before = sum(each.position < change for each in scenario.rounds)
        used = [each.drafters for each in scenario.rounds[:-1]]
        assert np.mean([0 in each for each in used[:n_before]]) > 0.9
        assert all(1 in each for each in used[n_before + 5 :])
        assert np.mean([0 in each for each in used[n_before + 24 :]]) < 0.2


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
        used |= {drafter for choice in both.rounds for drafter in choice.drafters}
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
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), False, True)
    (request,) = sure(planner, chance=0.3)
    model = request.every[1]
    for n_missed, k in ((24, 1), (25, 0)):
        planner.observe_teacher_forced(model, [True] * 16, 0.001)  # it was right, and may be tried at once
        slot_of(request).score(model, [0] * n_missed)
        for _ in range(200):
            planner.observe_round([plain_round(request)], DEPTH, 0, FAST[1])
        model.profile.budget.book(1.0)
        slot = slot_of(request, {0: 3})
        (ask,) = planner.asks([slot])
        assert (ask.drafter, min(ask.k, 1)) == (model, k)
    assert chosen(planner, slot) == [3]


def test_in_a_round_one_slot_is_teacher_forced():
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), True)
    requests = [request_of(planner) for _ in range(4)]
    planner.profiles[0].budget.book(8.0)
    for request in requests:
        slot_of(request).score(request.every[0], [0] * 30)
    for _ in range(8):
        planner.observe_round([plain_round(request) for request in requests], DEPTH, 0, FAST[4])
    assert [ask.k for ask in planner.asks([slot_of(request) for request in requests])] == [0]


def test_teacher_forcing_on_what_others_drafted_says_nothing():
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), True)
    (drafter,) = request_of(planner).every
    before = drafter.chances.typical
    planner.observe_teacher_forced(drafter, [], 0.001)
    assert drafter.chances.typical == before
    assert planner.profiles[0].interval > 8, "it was not right, so it waits longer"


def test_a_model_that_cannot_be_teacher_forced_is_tried_by_drafts():
    change = 200
    right = np.concatenate([bernoulli(0.0, change), bernoulli(0.95, 400, seed=2)])
    scenario = Scenario(FAST, [Source(right, **MODEL | {"per_missed_s": 0.0, "can_be_teacher_forced": False})])
    planner = scenario.planner()
    scenario.play(planner)
    assert sum(choice.is_teacher_forced for choice in scenario.rounds) == 1
    later = [choice.k for choice in scenario.rounds if choice.position >= change]
    assert max(later) > 2


@pytest.mark.parametrize("slow_s", [[1.0], [0.1, 0.0, 0.02]])
def test_a_head_whose_first_asks_are_slow_is_used_as_one_whose_are_not(slow_s):
    costs = FAST / 4  # a small model: a plain pass of 4.6 ms
    head = {"per_token_s": 0.0005, "per_missed_s": 0.00005, "is_costly": True}
    slow, quick = (Scenario(costs, [Source(bernoulli(0.7, 300), **head, slow_s=more)]) for more in (tuple(slow_s), ()))
    assert slow.play() - sum(slow_s) < 1.03 * quick.play() < 0.9 * quick.plain()


@pytest.mark.parametrize("chance", [0.0, 0.9])
def test_a_drafter_that_is_too_slow_is_tried_again_at_half_a_percent_of_the_time(chance):
    pass_s, right = FAST[1] / 4, bernoulli(chance)
    scenario = Scenario(FAST / 4, [Source(right, per_token_s=3 * pass_s, is_costly=True)])
    assert scenario.play() < 1.005 * scenario.plain() + 2 * 3 * pass_s, "and twice at first, to know what it takes"
    assert sum(choice.is_teacher_forced for choice in scenario.rounds) > 1
    disturbed = Scenario(FAST / 4, [Source(right, per_token_s=0.1 * pass_s, is_costly=True, slow_s=(2 * pass_s,) * 2)])
    disturbed.play()
    assert (disturbed.rounds[-1].position - disturbed.rounds[-100].position > 200) == (chance > 0)


def test_what_one_request_taught_the_next_one_knows():
    scenario = Scenario(LINEAR, [Source(bernoulli(0.0, 100))])
    planner = scenario.planner()
    scenario.play(planner)
    scenario.play(planner)
    assert sum(choice.k for choice in scenario.rounds) == 0


def costs_of(table, n_largest=64):
    return PassCosts([PassTime(n, 0, seconds) for n, seconds in table.items()], n_largest)


def sure(planner, n_slots=1, chance=0.95):
    """Requests of which drafter 0 was right in that share of many rounds."""
    rng = np.random.default_rng(6)
    requests = [request_of(planner) for _ in range(n_slots)]
    for request in requests:
        drafter = request.every[0]

        def see(k, n_right, drafter=drafter, request=request):
            slot = slot_of(request)
            slot.add(drafter, Draft([1] * k))
            slot.score(drafter, [1] * n_right + [0] * (n_right < k))

        for _ in range(300):
            see(8, min(int(rng.geometric(1 - chance)), 8))
        see(16, 16)
        drafter.n_missed = 0
        for budget in (request.budget, drafter.profile.budget):
            budget.book(1.0)  # seconds, gained by it
    return requests


def plain_round(request):
    return choice_of(slot_of(request), []), outcome_of(0)


def test_a_cliff_is_not_stepped_over():
    # 34B at Q8_0: passes of 8 at 160 tok/s, of 9 at 80, as a user of llama.cpp measured
    planner = planner_of(costs_of({1: 0.040, 2: 0.041, 4: 0.043, 8: 0.050, 9: 0.1125, 16: 0.200}), False)
    (request,) = sure(planner)
    assert chosen(planner, slot_of(request, {0: 16})) == [7]


def test_slots_share_what_a_pass_can_take():
    planner = planner_of(costs_of({1: 0.040, 2: 0.041, 4: 0.043, 8: 0.050, 9: 0.1125, 16: 0.200, 64: 0.8}), False)
    assert sum(chosen(planner, *(slot_of(request, {0: 16}) for request in sure(planner, 4)))) == 8 - 4


@pytest.mark.parametrize("is_costly", [False, True])
@pytest.mark.parametrize(("seconds", "is_used"), [(0.0, True), (-1e-12, False)])
def test_a_drafter_drafts_up_to_its_last_allowed_second_and_not_beyond(is_costly, seconds, is_used):
    planner = planner_of(costs_of({1: 0.040, 2: 0.040, 4: 0.040, 8: 0.040}, 8), is_costly)  # what is drafted costs nothing
    (request,) = sure(planner)
    for _ in range(2):
        planner.observe_draft(request.every[0], 4, 0.0)
    request.budget.seconds = request.every[0].profile.budget.seconds = seconds
    slot = slot_of(request, {} if is_costly else {0: 7}, limit=7)
    found = [ask.k for ask in planner.asks([slot])] if is_costly else chosen(planner, slot)
    assert found == ([7] if is_used else [] if is_costly else [0])


def test_a_draft_that_was_made_may_make_a_pass_dearer_than_one_that_is_yet_to_be_made():
    def dearest(*, is_made):
        taken = []
        for pass_s in np.arange(0.04, 0.16, 0.0008):
            planner = planner_of(costs_of({1: 0.04, 2: pass_s}, 2), True)
            (request,) = sure(planner)
            planner.observe_draft(request.every[0], 4, 0.0)  # takes no time either way
            slot = slot_of(request, {0: 1} if is_made else {}, limit=1)
            if chosen(planner, slot) == [1] if is_made else planner.asks([slot]):
                taken.append(pass_s)
        return max(taken)

    assert dearest(is_made=True) / dearest(is_made=False) == pytest.approx(1.03, abs=0.02)


def test_beside_a_long_prompt_drafts_cost_what_its_tokens_cost():
    planner = planner_of(costs_of({1: 0.018, 4: 0.018, 8: 0.028, 16: 0.050, 64: 0.200}), False)
    (request,) = sure(planner, chance=0.5)
    request.every[0].run = 0
    (alone,), (beside,) = (chosen(planner, slot_of(request, {0: 16}), n_others=n) for n in (0, 128))
    assert beside > alone  # the pass takes long anyway


@pytest.mark.parametrize("n_min", [1, 3, 9])
def test_drafts_shorter_than_wanted_are_not_made(n_min):
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), False)
    for chance in (0.3, 0.6, 0.95):
        (request,) = sure(planner, chance=chance)
        (k,) = chosen(planner, slot_of(request, {0: 16}, n_min=n_min))
        assert k == 0 or k >= n_min
    assert k > 0


def test_a_drafter_that_turns_out_slow_is_not_asked_in_vain():
    planner = planner_of(costs_of({1: 0.018, 8: 0.028}), False)
    (drafter,) = request_of(planner).every
    for _ in range(20):
        planner.observe_draft(drafter, 4, 0.004)
    assert drafter.profile.is_costly


@pytest.mark.parametrize(("overhead", "is_asked_alone"), [(0.01, True), (5.0, False)])  # of a plain pass
def test_the_time_around_drafters_counts_where_nobody_else_is_asked(overhead, is_asked_alone):
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), False, True)
    (request,) = sure(planner, chance=0.3)
    for _ in range(2):
        planner.observe_draft(request.every[1], 1, FAST[1] / 20)
    planner.overhead_s = overhead * FAST[1]
    assert bool(planner.asks([slot_of(request)])) == is_asked_alone
    assert planner.asks([slot_of(request, {0: Draft()})])


@pytest.mark.parametrize("n_min", [1, 3])
def test_a_model_whose_time_is_not_known_drafts_little_at_first(n_min):
    planner = planner_of(costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}), True)
    (request,) = sure(planner)
    (ask,) = planner.asks([slot_of(request, n_min=n_min)])
    assert ask.k == n_min
    for seconds, is_known in ((0.5, False), (0.002, True)):  # the first ask says little
        planner.observe_draft(ask.drafter, ask.k, seconds)
        (ask,) = planner.asks([slot_of(request, n_min=n_min)])
        assert (ask.k > 3) == is_known


def test_a_first_slow_call_makes_no_drafter_costly():
    planner = planner_of(costs_of({1: 0.018, 8: 0.028}), False)
    (drafter,) = request_of(planner).every
    for seconds in (0.030, *[0.0001] * 20):
        planner.observe_draft(drafter, 4, seconds)
    assert not drafter.profile.is_costly


def test_asking_costs_next_to_nothing_where_nothing_comes_of_it():
    costs = LINEAR / 4  # a small model: a plain pass of 2.5 ms
    scenario = Scenario(costs, [Source(bernoulli(0.0), per_ask_s=80e-6)])
    assert scenario.play() <= 1.01 * scenario.plain()
    change = 1500
    right = np.concatenate([bernoulli(0.0, change), bernoulli(0.95, 1500, seed=2)])
    scenario = Scenario(FAST / 4, [Source(right, per_ask_s=80e-6)])
    scenario.play()
    later = [choice.k for choice in scenario.rounds if choice.position >= change]
    assert min(later[48:100]) >= 2


times = st.floats(1e-5, 10.0)


@given(
    table=st.lists(times, min_size=5, max_size=5),
    seen=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), times, times), max_size=25),
    is_costly=st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_whatever_happens_a_choice_respects_its_limits(table, seen, is_costly):
    planner = planner_of(costs_of(dict(zip((1, 2, 4, 8, 16), table, strict=True))), *is_costly)
    request = request_of(planner)
    for limit, n_right, draft_s, pass_s in seen:
        cheap = {i: limit for i, drafter in enumerate(request.every) if not drafter.profile.is_costly}
        slot = slot_of(request, cheap, limit=limit)
        for ask in planner.asks([slot]):
            assert 0 <= ask.k <= limit
            if ask.k:
                slot.add(ask.drafter, Draft([7] * ask.k))
                planner.observe_draft(ask.drafter, ask.k, draft_s)
        (nodes,) = planner.choose([slot])
        assert len(nodes) <= limit
        assert all(slot.tree.parents[node] in (-1, *nodes) for node in nodes)
        choice = choice_of(slot, nodes)
        path = range(min(n_right, len(nodes)) if choice.draft.parents is None else 0)
        for drafter in request.every:
            slot.score(drafter, [*choice.draft.tokens.tolist()[: len(path)], 0])
        planner.observe_round([(choice, outcome_of(len(path)))], DEPTH, 0, pass_s)


@pytest.mark.parametrize(("is_stopped", "n_waits"), [(True, 1), (False, 16)])
def test_a_stop_within_what_was_right_does_not_put_off_the_next_try(is_stopped, n_waits):
    planner = planner_of(costs_of({1: 1.0, 2: 1.1}), True)
    slot = slot_of(request_of(planner), {0: 1})
    choice = choice_of(slot, [0], probed=slot.drafters.every[0])
    planner.observe_round([(choice, outcome_of(0, is_stopped=is_stopped))], DEPTH, 0, 1.1)
    assert planner.profiles[0].interval == n_waits


def test_a_model_is_not_tried_where_not_even_a_perfect_one_would_be_better():
    lookup, model = Source(np.ones(N, bool)), Source(bernoulli(0.95), **MODEL)
    both = Scenario(FAST, [lookup, model])
    assert both.play() <= 1.02 * Scenario(FAST, [lookup]).play()


def test_costs_that_were_measured_on_a_busy_machine_are_corrected():
    scenario = Scenario(FAST, [Source(stretches(np.random.default_rng(7), N, 20, 5))])
    right_s = scenario.play()
    for factor, most in ((1.6, 1.1), (3.0, 1.25)):
        busy = costs_of({n: FAST[n] * (factor if n > 1 else 1.0) for n in (1, 2, 4, 8, 16)}, 17)
        assert scenario.play(planner_of(busy, False)) < most * right_s


def test_passes_that_seemed_free_are_not_filled_with_hopeless_drafts():
    dearer = np.concatenate([FAST[:2], 1.04 * FAST[2:]])
    scenario = Scenario(dearer, [Source(bernoulli(0.0))])
    flat = costs_of({n: FAST[n] for n in (1, 2, 4, 8, 16)}, 17)
    assert scenario.play(planner_of(flat, False)) <= 1.005 * scenario.plain()


def test_a_size_that_was_measured_too_dear_is_tried_and_corrected():
    # as a burst of other work left it: passes of one and two tokens right, those of 3 to 8 a third too dear
    scenario = Scenario(FAST, [Source(stretches(np.random.default_rng(8), N, 3, 4))])
    right_s = scenario.play()
    wrong = costs_of({1: FAST[1], 2: FAST[2], 3: 1.33 * FAST[3], 4: 1.33 * FAST[4], 8: 1.33 * FAST[8], 16: FAST[16]}, 17)
    assert scenario.play(planner_of(wrong, False)) < 1.04 * right_s
