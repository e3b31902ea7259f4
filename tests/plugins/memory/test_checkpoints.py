import itertools
import logging

import numpy as np
import pytest

from augury.engine.context import EngineContext
from augury.errors import CapacityError, UnsupportedError
from augury.options import build
from augury.plugins.memory.checkpoints import CheckpointOptions, Checkpoints
from augury.testing.toy_model import ToyRecurrentModel
from augury.types import Draft

STATE = 4 * 8 + 3 * 8  # bytes of the toy's state of a sequence
KINDS = {"kept aside": {}, "restored": {"can_keep_aside": False}, "hybrid": {"is_hybrid": True}}


def tokens(*values):
    return np.array(values, np.int32)


def context(n_slots=1, n_ctx=256, kind="kept aside", **options):
    model = ToyRecurrentModel(n_slots=n_slots, n_ctx=n_ctx, n_vocab=300, **KINDS[kind])
    values = {key: value for key, value in options.items() if value is not None}
    return EngineContext(model, Checkpoints(build(CheckpointOptions, values, "checkpoints"), model.state_spec, model))


def prefill(held, text, start, slot=0):
    """Process a prompt from `start` on, in passes as the loop makes them; returns where they ended."""
    ends = []
    while start < len(text):
        n = held.chunk(slot, min(len(text) - start, 64), len(text) - start)
        feed = held.prepare(slot, tokens(*text[start : start + n]))
        held.forward([feed])
        held.commit(feed)
        start += n
        ends.append(start)
    return ends


def answer(held, text, **how):
    """Process a prompt in the slot that it gets, and free that; returns what `open` said."""
    opened = held.open(tokens(*text), may_reuse=True)
    prefill(held, text, opened.n_reused, opened.slot, **how)
    held.end(opened.slot)
    return opened


def state_of(held, slot=0):
    """The whole state of a slot, of which nothing is left for its next pass to take in."""
    feed = held.prepare(slot, tokens(7))
    held.forward([feed])
    held.commit(feed)
    model = held.model
    n = len(held.memory._slots[slot].tokens[: held.memory._slots[slot].n])
    return [model.state[slot].tolist(), model.conv[slot].tolist(), model.cells[slot, :n].tolist()]


def fresh(kind, text):
    held = context(kind=kind)
    held.open(tokens(*text), may_reuse=False)
    prefill(held, text, 0)
    return state_of(held)


def positions(held, slot=0):
    return list(held.memory._at[slot].copies)


PROMPT = list(range(100))
TURN = [*PROMPT, *range(200, 230)]  # with an answer, whose beginning a next prompt leaves out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "n_reused"),
    [
        ([*PROMPT, 150, *range(220, 230), 3], 100),  # the reasoning is cut
        ([*TURN, 4, 5, 6], 130),  # goes on
        ([*PROMPT[:98], 7, 7, 7], 96),  # the end of the prompt is edited
        ([*PROMPT[:70], 9, 9], 64),
        ([*PROMPT[:30], 9, 9], 0),
    ],
)
def test_a_text_goes_on_from_the_nearest_copy(kind, text, n_reused):
    held = context(kind=kind, checkpoint_min_step=50)
    answer(held, PROMPT)
    answer(held, TURN)
    opened = held.open(tokens(*text), may_reuse=True)
    n_shared = next((i for i, pair in enumerate(zip(text[:-1], TURN, strict=False)) if pair[0] != pair[1]), len(TURN))
    assert (opened.n_reused, opened.n_shared) == (n_reused, n_shared)
    prefill(held, text, n_reused)
    assert state_of(held) == fresh(kind, text)


def test_a_prompt_s_passes_end_where_a_copy_is_wanted():
    held = context()
    held.open(tokens(*PROMPT), may_reuse=True)
    assert prefill(held, PROMPT, 0) == [64, 96, 100]
    assert positions(held) == [96]


@pytest.mark.parametrize(("text", "options"), [(PROMPT[:15], {}), (PROMPT, {"ctx_checkpoints": 0})])
def test_a_short_prompt_or_one_without_copies_is_not_divided(text, options):
    held = context(**options)
    held.open(tokens(*text), may_reuse=True)
    assert prefill(held, text, 0) == [*range(64, len(text), 64), len(text)]
    assert positions(held) == []


def held_at(*positions, slot=0, **how):
    """Copies at these positions."""
    held = how.pop("held", None) or context(**{"checkpoint_min_step": 1} | how)
    held.open(tokens(slot), may_reuse=True)
    for start, end in itertools.pairwise((0, *positions)):
        feed = held.prepare(slot, np.zeros(end - start, np.int32))
        held.forward([feed])
        held.commit(feed)
    return held


def test_what_a_copy_saves_is_its_tokens_as_often_as_a_text_leaves_the_slot_s_before_the_next():
    assert positions(held_at(1, 61, 81, 101, ctx_checkpoints=3)) == [61, 81, 101]
    assert positions(held_at(50, 60, 70, 200, ctx_checkpoints=3)) == [50, 70, 200]


def test_between_slots_a_copy_counts_by_the_share_of_its_text(monkeypatch):
    monkeypatch.setattr("augury.plugins.memory.checkpoints._MIB", 4 * (STATE + 32))
    held = held_at(100, 110, 120, n_slots=2, mem_budget=1)  # 120 is where its state stands, 110 saves 10 of 120 tokens
    held_at(8, 16, 24, slot=1, held=held)  # each saves 8 of 24
    assert (positions(held, 0), positions(held, 1)) == ([100], [8, 16, 24])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("step", "expected"), [(0, [*range(1, 21)]), (5, [5, 10, 15, 20]), (30, [])])
def test_copies_keep_their_distance_as_a_text_grows(kind, step, expected):
    held = context(kind=kind, checkpoint_min_step=step)
    held.open(tokens(1), may_reuse=True)
    for token in range(20):
        prefill(held, [*range(token), token], token)
    assert positions(held) == expected


def test_the_copy_that_saves_least_gives_way_and_that_is_told(caplog):
    held = context(ctx_checkpoints=3, checkpoint_min_step=0)
    held.open(tokens(1), may_reuse=True)
    told = []
    with caplog.at_level(logging.INFO, logger="augury"):
        for n in range(1, 41):
            prefill(held, list(range(n)), n - 1)
            told.append(positions(held))
    assert told[2:4] == [[1, 2, 3], [2, 3, 4]]
    assert all(len(each) <= 3 for each in told)
    first, second, last = told[-1]
    assert last == 40
    assert 6 <= first <= 22  # they cover the text
    assert first < second < 36
    assert "a checkpoint gives way" in caplog.text
    assert "limit=ctx_checkpoints" in caplog.text


def test_all_slots_copies_together_keep_the_budget(monkeypatch):
    monkeypatch.setattr("augury.plugins.memory.checkpoints._MIB", 4 * (STATE + 32))
    held = context(n_slots=2, checkpoint_min_step=10, mem_budget=1)
    for slot in range(2):
        held.open(tokens(slot), may_reuse=True)
        for n in range(10, 60, 10):
            prefill(held, [slot] * n, n - 10, slot)
            assert len(positions(held, 0)) + len(positions(held, 1)) <= 4
    assert positions(held, 0)  # what a copy saves counts, not whose it is
    assert positions(held, 1)
    table = held.memory.memory_table()
    assert [(line.purpose, line.n_bytes) for line in table] == [("checkpoints, at most", 4 * (STATE + 32))]
    assert held.memory.n_bytes == 2 * STATE + 4 * (STATE + 32)


@pytest.mark.parametrize("reason", ["one is larger than mem_budget", "cannot save slots"])
def test_copies_that_cannot_be_are_told_once_and_nothing_is_reused(reason, caplog, monkeypatch):
    held = context(mem_budget=0 if "budget" in reason else None)
    if "cannot" in reason:

        def refuse(slot, n):
            raise UnsupportedError("the toy cannot save slots")

        monkeypatch.setattr(held.model, "save", refuse)
    answer(held, PROMPT)
    answer(held, TURN)
    opened = held.open(tokens(*PROMPT, 3, 3), may_reuse=True)
    assert (opened.n_reused, opened.n_shared) == (0, 100)
    assert caplog.text.count("no checkpoints are kept along texts") == 1
    assert reason in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_pass_goes_back_to_the_last_copy(kind):
    held = context(kind=kind)
    held.open(tokens(*PROMPT), may_reuse=True)
    prefill(held, PROMPT, 0)
    held.forward([held.prepare(0, tokens(5), 3, Draft([6, 7]))])
    held.end(0)
    opened = held.open(tokens(*PROMPT, 8), may_reuse=True)
    assert opened.n_reused == 96
    prefill(held, [*PROMPT, 8], 96)
    assert state_of(held) == fresh(kind, [*PROMPT, 8])


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_state_that_a_pass_saved_is_forgotten_with_its_text_or_with_a_failed_pass(has_failed):
    held = context(kind="restored", checkpoint_min_step=30)
    held.open(tokens(*PROMPT[:10]), may_reuse=True)
    prefill(held, PROMPT[:10], 0)
    reject(held)  # the state after 11 tokens is saved
    if has_failed:
        prefill(held, [*PROMPT[:10], 5, *PROMPT[:40]], 11)
        held.forward([held.prepare(0, tokens(4), 3, Draft([6, 7]))])  # it saves another
        held.end(0)
        assert held.open(tokens(*PROMPT[:10], 5, *PROMPT[:40], 8), may_reuse=True).n_reused == 47
    else:
        assert held.truncate(0, 0) == 0
        prefill(held, [9, *PROMPT[:20]], 0)
    assert held.truncate(0, 15) == 0


@pytest.mark.parametrize("n_more", [1, 3])
def test_a_text_goes_back_to_the_very_state_that_a_pass_saved(n_more):
    held, text = context(kind="restored"), [*PROMPT[:10], 5]
    held.open(tokens(*text), may_reuse=True)
    prefill(held, text[:10], 0)
    reject(held)  # the state after 11 tokens is saved
    prefill(held, [*text, *range(50, 50 + n_more)], 11)
    assert held.truncate(0, 11) == 11
    assert state_of(held) == fresh("restored", text)


@pytest.mark.parametrize(("n", "n_kept", "accepted"), [(4, 4, ((3, 3),)), (3, 3, ()), (2, 0, ()), (9, 4, ((3, 3),))])
def test_a_recurrent_state_is_cut_no_further_than_what_it_has_not_taken_in(n, n_kept, accepted):
    held = context(n_ctx=8)
    held.open(tokens(1, 2, 3), may_reuse=True)
    prefill(held, [1, 2], 0)
    feed = held.prepare(0, tokens(3), 3, Draft([4, 5]))
    held.forward([feed])
    held.commit(feed, [0])
    assert held.truncate(0, n) == n_kept
    reservation = held.prepare(0, tokens(9)).reservation
    assert (reservation.mark, reservation.accepted, reservation.keeps_aside) == (n_kept, accepted, True)


def reject(held, n=1):
    for _ in range(n):
        feed = held.prepare(0, tokens(5), 3, Draft([6, 7]))
        held.forward([feed])
        held.commit(feed)


def test_after_some_restored_drafts_in_a_row_a_token_goes_without():
    held = context(kind="restored", ckpt_num_tries=2, n_ctx=64)
    held.open(tokens(1), may_reuse=True)
    prefill(held, [1], 0)
    rooms = []
    for _ in range(4):
        rooms.append(held.memory.draft_room(0))
        if rooms[-1] > 0:
            reject(held)
        else:
            prefill(held, [5], 0)
    assert rooms == [62, 61, 0, 59]


@pytest.mark.parametrize(
    ("kind", "how", "replays", "may_draft"),
    [
        ("kept aside", "auto", False, True),
        ("kept aside", "off", False, True),
        ("kept aside", "on", True, True),
        ("restored", "auto", True, True),
        ("restored", "on", True, True),
        ("restored", "off", True, False),
    ],
)
def test_use_checkpoints_says_how_drafts_are_undone(kind, how, replays, may_draft, caplog):
    held = context(kind=kind, use_checkpoints=how)
    held.open(tokens(1), may_reuse=True)
    prefill(held, [1], 0)
    assert (held.memory.replays_accepted, held.memory.draft_room(0) > 0) == (replays, may_draft)
    assert ("nothing is drafted" in caplog.text) == (not may_draft)
    reject(held)
    assert held.prepare(0, tokens(5)).reservation.restore == replays


@pytest.mark.parametrize("n_accepted", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_slot_holds_its_text_and_its_copies(kind, n_accepted):
    held, other = context(kind=kind, checkpoint_min_step=30), context(n_slots=2, kind=kind, checkpoint_min_step=7)
    for slot in range(2):  # what it held before is forgotten
        other.open(tokens(7), may_reuse=True)
        prefill(other, [7, *range(100, 180)], 0, slot)
    other.end(1)
    held.open(tokens(*PROMPT), may_reuse=True)
    prefill(held, PROMPT, 0)
    feed = held.prepare(0, tokens(5), 3, Draft([6, 7]))
    held.forward([feed])
    held.commit(feed, range(n_accepted))
    held.end(0)
    data = held.save(0)
    assert positions(held) == [64, 96]
    n_held = 101 + (n_accepted if kind == "restored" else 0)  # others leave what was accepted to the next pass
    assert other.restore(1, data) == n_held
    text = [*PROMPT, 5, 6, 7][:n_held]
    assert other.open(tokens(*text, 9), may_reuse=True).n_reused == n_held
    with pytest.raises(CapacityError, match="slot 1, which is in use"):
        other.restore(1, data)
    prefill(other, [*text, 9], n_held, 1)
    assert state_of(other, 1) == fresh(kind, [*text, 9])
    assert positions(other, 1)[:2] == [64, 96]
    other.end(1)
    assert other.open(tokens(*PROMPT[:98], 3), may_reuse=True).n_reused == 96
    prefill(other, [*PROMPT[:98], 3], 96, 1)
    assert state_of(other, 1) == fresh(kind, [*PROMPT[:98], 3])
    other.end(1)
    assert other.open(tokens(*PROMPT[:70], 3), may_reuse=True).n_reused == 64


def test_a_text_that_is_too_long_for_the_slot_is_refused():
    held = context()
    answer(held, PROMPT)
    small = context(n_ctx=64)
    with pytest.raises(CapacityError, match="100 tokens is to be restored to slot 0, which has 64 positions; load"):
        small.restore(0, held.save(0))
