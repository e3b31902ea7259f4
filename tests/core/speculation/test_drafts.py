import pytest
from support.toys import ScriptedDrafter

from augury.errors import PluginError
from augury.interfaces import DrafterTraits
from augury.speculation.costs import LossBudget
from augury.speculation.drafts import SlotProposals, VerifiedNodes
from augury.speculation.profiles import DrafterProfile, RequestDrafter
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


def slot_of(*drafts, **how):
    """Proposals of drafters that take their tokens to be right with a confidence of three quarters."""
    slot = SlotProposals(None, None, 9, 100, **how)
    for i, draft in enumerate(drafts):
        slot.add(RequestDrafter(DrafterProfile(f"d{i}", is_costly=True), None), draft)
    return slot


def test_what_was_verified_of_a_proposal_and_accepted_is_told_by_its_own_places():
    slot = slot_of(Draft([5, 6, 7]), Draft([8, 5, 9, 6], [-1, -1, 0, 1]), Draft([5, 5], [-1, -1]), Draft())
    choice = VerifiedNodes(slot, slot.tree.part([0, 1, 3]), [0, 1, 3])
    assert choice.draft.tokens.tolist() == [5, 6, 8]
    assert choice.names == ["d0", "d0", "d1"]
    one, other, third, none = slot.by_drafter
    assert slot.tree.drafters == [one, other, third]
    counts = [[2, 2, 2, 2, 2], [3, 2, 2, 1, 0], [1, 1, 1, 0, 0]]
    assert choice.counts([0, 1]) == [*counts, [0] * 5], "none is a lookup"
    slot.lookups = [one, none]
    assert choice.counts([0, 1]) == [*counts, counts[0]]
    slot.lookups = [other, third]
    assert choice.counts([0]) == [[2, 1, 2, 2, 1], [3, 1, 2, 1, 0], [1, 1, 1, 0, 0], [3, 1, 2, 1, 0]]


def test_where_a_tree_may_not_branch_its_likeliest_path_alone_can_be_verified():
    tree = Draft([5, 6, 7, 8], [-1, -1, 1, 1], confidence=[0.3, 0.6, 0.2, 0.7])
    assert [chance > 0 for chance in slot_of(tree, may_branch=False).reach()] == [False, True, False, True]
    assert all(slot_of(tree).reach())


def test_what_is_forbidden_reaches_nothing():
    slot = slot_of(Draft([5, 6], [-1, 0]), Draft([7]))
    before = slot.reach().tolist()
    slot.forbid([0, 2])
    assert slot.reach().tolist() == [before[0], 0.0, before[2]]


def test_a_draft_that_is_taken_as_it_is_keeps_its_tokens_in_order():
    slot, drafter = slot_of(), RequestDrafter(DrafterProfile("d"), None)
    slot.take(drafter, Draft([5, 5, 6], [-1, -1, 0]))
    assert slot.tree.tokens == [5, 5, 6]
    assert VerifiedNodes(slot, Draft([5, 5]), [0, 1]).names == ["d", "d"]


def test_a_branch_beside_the_first_one_says_nothing_of_how_far_a_model_goes():
    drafter = RequestDrafter(DrafterProfile("d", is_costly=True), None)
    slot = SlotProposals(None, None, 9, 100)
    slot.add(drafter, Draft([5, 6, 7], [-1, 0, -1], confidence=[0.6, 0.5, 0.3]))
    slot.score(drafter, [7])
    assert drafter.chances.typical < 0.65 < drafter.chances.surest
    slot.score(drafter, [5, 6])
    assert drafter.n_right == 2


@pytest.mark.parametrize(
    "wrong",
    [{"n_top": "8"}, {"n_top": -1}, {"evidence_chances": (0.5, 3)}, {"features": "output"}, {"scope": "requests"}],
    ids=str,
)
def test_traits_that_cannot_be_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        DrafterTraits(**wrong)


def test_a_drafter_whose_traits_are_no_such_record_is_refused():
    drafter = ScriptedDrafter(None)
    drafter.traits = {"scope": "slot"}
    with pytest.raises(PluginError, match=r"drafter 'scripted' has traits \{'scope': 'slot'\}, expected DrafterTraits"):
        DrafterProfile.of(drafter)


def test_a_drafter_with_features_and_no_method_that_takes_them_is_refused():
    drafter = ScriptedDrafter(None)
    drafter.traits = DrafterTraits(features=("output",))
    with pytest.raises(
        PluginError, match=r"has features \('output',\), but no method feed that takes them; write feed\(self, "
    ):
        DrafterProfile.of(drafter)
    drafter.feed = lambda start, tokens, features: None
    assert DrafterProfile.of(drafter).features == ("output",)
