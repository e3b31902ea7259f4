import numpy as np
import pytest

from augury.errors import CapacityError
from augury.plugins.memory.contiguous import Contiguous
from augury.types import StateSpec


def manager(n_slots=2, n_ctx=8):
    return Contiguous(None, StateSpec(n_slots, n_ctx, 10), None)


def tokens(*values):
    return np.array(values, np.int32)


def fill(memory, slot, values):
    memory.commit(slot, memory.prepare(slot, len(values), 0), tokens(*values))


def holding(values, **spec):
    """A manager and its slot that holds some tokens."""
    memory = manager(**spec)
    slot = memory.open(tokens(*values), may_reuse=True).slot
    fill(memory, slot, values)
    return memory, slot


def test_a_slot_is_open_until_it_is_ended():
    memory = manager()
    first, second = memory.open(tokens(1), may_reuse=True), memory.open(tokens(2), may_reuse=True)
    assert {first.slot, second.slot} == {0, 1}
    assert memory.open(tokens(3), may_reuse=True) is None
    memory.end(first.slot)
    assert memory.open(tokens(3), may_reuse=True).slot == first.slot


def test_commit_keeps_what_was_accepted_and_forgets_the_rest():
    memory, slot = holding([1, 2])
    reservation = memory.prepare(slot, 1, 3)
    assert (reservation.mark, reservation.replay) == (2, ())
    memory.commit(slot, reservation, tokens(3, 4))
    assert memory.prepare(slot, 1, 0).mark == 4
    assert memory.room(slot) == 4


def test_a_request_goes_to_the_slot_that_shares_most():
    memory = manager(n_slots=3)
    for values in ([1, 2, 3], [1, 2, 9, 9], [7]):
        slot = memory.open(tokens(0), may_reuse=True).slot
        fill(memory, slot, values)
    for slot in range(3):
        memory.end(slot)
    opened = memory.open(tokens(1, 2, 9, 4), may_reuse=True)
    assert (opened.slot, opened.n_reused) == (1, 3)


@pytest.mark.parametrize(("may_reuse", "n_reused"), [(True, 2), (False, 0)])
def test_the_last_token_of_a_prompt_is_never_reused_and_nothing_where_it_is_not_wanted(may_reuse, n_reused):
    memory, slot = holding([1, 2, 3], n_slots=1)
    memory.end(slot)
    assert memory.open(tokens(1, 2, 3), may_reuse=may_reuse).n_reused == n_reused


def test_among_equals_the_longest_unused_slot_is_taken():
    memory = manager(n_slots=2)
    for values in ([1], [2]):
        slot = memory.open(tokens(0), may_reuse=True).slot
        fill(memory, slot, values)
    memory.end(1)
    memory.end(0)
    assert memory.open(tokens(5), may_reuse=True).slot == 1


def test_what_does_not_fit_is_a_capacity_error_and_changes_nothing():
    memory = manager(n_slots=1)
    with pytest.raises(CapacityError, match="9 tokens"):
        memory.open(np.arange(9, dtype=np.int32), may_reuse=True)
    slot = memory.open(tokens(1), may_reuse=True).slot
    fill(memory, slot, [1])
    with pytest.raises(CapacityError, match="room for 7"):
        memory.prepare(slot, 1, 7)
    assert memory.room(slot) == 7


def test_its_bytes_are_those_of_all_slots():
    assert manager(n_slots=2, n_ctx=8).n_bytes == 2 * 8 * 10


def test_a_tree_s_path_comes_to_lie_after_the_mark():
    memory, slot = holding([1, 2])
    reservation = memory.prepare(slot, 1, 4)
    memory.commit(slot, reservation, tokens(3, 4, 5), path=np.array([0, 2, 4], np.int32))
    after = memory.prepare(slot, 1, 0)
    assert (after.mark, after.accepted) == (5, ((4, 3), (6, 4)))
    fill(memory, slot, [6])
    assert memory.prepare(slot, 1, 0).accepted == ()


TREE = [3, 4], np.array([0, 2], np.int32)  # of a pass of three tokens these are kept


@pytest.mark.parametrize(
    ("has_failed", "n_reused", "accepted"),
    [(False, 4, ((4, 3),)), (True, 3, ())],  # whether the failed pass has moved anything is not known
)
def test_what_was_accepted_last_waits_for_the_next_request(has_failed, n_reused, accepted):
    memory, slot = holding([1, 2], n_slots=1)
    memory.commit(slot, memory.prepare(slot, 1, 2), tokens(*TREE[0]), path=TREE[1])
    if has_failed:
        memory.prepare(slot, 1, 0)
    memory.end(slot)
    assert memory.open(tokens(1, 2, 3, 4, 5), may_reuse=True).n_reused == n_reused
    assert memory.prepare(slot, 1, 0).accepted == accepted


def test_a_kv_cache_is_cut_anywhere():
    memory, slot = holding([1, 2, 3], n_slots=1)
    assert [memory.truncate(slot, n) for n in (5, 2, 0)] == [3, 2, 0]
