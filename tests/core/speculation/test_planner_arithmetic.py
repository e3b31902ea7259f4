"""What the planner keeps account of, to the second: rounds of known times, one at a time."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.planner_scenarios import DEPTH, chosen, slot_of

from augury.speculation.costs import PassCosts, PassTime
from augury.speculation.planner import DraftPlanner
from augury.types import Draft

PLAIN = (None, 0, False)  # what is chosen for a slot that decodes plainly


def planner_of(*is_costly):
    """Plans passes that take two seconds, and half a second more for each further token."""
    return DraftPlanner(PassCosts([PassTime(1, 0, 2.0), PassTime(17, 0, 10.0)], 32), is_costly)


def test_what_lookups_may_lose_they_share_and_what_a_costly_one_may_all_requests_share():
    planner = planner_of(False, False, True)
    first, second = planner.new_request(), planner.new_request()
    kept = [(each.seconds, each.share, each.most) for each in first.budgets]
    assert kept == [(0.1, 0.0025, 16.0), (0.1, 0.0025, 16.0), (2.0, 0.02, 16.0)]
    assert [one is other for one, other in zip(first.budgets, second.budgets, strict=True)] == [False, False, True]
    assert [estimate.chance(0) for estimate in first.estimates] == [0.4, 0.4, 0.65], "what is expected of each kind"
    assert first.n_missed == first.n_idle == first.n_right == [0, 0, 0]


def test_what_lookups_may_lose_is_a_share_of_a_plain_pass_at_the_last_depth():
    times = [PassTime(1, 0, 2.0), PassTime(17, 0, 10.0), PassTime(1, 100, 4.0), PassTime(17, 100, 12.0)]
    planner = DraftPlanner(PassCosts(times, 32), [False])
    drafters = planner.new_request()
    planner.choose([slot_of(drafters, {0: 1})])
    assert [each.budgets[0].seconds for each in (drafters, planner.new_request())] == [0.2, 0.4]


@pytest.mark.parametrize(
    ("seconds", "asked_at"),
    [
        (0.008, range(33)),  # costs nothing
        (0.012, [*range(16), *range(16, 33, 2)]),
        (0.0202, [*range(16), 18, 21, 24, 27, 30]),  # three times that: every third round
        (0.18, [*range(16), 16, 24, 32]),  # at most so seldom
    ],
)
def test_a_lookup_that_takes_time_is_asked_less_while_it_is_not_right(seconds, asked_at):
    planner = planner_of(False, True)
    drafters = planner.new_request()
    planner.observe_draft(0, drafters, 4, seconds)
    found = []
    for n_idle in range(33):
        drafters.n_idle[:] = [n_idle, n_idle]
        found += [n_idle] if planner.is_asked(0, drafters) else []
        assert not planner.is_asked(1, drafters), "a costly one is asked when it was chosen"
    assert found == list(asked_at)


@pytest.mark.parametrize(("seconds", "n_asks", "is_costly"), [(0.22, 16, False), (0.22, 17, True), (0.2, 99, False)])
def test_a_lookup_is_costly_that_takes_a_tenth_of_a_pass_again_and_again(seconds, n_asks, is_costly):
    planner = planner_of(False)
    drafters = planner.new_request()
    for _ in range(n_asks):
        drafters.n_missed[0] = 1
        planner.observe_draft(0, drafters, 1, seconds)
        assert drafters.n_missed == [0]
    assert planner.is_costly == [is_costly]


@pytest.mark.parametrize("n_accepted", [0, 3])
@pytest.mark.parametrize("draft_s", [0.0, 0.5])
def test_a_round_s_gain_and_loss_are_booked_to_the_second(n_accepted, draft_s):
    planner = planner_of(False, False, True)
    drafters = planner.new_request()
    drafters.n_right[1] = 2
    for budget in drafters.budgets:
        budget.seconds = -8.0
    used = 2 if draft_s else 0
    slot = slot_of(drafters, drafter=used, k=4, n_accepted=n_accepted, draft_s=draft_s)
    planner.observe_round([slot], DEPTH, 0, 4.0)
    took_s = 2.0 + 2.0 + draft_s  # a plain pass, four tokens more, and drafting
    gain = n_accepted * 2.0 - 2.0 - draft_s
    expected = [-8.0 + 0.0025 * took_s, -8.0 + 0.0025 * took_s + 4.0, -8.0 + 0.02 * took_s]  # what was right unused is credited
    expected[used] += gain
    assert [budget.seconds for budget in drafters.budgets] == pytest.approx(expected)


def test_slots_share_the_time_of_a_pass_by_their_drafts():
    planner = planner_of(False)
    requests = [planner.new_request() for _ in range(3)]
    drafts = zip(requests, (None, 0, 0), (0, 1, 3), (0, 0, 1), strict=True)
    slots = [slot_of(drafters, drafter=m, k=k, n_accepted=n_accepted) for drafters, m, k, n_accepted in drafts]
    requests[0].n_right[0], requests[0].budgets[0].seconds = 1, -8.0
    before = planner.costs.seconds(7, DEPTH)
    planner.observe_round(slots, DEPTH, 5, 99.0)
    # eight plain tokens take 5.5 s and four more two seconds
    assert planner.costs.seconds(7, DEPTH) == before, "a pass with a prompt's tokens says nothing of others"
    expected = [0.2 + 0.005 * (5.5 / 3 + own_s) - own_s for own_s in (0.0, 0.5, 1.5)]
    expected[0] += -8.2 + 5.5 / 3  # of the token that it had right unused
    expected[2] += 5.5 / 3  # of the accepted token
    assert [drafters.budgets[0].seconds for drafters in requests] == pytest.approx(expected)
    planner.observe_round(slots, DEPTH, 99, 99.0)  # more tokens than there are figures for


@pytest.mark.parametrize(
    ("k", "n_accepted", "is_probe", "interval"),
    [(6, 3, False, 1), (5, 2, False, 40), (4, 1, True, 80), (1, 1, True, 1), (0, 0, True, 80), (0, 0, False, 40)],
)
def test_a_drafter_that_was_half_right_is_tried_again_at_once_and_after_a_wrong_try_later(k, n_accepted, is_probe, interval):
    planner = planner_of(True)
    planner._intervals[0] = 40
    slot = slot_of(planner.new_request(), drafter=0, k=k, is_probe=is_probe, n_accepted=n_accepted)
    planner.observe_round([slot], DEPTH, 0, 1.0)
    assert planner._intervals[0] == interval
    assert planner._n_waited == [1]


def test_tries_become_rarer_from_eight_to_a_hundred_and_sixty_rounds():
    planner, found = planner_of(True), []
    planner._intervals[0] = 1
    for _ in range(7):
        planner._schedule(0, is_right=False)
        found += planner._intervals
    assert found == [8, 16, 32, 64, 128, 160, 160]


@pytest.mark.parametrize(("n_right", "n", "interval"), [(12, 16, 1), (11, 16, 16), (1, 1, 1), (0, 0, 16)])
def test_teacher_forcing_is_paid_for_and_says_whether_to_try_at_once(n_right, n, interval):
    planner = planner_of(True)
    drafters = planner.new_request()
    drafters.n_missed[0], planner._n_waited[0] = 30, 9
    planner.observe_teacher_forced(0, drafters, [True] * n_right + [False] * (n - n_right), 0.25)
    assert (drafters.n_missed, planner._n_waited, planner._intervals) == ([0], [0], [interval])
    assert drafters.budgets[0].seconds == 1.75


@pytest.mark.parametrize(
    ("n_waited", "saved", "draft_s", "limit", "n_min", "expected"),
    [
        (8, 2.0, 0.2, 16, 1, (0, 1, True)),
        (7, 2.0, 0.2, 16, 1, PLAIN),
        (8, 0.69, 0.2, 16, 1, PLAIN),  # a token takes a fifth of a second to draft and half a one to verify
        (8, 0.71, 0.2, 16, 1, (0, 1, True)),
        (8, 4.0, 0.2, 16, 3, (0, 3, True)),
        (8, 4.0, 0.2, 2, 3, PLAIN),
        (8, 16.0, 1.2, 16, 1, PLAIN),  # were it always right, it would be a third faster than without
        (8, 4.0, 0.45, 1, 1, (0, 1, True)),  # a pass of two tokens may take two seconds, and a missed one 0.1
        (8, 4.0, 0.55, 1, 1, PLAIN),
    ],
)
def test_a_costly_drafter_is_tried_when_it_is_time_and_time_was_saved(n_waited, saved, draft_s, limit, n_min, expected):
    planner = planner_of(True)
    drafters = planner.new_request()
    planner.observe_prompt(0, 10, 1.0)
    planner.observe_draft(0, drafters, 1, draft_s)
    for _ in range(60):
        drafters.estimates[0].see([1], [0])
    planner._n_waited[0], drafters.budgets[0].seconds = n_waited, saved
    assert chosen(planner, slot_of(drafters, {0: limit}, n_min)) == [expected]


def test_of_several_drafters_that_missed_much_one_a_round_says_what_it_would_have_drafted():
    planner = planner_of(True)
    requests = [planner.new_request() for _ in range(2)]
    planner._n_waited[0], requests[0].budgets[0].seconds = 8, 16.0
    for drafters in requests:
        drafters.n_missed[0] = 25
    slots = [slot_of(drafters, {0: 16}) for drafters in requests]
    assert chosen(planner, *slots) == [PLAIN] * 2
    assert [slot.teacher_forced for slot in slots] == [0, None]


def best_by_definition(planner, slots, i, choices, n_beside):
    """The choice with the most expected tokens per second, worth 2 % less than plain decoding, 3 % if it takes time."""

    def drafted(slot, m, k):
        """The tokens expected and the seconds of drafting."""
        draft_s = planner._draft_costs[m].seconds(k, slot.drafters.n_missed[m]) if planner.is_costly[m] else 0.0
        return 1 + sum(slot.drafters.estimates[m].survival(k)), draft_s

    others = [(slot, m, k) for j, (slot, (m, k, _)) in enumerate(zip(slots, choices, strict=True)) if j != i]
    of_others = [(1.0, 0.0) if m is None else drafted(slot, m, k) for slot, m, k in others]
    n, tokens, seconds = n_beside + sum(1 + k for *_, k in others), *map(sum, zip((0.0, 0.0), *of_others, strict=True))
    hoped = planner.costs.hopeful_curve(99, sum(slot.n_context for slot in slots) / len(slots))
    found = [((tokens + 1.02) / (hoped[n + 1] + seconds), PLAIN)]
    for m, limit in slots[i].offers.items():
        for k in range(slots[i].n_min, limit + 1):
            expected, draft_s = drafted(slots[i], m, k)
            rate = (tokens + expected) / (hoped[n + 1 + k] + seconds + draft_s)
            found.append((rate / 1.03 if planner.is_costly[m] else rate, (m, k, False)))
    return max(found, key=lambda each: each[0])[1]


@settings(max_examples=200)  # few have slots that gain from each other
@given(st.data(), st.integers(1, 3))
def test_choices_are_the_best_by_definition_given_those_of_the_other_slots(data, n_slots):
    times = sorted(data.draw(st.lists(st.floats(1.0, 3.0), min_size=4, max_size=4)))
    is_costly = data.draw(st.lists(st.booleans(), min_size=1, max_size=3))
    sizes = [PassTime(n, 0, seconds) for n, seconds in zip((1, 3, 8, 17), times, strict=True)]
    planner = DraftPlanner(PassCosts([*sizes, PassTime(17, 100, times[3] + 1)], 17), is_costly)
    slots = []
    for _ in range(n_slots):
        drafters = planner.new_request()
        for m in range(len(is_costly)):
            for n_right in data.draw(st.lists(st.integers(0, 6), max_size=6)):
                drafters.estimates[m].see([1] * 6, [1] * n_right + [0])
            planner.observe_draft(m, drafters, 2, data.draw(st.floats(0.0, 0.5)))
            drafters.n_missed[m] = data.draw(st.integers(0, 24))
            drafters.budgets[m].seconds = 1e9
        offers = {m: data.draw(st.integers(1, 12)) for m in data.draw(st.permutations(range(len(is_costly))))}
        slot = slot_of(drafters, offers, data.draw(st.integers(1, 4)))
        slots.append(attrs.evolve(slot, n_context=data.draw(st.integers(0, 500))))
    n_beside = data.draw(st.integers(0, 12))
    expected = [PLAIN for _ in slots]
    for i in [*range(n_slots)] * 2:
        expected[i] = best_by_definition(planner, slots, i, expected, n_beside)
    assert chosen(planner, *slots, n_beside=n_beside) == expected
    nothing = [slot_of(slot.drafters) for slot in slots]
    assert chosen(planner, *nothing, n_beside=n_beside) == [PLAIN for _ in slots]


def test_of_a_tree_one_token_of_each_depth_is_expected():
    drafters = planner_of(False).new_request()
    first, second = drafters.estimates[0].survival(2)
    slot = slot_of(drafters, {0: 4})
    slot.proposals[0] = Draft([5, 6, 7, 8], [-1, -1, 0, 1], confidence=np.float32([0.75, 0.25, 0.5, 0.5]))
    assert slot.gains(0, 4) == pytest.approx([0.75 * first, 0.25 * first, 0.75 * second, 0.25 * second])
    slot.proposals[0] = Draft([5, 6, 7, 8], [-1, -1, 0, 1])  # nobody knows which is more probable
    assert slot.gains(0, 4) == pytest.approx([first / 2, first / 2, second / 2, second / 2])
    slot.proposals[0] = Draft([5, 6, 7, 8])
    assert slot.gains(0, 4) == drafters.estimates[0].survival(4)


@pytest.mark.parametrize("replays_accepted", [False, True])
def test_accepted_tokens_that_are_computed_again_cost_as_much_as_drafted_ones(replays_accepted):
    costs = PassCosts([PassTime(1, 0, 2.0), PassTime(17, 0, 10.0)], 32)  # half a second for each token more
    planner = DraftPlanner(costs, [False], replays_accepted=replays_accepted)
    drafters = planner.new_request()
    for _ in range(40):
        drafters.estimates[0].see([1, 1, 1], [1, 1, 0])
        drafters.estimates[0].see([1] * 9, [1] * 9)
    drafters.budgets[0].seconds = 1e9
    slot = slot_of(drafters, {0: 16})
    planner.choose([slot])
    alive, hoped = drafters.estimates[0].survival(16), costs.hopeful_curve(17, DEPTH)
    rates = [1.02 / hoped[1]]
    for k in range(1, 17):  # [a]: that exactly so many are accepted
        exactly = [before - after for before, after in zip([1.0, *alive[: k - 1]], alive[:k], strict=True)]
        replay_s = 0.5 * sum(n * chance for n, chance in enumerate(exactly)) if replays_accepted else 0.0
        rates.append((1 + sum(alive[:k])) / (hoped[1 + k] + replay_s))
    assert slot.k == np.argmax(rates)
    before = drafters.budgets[0].seconds = 4.0
    slot.k, slot.n_accepted = 4, 2
    planner.observe_round([slot], DEPTH, 0, 4.0)
    own_s = 2.0 + (1.0 if replays_accepted else 0.0)  # four drafted tokens, and two of them again
    assert drafters.budgets[0].seconds == pytest.approx(before + 2 * 2.0 - own_s + 0.005 * (2.0 + own_s))
    slot.k, slot.n_accepted, before = 4, 4, drafters.budgets[0].seconds
    known = costs.seconds(7, DEPTH)
    planner.observe_round([slot], DEPTH, 0, 4.0 + replays_accepted)
    assert drafters.budgets[0].seconds == pytest.approx(before + 4 * 2.0 - 2.0 + 0.005 * 4.0), "nothing was rejected"
    assert costs.seconds(7, DEPTH) == pytest.approx(known), "nor is a replay mistaken for slow drafts"


@pytest.mark.parametrize(("seconds", "is_drafted"), [(2.4, True), (6.0, False)])
def test_nothing_is_drafted_where_a_second_token_takes_longer_than_a_second_pass(seconds, is_drafted):
    planner = DraftPlanner(PassCosts([PassTime(1, 0, 2.0), PassTime(2, 0, seconds)], 2), [False])
    drafters = planner.new_request()
    for _ in range(40):
        drafters.estimates[0].see([1], [1])
    drafters.budgets[0].seconds = 1e9
    assert chosen(planner, slot_of(drafters, {0: 1})) == [(0, 1, False) if is_drafted else PLAIN]


def test_a_certain_draft_is_taken_whole_at_once_and_less_of_it_once_it_was_wrong():
    costs = PassCosts([PassTime(1, 0, 2.0), PassTime(17, 0, 10.0)], 32)
    planner = DraftPlanner(costs, [False, False], [True, False])
    drafters = planner.new_request()
    assert drafters.budgets[1].seconds == 0.2, "a certain one takes no share of what lookups may lose"
    assert [each.seconds for each in planner_of(False, False).new_request([1]).budgets] == [0.2, 0.2], (
        "nor one that is not asked"
    )
    both = slot_of(drafters, {0: 8, 1: 16})
    planner.choose([both])
    assert (both.drafter, both.k) == (0, 8)
    for _ in range(20):
        drafters.score(0, [5] * 8, [6])
    planner.choose([both])
    assert (both.drafter, both.k) != (0, 8)
    drafters.n_idle[0] = 100
    planner.observe_draft(0, drafters, 8, 1.0)
    assert planner.is_asked(0, drafters), "however long it takes"
