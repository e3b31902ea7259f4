"""What the planner keeps account of, to the second: rounds of known times, one at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.planner_scenarios import DEPTH, choice_of, chosen, outcome_of, request_of, slot_of
from support.toys import planner_of

from augury.speculation.constants import TYPICAL
from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.drafts import Outcome
from augury.types import Draft


def linear(*is_costly, **how):
    """Plans passes that take two seconds, and half a second more for each further token."""
    return planner_of(PassCosts([PassTime(1, 0, 2.0), PassTime(17, 0, 10.0)], 32), *is_costly, **how)


def sure(request, chance=1.0):
    """Let all drafters of a request be right in that share of all cases, and lose what they like."""
    for drafter in request.every:
        for bucket in range(len(drafter.chances.values)):
            drafter.chances.values[bucket] = chance
        drafter.profile.budget.seconds = 1e9
    request.budget.seconds = 1e9


def test_what_lookups_may_lose_they_share_and_what_a_costly_one_may_all_requests_share():
    planner = linear(False, False, True)
    first, second = request_of(planner), request_of(planner)
    kept = [(each.seconds, each.share, each.most) for each in (first.budget, planner.profiles[2].budget)]
    assert kept == [(0.2, 0.005, 16.0), (2.0, 0.02, 16.0)]
    assert first.budget is not second.budget
    assert [each.chances.typical for each in first.every] == [0.65] * 3


def test_what_lookups_may_lose_is_a_share_of_a_plain_pass_at_the_last_depth():
    times = [PassTime(1, 0, 2.0), PassTime(17, 0, 10.0), PassTime(1, 100, 4.0), PassTime(17, 100, 12.0)]
    planner = planner_of(PassCosts(times, 32), False)
    request = request_of(planner)
    planner.choose([slot_of(request, {0: 1})])
    assert [each.budget.seconds for each in (request, request_of(planner))] == [0.2, 0.4]


@pytest.mark.parametrize(
    ("seconds", "overhead_s", "gain", "asked_after"),
    [
        (0.008, 0.0, 0.0, 0),  # costs nothing
        (0.012, 0.0, 0.0061, 0),  # gives more than it takes
        (0.012, 0.0, 0.0059, 2),
        (0.002, 0.01, 0.0059, 2),  # what goes by around it counts
        (0.0202, 0.0, 0.0, 3),  # three times what costs nothing: every third token
        (0.18, 0.0, 0.0, 12),  # at most so seldom
    ],
)
def test_a_lookup_that_takes_more_time_than_it_gives_is_asked_less(seconds, overhead_s, gain, asked_after):
    planner = linear(False, True)
    lookup, model = request_of(planner).every
    planner.observe_draft(lookup, 4, seconds)
    planner.overhead_s, lookup.gain = overhead_s, gain
    found = []
    for lookup.n_missed in range(14):
        found += [lookup.n_missed] if planner.asked([lookup]) else []
        assert planner.n_resting([lookup], is_plain=True) == max(asked_after - lookup.n_missed, 0)
        assert planner.asked([lookup, model]) == planner.asked([lookup]), "a costly one is asked when it was chosen"
    assert found == list(range(asked_after, 14))


@pytest.mark.parametrize(
    ("overhead_s", "n_waited", "n_resting"),
    [
        (0.003, 3, 0),  # a round costs nothing
        (0.02, 3, 3),  # three times what costs nothing
        (0.1, 3, 4),  # until it is tried
        (0.1, 9, 12),  # which was put off
    ],
)
def test_a_costly_drafter_that_promised_too_little_rests_until_it_is_tried(overhead_s, n_waited, n_resting):
    planner = linear(False, True)
    lookup, model = request_of(planner).every
    planner.observe_draft(lookup, 4, 0.18)
    planner.overhead_s, lookup.gain, model.profile.n_waited, model.n_missed = overhead_s, 0.0, n_waited, 5
    assert planner.n_resting([model], is_plain=True) == n_resting
    assert planner.n_resting([lookup, model], is_plain=True) == n_resting
    assert planner.n_resting([lookup, model], is_plain=False) == 0, "others had proposals, and it may be asked without them"
    model.n_missed = 1
    assert planner.n_resting([lookup, model], is_plain=True) == 0, "it was asked"


def test_a_lookup_that_was_slow_for_a_while_is_costly_so_long_and_a_model_always():
    planner = linear(False, True)
    lookup, model = request_of(planner).every
    for seconds, n, is_costly in (
        (0.1, 20, False),
        (9.0, 1, False),
        (0.1, 9, False),
        (0.3, 20, True),
        (0.15, 40, True),
        (0.09, 9, False),
    ):
        for drafter in (lookup, model) * n:
            planner.observe_draft(drafter, 1, seconds)
        assert (lookup.profile.is_costly, model.profile.is_costly) == (is_costly, True)


def test_where_one_lookup_is_asked_the_others_are_for_their_own_time_alone():
    planner = linear(False, False)
    first, second = request_of(planner).every
    for each in first, second:
        planner.observe_draft(each, 4, 0.02)
        each.gain = 0.0
    planner.overhead_s = 0.02
    first.n_missed, second.n_missed = 4, 2
    assert planner.n_resting([first, second], is_plain=True) == 1
    assert planner.asked([first, second]) == []
    first.n_missed, second.n_missed = 5, 3
    assert planner.n_resting([first, second], is_plain=True) == 0
    assert planner.asked([first, second]) == [first, second]
    second.n_missed = 2
    assert planner.asked([first, second]) == [first]


@pytest.mark.parametrize(("n_slots", "asked_after"), [(1, 0), (4, 4), (32, 12)])
def test_a_lookup_that_gives_nothing_is_asked_less_the_more_slots_share_a_pass(n_slots, asked_after):
    planner = planner_of(PassCosts([PassTime(1, 0, 2.0), PassTime(32, 0, 2.0)], 32), False)
    requests = [request_of(planner) for _ in range(n_slots)]
    planner.choose([slot_of(request) for request in requests])
    (lookup,) = requests[0].every
    planner.observe_draft(lookup, 4, 0.0079)
    lookup.gain = 0.0
    found = []
    for lookup.n_missed in range(14):
        found += [lookup.n_missed] if planner.asked([lookup]) else []
    assert found == list(range(asked_after, 14))


def test_what_a_lookup_gives_is_what_it_alone_proposed_less_the_time_that_takes():
    planner = linear(False, False, False)
    request = request_of(planner)
    first, second, silent = request.every
    sure(request)
    slot = slot_of(request, {0: Draft([5, 6]), 1: Draft([5, 7], [-1, 0])})
    planner.observe_round([(choice_of(slot, [0, 1, 2]), Outcome([0, 2], 3))], DEPTH, 0, 3.5)
    assert first.gain == pytest.approx(0.25 + (1 - 2 * 0.25 - 0.25) / 8)  # one of two; each takes a quarter of a plain pass
    assert second.gain == pytest.approx(0.25 + (1 - 0.25 - 0.25) / 8)
    assert silent.gain == 0.25, "it was not asked"
    assert planner.profiles[1].gain == pytest.approx(0.25 + (1 - 0.25 - 0.25) / 32)
    assert request_of(planner).every[1].gain == planner.profiles[1].gain


def test_what_goes_by_around_drafters_is_learnt_slowly():
    planner = linear(False)
    for _ in range(2):
        planner.observe_round([(choice_of(slot_of(request_of(planner)), []), outcome_of(0))], DEPTH, 0, 2.0, 1.0)
    assert planner.overhead_s == pytest.approx(0.05 + 0.05 * 0.95)


@pytest.mark.parametrize(("seconds", "n_asks", "is_costly"), [(0.22, 16, False), (0.22, 17, True), (0.2, 99, False)])
def test_a_lookup_is_costly_that_takes_a_tenth_of_a_pass_again_and_again(seconds, n_asks, is_costly):
    planner = linear(False)
    (drafter,) = request_of(planner).every
    for _ in range(n_asks):
        drafter.n_missed = 1
        planner.observe_draft(drafter, 1, seconds)
        assert drafter.n_missed == 0
    assert drafter.profile.is_costly == is_costly


@pytest.mark.parametrize("n_accepted", [0, 3])
@pytest.mark.parametrize(("used", "draft_s"), [(0, 0.0), (2, 0.5)])
def test_a_round_s_gain_and_loss_are_booked_to_the_second(n_accepted, used, draft_s):
    planner = linear(False, False, True)
    request = request_of(planner)
    model = planner.profiles[2].budget
    request.budget.seconds = model.seconds = -8.0
    request.every[used].spent_s = draft_s
    slot = slot_of(request, {used: 4})
    planner.observe_round([(choice_of(slot, range(4)), outcome_of(n_accepted))], DEPTH, 0, 4.0)
    took_s = 2.0 + 2.0 + draft_s  # a plain pass, four tokens more, and drafting
    gain = n_accepted * 2.0 - 2.0 - draft_s
    expected = [-8.0 + 0.005 * took_s, -8.0 + 0.02 * took_s]
    expected[used > 0] += gain
    assert [request.budget.seconds, model.seconds] == pytest.approx(expected)
    assert request.every[used].spent_s == 0


def test_what_was_right_and_not_verified_makes_up_for_losses():
    planner = linear(False, False)
    request = request_of(planner)
    request.budget.seconds = -8.0
    slot = slot_of(request, {0: 3, 1: Draft([9, 9])})
    for drafter in request.every:
        slot.score(drafter, [1000, 1001, 5])
    planner.observe_round([(choice_of(slot, []), outcome_of(0))], DEPTH, 0, 2.0)
    assert request.budget.seconds == pytest.approx(-8.0 + 0.005 * 2.0 + 2 * 2.0)


def test_a_token_that_several_proposed_counts_for_each():
    planner = linear(False, True, True)
    request = request_of(planner)
    slot = slot_of(request, {0: Draft([5, 6]), 1: Draft([5, 7], [-1, -1]), 2: Draft([8])})
    before = [request.budget.seconds, *(profile.budget.seconds for profile in planner.profiles[1:])]
    choice = choice_of(slot, range(4))
    planner.observe_round([(choice, outcome_of(1))], DEPTH, 0, 4.0)
    after = [request.budget.seconds, *(profile.budget.seconds for profile in planner.profiles[1:])]
    shares = [0.005, 0.02, 0.02]
    expected = [share * 4.0 + gain for share, gain in zip(shares, [2.0 - 1.0, 2.0 - 1.0, -0.5], strict=True)]
    assert np.subtract(after, before) == pytest.approx(expected)


def test_slots_share_the_time_of_a_pass_by_their_drafts():
    planner = linear(False)
    requests = [request_of(planner) for _ in range(3)]
    rounds = []
    for request, k, n_accepted in zip(requests, (0, 1, 3), (0, 0, 1), strict=True):
        slot = slot_of(request, {0: k} if k else {})
        rounds.append((choice_of(slot, range(k)), outcome_of(n_accepted)))
    before = planner.costs.seconds(7, DEPTH)
    planner.observe_round(rounds, DEPTH, 5, 99.0)
    # eight plain tokens take 5.5 s and four more two seconds
    assert planner.costs.seconds(7, DEPTH) == before, "a pass with a prompt's tokens says nothing of others"
    expected = [0.2 + 0.005 * (5.5 / 3 + own_s) - own_s for own_s in (0.0, 0.5, 1.5)]
    expected[2] += 5.5 / 3  # of the accepted token
    assert [request.budget.seconds for request in requests] == pytest.approx(expected)
    planner.observe_round(rounds, DEPTH, 99, 99.0)  # more tokens than there are figures for


@pytest.mark.parametrize(
    ("k", "n_accepted", "is_probe", "interval"),
    [(6, 3, False, 1), (5, 2, False, 40), (4, 1, True, 80), (1, 1, True, 1), (0, 0, True, 80), (0, 0, False, 40)],
)
def test_a_drafter_that_was_half_right_is_tried_again_at_once_and_after_a_wrong_try_later(k, n_accepted, is_probe, interval):
    planner = linear(True)
    request, (profile,) = request_of(planner), planner.profiles
    profile.interval = 40
    slot = slot_of(request, {0: k})
    choice = choice_of(slot, range(k), probed=request.every[0] if is_probe else None)
    planner.observe_round([(choice, outcome_of(n_accepted))], DEPTH, 0, 1.0)
    assert (profile.interval, profile.n_waited) == (interval, 1)


def test_tries_become_rarer_from_eight_to_a_hundred_and_sixty_rounds():
    planner, found = linear(True), []
    (profile,) = planner.profiles
    profile.interval = 1
    for _ in range(7):
        profile.schedule(is_right=False)
        found.append(profile.interval)
    assert found == [8, 16, 32, 64, 128, 160, 160]


@pytest.mark.parametrize(("n_right", "n", "interval"), [(12, 16, 1), (11, 16, 16), (1, 1, 1), (0, 0, 16)])
def test_teacher_forcing_is_paid_for_and_says_whether_to_try_at_once(n_right, n, interval):
    planner = linear(True)
    (drafter,), (profile,) = request_of(planner).every, planner.profiles
    drafter.n_missed, profile.n_waited = 30, 9
    planner.observe_teacher_forced(drafter, [True] * n_right + [False] * (n - n_right), 0.25)
    assert (drafter.n_missed, profile.n_waited, profile.interval) == (0, 9 if interval == 1 else 0, interval)
    assert profile.budget.seconds == 1.75


@pytest.mark.parametrize(
    ("n_asks", "seconds", "counted"),
    [(0, 5.0, 2.0), (0, 1.5, 1.5), (1, 5.0, 1.0), (1, 0.8, 0.8), (15, 5.0, 1.0), (16, 5.0, 5.0)],
)
def test_what_first_asks_take_beside_drafting_is_not_held_against_a_drafter(n_asks, seconds, counted):
    planner = linear(True)  # a budget of a plain pass, two seconds
    request, (profile,) = request_of(planner), planner.profiles
    profile.cost.per_token, profile.cost.n_asks = 0.5, n_asks
    planner.observe_draft(request.every[0], 1, seconds)
    assert request.every[0].spent_s == counted


@pytest.mark.parametrize(
    ("n_waited", "saved", "draft_s", "limit", "n_min", "expected"),
    [
        (8, 2.0, 0.2, 16, 1, 1),
        (7, 2.0, 0.2, 16, 1, None),
        (8, 0.69, 0.2, 16, 1, None),  # a token takes a fifth of a second to draft and half a one to verify
        (8, 0.71, 0.2, 16, 1, 1),
        (8, 4.0, 0.2, 16, 3, 3),
        (8, 4.0, 0.2, 2, 3, None),
        (8, 16.0, 1.2, 16, 1, None),  # were it always right, it would be a third faster than without
        (8, 4.0, 0.2, 1, 1, 1),  # a pass of two tokens may take 2.25 seconds, and a missed one 0.1
        (8, 4.0, 0.3, 1, 1, None),
    ],
)
def test_a_costly_drafter_is_tried_when_it_is_time_and_time_was_saved(n_waited, saved, draft_s, limit, n_min, expected):
    planner = linear(True)
    request, (profile,) = request_of(planner), planner.profiles
    profile.cost.observe_prompt(10, 1.0)
    for _ in range(2):  # the first ask alone says little
        planner.observe_draft(request.every[0], 1, draft_s)
    request.every[0].spent_s = 0.0
    for _ in range(60):
        request.every[0].chances.see(TYPICAL, is_right=False)
    profile.n_waited, profile.budget.seconds = n_waited, saved
    asks = planner.asks([slot_of(request, limit=limit, n_min=n_min)])
    assert [(ask.k, ask.is_probe) for ask in asks] == ([] if expected is None else [(expected, True)])


def test_of_several_drafters_that_missed_much_one_a_round_says_what_it_would_have_drafted():
    planner = linear(True)
    requests, (profile,) = [request_of(planner) for _ in range(2)], planner.profiles
    profile.n_waited, profile.budget.seconds = 8, 16.0
    for request in requests:
        request.every[0].n_missed = 25
    slots = [slot_of(request) for request in requests]
    assert [(ask.slot, ask.k) for ask in planner.asks(slots)] == [(slots[0], 0)]


def best_by_definition(planner, slots, n_others):
    """The tokens expected per second of the best part of all trees, each closed towards the history.

    Nodes of a chance up to 0.003 are taken by no pass: the planner ranks none of them.
    """
    hoped = planner.costs.curves(99, sum(slot.n_context for slot in slots) / len(slots))[1].tolist()
    parts = []
    for slot in slots:
        reach, found = slot.reach().tolist(), []
        for part in itertools.product([False, True], repeat=len(reach)):
            nodes = [node for node, is_taken in enumerate(part) if is_taken]
            is_closed = all(slot.tree.parents[node] in (-1, *nodes) and reach[node] > 0.003 for node in nodes)
            if is_closed and len(nodes) <= slot.limit:
                found.append((len(nodes), sum(reach[node] for node in nodes)))
        parts.append(found)
    rates = []
    for chosen_parts in itertools.product(*parts):
        n, expected = map(sum, zip(*chosen_parts, strict=True))
        bonus = 0.02 if n == 0 else 0.0
        rates.append((len(slots) + expected + bonus) / hoped[n_others + len(slots) + n])
    return max(rates)


@settings(max_examples=100)
@given(st.data(), st.integers(1, 2))
def test_the_best_part_of_all_trees_is_chosen(data, n_slots):
    times = sorted(data.draw(st.lists(st.floats(1.0, 3.0), min_size=4, max_size=4)))
    sizes = [PassTime(n, 0, seconds) for n, seconds in zip((1, 3, 8, 17), times, strict=True)]
    planner = planner_of(PassCosts([*sizes, PassTime(17, 100, times[3] + 1)], 40), False, False)
    slots = []
    for _ in range(n_slots):
        request = request_of(planner)
        sure(request)
        slot = slot_of(request, limit=data.draw(st.integers(1, 5)), n_context=data.draw(st.integers(0, 500)))
        for drafter in request.every:
            for bucket in range(len(drafter.chances.values)):
                drafter.chances.values[bucket] = data.draw(st.floats(0.3, 1.0))
            n = data.draw(st.integers(0, 4))
            tokens = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
            slot.add(drafter, Draft(tokens, [data.draw(st.integers(-1, i - 1)) for i in range(n)]))
        slots.append(slot)
    n_others = data.draw(st.integers(0, 12))
    nodes = planner.choose(slots, n_others)
    n = sum(map(len, nodes))
    expected = sum(slot.reach()[node] for slot, mine in zip(slots, nodes, strict=True) for node in mine)
    hoped = planner.costs.curves(99, sum(slot.n_context for slot in slots) / len(slots))[1].tolist()
    rate = (n_slots + expected + (0.02 if n == 0 else 0.0)) / hoped[n_others + n_slots + n]
    assert rate == pytest.approx(best_by_definition(planner, slots, n_others))


@pytest.mark.parametrize("replays_accepted", [False, True])
def test_accepted_tokens_that_are_computed_again_cost_as_much_as_drafted_ones(replays_accepted):
    planner = linear(False, replays_accepted=replays_accepted)
    request = request_of(planner)
    sure(request, 0.8)
    slot = slot_of(request, {0: 16})
    alive, hoped = [0.8**k for k in range(1, 17)], planner.costs.curves(17, DEPTH)[1].tolist()
    rates = [1.02 / hoped[1]]
    for k in range(1, 17):  # [a]: that exactly so many are accepted
        exactly = [before - after for before, after in zip([1.0, *alive[: k - 1]], alive[:k], strict=True)]
        replay_s = 0.5 * sum(n * chance for n, chance in enumerate(exactly)) if replays_accepted else 0.0
        rates.append((1 + sum(alive[:k])) / (hoped[1 + k] + replay_s))
    assert chosen(planner, slot) == [np.argmax(rates)]
    before = request.budget.seconds = 4.0
    choice = choice_of(slot_of(request, {0: 4}), range(4))
    planner.observe_round([(choice, outcome_of(2))], DEPTH, 0, 4.0)
    own_s = 2.0 + (1.0 if replays_accepted else 0.0)  # four drafted tokens, and two of them again
    assert request.budget.seconds == pytest.approx(before + 2 * 2.0 - own_s + 0.005 * (2.0 + own_s))
    before, known = request.budget.seconds, planner.costs.seconds(7, DEPTH)
    planner.observe_round([(choice, outcome_of(4))], DEPTH, 0, 4.0 + replays_accepted)
    assert request.budget.seconds == pytest.approx(before + 4 * 2.0 - 2.0 + 0.005 * 4.0), "nothing was rejected"
    assert planner.costs.seconds(7, DEPTH) == pytest.approx(known), "nor is a replay mistaken for slow drafts"


@pytest.mark.parametrize(("seconds", "is_drafted"), [(2.4, True), (6.0, False)])
def test_nothing_is_drafted_where_a_second_token_takes_longer_than_a_second_pass(seconds, is_drafted):
    planner = planner_of(PassCosts([PassTime(1, 0, 2.0), PassTime(2, 0, seconds)], 2), False)
    request = request_of(planner)
    sure(request, 0.95)
    assert chosen(planner, slot_of(request, {0: 1}, limit=1)) == [int(is_drafted)]


def test_a_certain_draft_is_taken_whole_at_once_and_less_of_it_once_it_was_wrong():
    planner = linear(False, False, is_certain=[True, False])
    request = request_of(planner)
    certain, _ = request.every
    assert chosen(planner, slot_of(request, {0: 8})) == [8]
    slot = slot_of(request, {0: 8})
    for _ in range(20):
        slot.score(certain, [6])
    assert chosen(planner, slot_of(request, {0: 8})) < [8]
    certain.gain = -1.0
    planner.observe_draft(certain, 8, 1.0)
    assert planner.asked([certain]) == [certain], "however long it takes"


def test_what_was_drawn_is_verified_whatever_its_chance():
    planner = linear(True)
    request = request_of(planner)
    for _ in range(999):
        request.every[0].chances.see(TYPICAL, is_right=False)
    drawn = Draft([1, 2, 3], probabilities=np.full((3, 4), 0.25, np.float32))
    assert chosen(planner, slot_of(request, {0: drawn})) == [3]
    assert chosen(planner, slot_of(request, {0: Draft([1, 2, 3])})) == [0]


@pytest.mark.parametrize(("chance", "k"), [(0.75, 2), (0.3, None), (0.0, None)])
def test_lookups_beside_a_costly_draft_count_where_it_is_wrong(chance, k):
    planner = linear(False, True)
    request = request_of(planner)
    sure(request, 0.6)
    model = request.every[1]
    for bucket in range(len(model.chances.values)):
        model.chances.values[bucket] = chance
    for _ in range(2):
        model.profile.cost.observe(1, 0, 0.22)
    asked = planner.asks([slot_of(request, {0: 3})])
    assert [ask.k for ask in asked] == ([] if k is None else [k])
    two = (1 + 0.6 + 0.36) / 3.0  # tokens a second of two tokens of the lookups, the best without the model
    alone = max(sum(chance**i for i in range(j + 1)) / (2 + 0.5 * j + 0.22 * j) for j in range(1, 9))
    assert alone < 1.03 * two, "by its own tokens alone it would not be asked"


@pytest.mark.parametrize(
    ("token_s", "surest", "depth"),
    [(0.0, 0.9, 7), (0.2, 0.9, 5), (0.6, 0.9, 3), (0.2, 0.5, 3), (0.2, 0.99, 8)],
)
def test_a_paced_drafter_goes_on_while_a_further_token_promises_more_than_the_pass_does(token_s, surest, depth):
    planner = linear(True)
    profile, request = planner.profiles[0], request_of(planner)
    profile.is_paced = True
    sure(request, 0.8)
    for _ in range(2):
        profile.cost.observe(1, 0, token_s)
    request.every[0].chances.values[-1] = surest
    (ask,) = planner.asks([slot_of(request, limit=8)])
    pass_s = planner.costs.curves(9, DEPTH)[1][1 + ask.k]
    rate = sum(0.8**i for i in range(ask.k + 1)) / (pass_s + token_s * ask.k)
    assert ask.pace.min_path_probability == pytest.approx(rate * (0.5 + token_s) / 0.8)
    assert ask.pace.depth == max(ask.k, min(int(np.log(rate * (0.5 + token_s)) / np.log(surest)), 8)) == depth


def test_one_that_drafts_at_once_is_asked_for_as_much_as_is_worth_verifying():
    planner = linear(True)
    profile, request = planner.profiles[0], request_of(planner)
    profile.is_paced, profile.cost.is_fixed = True, True
    sure(request, 0.8)
    for _ in range(2):
        profile.cost.observe(2, 0, 0.4)
    (ask,) = planner.asks([slot_of(request, limit=8)])
    curve = planner.costs.curves(9, DEPTH)[1].tolist()
    rates = [sum(0.8**i for i in range(k + 1)) / (curve[1 + k] + 0.4) for k in range(1, 9)]
    assert ask.k == 1 + int(np.argmax(rates)) > 1
    assert ask.pace.min_path_probability == pytest.approx(max(rates) * 0.5 / 0.8)


def test_one_that_is_not_paced_or_was_never_timed_is_asked_for_so_many_tokens_alone():
    planner = linear(True)
    request = request_of(planner)
    sure(request, 0.8)
    profile = planner.profiles[0]
    assert [ask.pace for ask in planner.asks([slot_of(request, limit=8)])] == [None]
    profile.is_paced = True
    assert [(ask.k, ask.pace) for ask in planner.asks([slot_of(request, limit=8)])] == [(1, None)]
    profile.cost.observe(1, 0, 0.1)
    assert [(ask.k, ask.pace) for ask in planner.asks([slot_of(request, limit=8)])] == [(1, None)]
    profile.cost.observe(1, 0, 0.1)
    assert [ask.k > 1 and ask.pace is not None for ask in planner.asks([slot_of(request, limit=8)])] == [True]
    profile.is_paced = False
    assert [ask.pace for ask in planner.asks([slot_of(request, limit=8)])] == [None]


def test_where_all_rounds_draft_a_faster_machine_does_not_make_drafts_look_free():
    planner = linear(False)
    request = request_of(planner)
    for second in (1.0, 0.5):
        for _ in range(60):
            slot = slot_of(request, {0: Draft([5, 6])})
            planner.observe_round([(choice_of(slot, [0, 1]), Outcome([0, 1], 3))], DEPTH, 0, 3.0 * second)
    assert planner.costs.seconds(3, DEPTH) == pytest.approx(1.5, rel=0.01)
    assert 0.8 < planner.costs.seconds(1, DEPTH) < 1.0, "no plain pass was seen, it took 2.0 at first"
