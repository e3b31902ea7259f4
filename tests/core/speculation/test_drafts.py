from types import SimpleNamespace

import numpy as np
import pytest

from augury.speculation.drafts import LossBudget, RequestDrafters, SlotDraft
from augury.speculation.estimates import LOOKUP, Acceptance
from augury.types import Draft


def budget(seconds=2.0):
    made = LossBudget(2.0, share=0.125, most=5.0)
    made.seconds = seconds
    return made


@pytest.mark.parametrize(
    ("saved", "asked", "is_least", "is_covered"),
    [
        (2.0, 2.0, False, True),
        (2.0, 2.5, False, False),
        (2.0, 2.5, True, True),
        (1.5, 2.0, True, False),
        (0.0, 0.0, False, True),
    ],
)
def test_what_is_saved_covers_as_much_and_at_first_the_least_whatever_it_takes(saved, asked, is_least, is_covered):
    assert budget(saved).covers(asked, **{"is_least": True} if is_least else {}) == is_covered


@pytest.mark.parametrize(
    ("saved", "change", "left"),
    [
        (2.0, lambda it: it.book(-3.0), -1.0),
        (2.0, lambda it: it.book(2.5), 4.5),
        (2.0, lambda it: it.book(3.5), 5.0),  # what was gained long ago is not gambled away
        (-1.0, lambda it: it.credit(0.5), -0.5),
        (1.0, lambda it: it.credit(9.0), 2.0),  # as at first, and no more
        (4.0, lambda it: it.credit(0.5), 4.0),
        (1.0, lambda it: it.pass_time(8.0), 2.0),
    ],
)
def test_a_budget_is_booked_credited_and_grows_with_time(saved, change, left):
    made = budget(saved)
    change(made)
    assert made.seconds == left


def test_a_request_keeps_what_each_drafter_had_right_and_since_when_it_was_not_asked():
    drafters = RequestDrafters(
        estimates=[Acceptance(LOOKUP) for _ in range(3)], n_missed=[0] * 3, n_idle=[0] * 3, n_right=[0] * 3
    )
    for proposed in ([7, 8, 9], [1], [7]):  # two right, none, one
        drafters.score(0, proposed, [7, 8])
        drafters.score(1, [], [7, 8])
        drafters.score(2, None, [7, 8])
    assert drafters.n_missed == [6, 6, 6]  # whoever asks takes that back
    assert drafters.n_idle == [0, 3, 3]
    assert drafters.n_right == [1, 0, 0]
    assert [estimate.run for estimate in drafters.estimates] == [1, 0, 0]
    drafters.score(0, None, [7])
    drafters.score(0, [], [7])
    assert (drafters.n_idle[0], drafters.n_right[0], drafters.estimates[0].run) == (2, 0, 0), (
        "what it finds next is another stretch"
    )


def test_what_was_proposed_is_offered_and_of_costly_drafters_that_were_not_asked_as_much_as_fits():
    guards = {index: SimpleNamespace(is_left_out=index == 4) for index in range(5)}
    sequence = SimpleNamespace(request=SimpleNamespace(speculation=SimpleNamespace(n_min=0)))
    slot = SlotDraft(sequence, RequestDrafters(guards=guards), 8, 100, proposals={0: Draft([1, 2]), 1: Draft()})
    slot.offer([True, True, False, True, True])  # drafters 0 and 1 have just turned out to be costly, after they were asked
    assert slot.offers == {0: 2, 3: 8}
    assert slot.n_min == 1


@pytest.mark.parametrize("confidence", [None, np.float32([0.01, 0.03, 0.5, 0.25, 0.25, 0.5])])
def test_of_a_tree_the_nodes_of_a_depth_share_the_chance_that_one_of_them_is_right(confidence):
    tree = Draft([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 1, 3], confidence=confidence)
    estimate = SimpleNamespace(survival=lambda n: [0.8, 0.4, 0.2][:n])
    slot = SlotDraft(None, RequestDrafters(estimates=[estimate]), 9, 100, proposals={0: tree})
    first, second = (0.25, 0.75) if confidence is not None else (0.5, 0.5)
    paths = [first * 0.5, first * 0.25, second * 0.25] if confidence is not None else [1.0, 1.0, 1.0]
    expected = [0.8 * first, 0.8 * second, *(0.4 * path / sum(paths) for path in paths), 0.2]
    assert slot.gains(0, 9 if confidence is not None else 6) == pytest.approx(expected)


def test_what_is_verified_is_the_beginning_of_what_was_proposed():
    slot = SlotDraft(None, RequestDrafters(), 9, 100, proposals={0: Draft([1, 2, 3])})
    slot.choose(0, 3)
    slot.verify(2)
    assert (slot.draft.tokens.tolist(), slot.k) == ([1, 2], 2)
