"""What an engine says of itself, while it works and after."""

import itertools

import pytest
from support.toys import Gate, ScriptedDrafter, ToyModel, planner_of, toy_engine

from augury.engine import loop, round_pass
from augury.engine.stats import Counts, RequestCounter, SlotStats
from augury.errors import AuguryError
from augury.speculation.costs import PassCosts, PassTime

GREEDY = {"temperature": 0.0}


def test_slots_and_the_queue_are_told_while_a_pass_goes_on():
    with toy_engine(slots=2, drafter=ScriptedDrafter) as engine:
        gate = Gate(engine)
        first = engine.submit([1, 2, 3], id="first", max_tokens=2, **GREEDY)
        assert gate.has_begun.wait(60)
        waiting = engine.submit([4], max_tokens=2, **GREEDY)
        try:
            stats = engine.stats()
        finally:
            gate.open()
        told = SlotStats(0, "prompt", "first", n_prompt=3, n_held=0, drafters=("scripted",), n_left=2)
        assert stats.slots == (told, SlotStats(1))
        assert (stats.n_running, stats.n_waiting, stats.counts) == (1, 1, Counts())
        first.result()
        waiting.result()
        stats = engine.stats()
        assert (stats.slots, stats.n_running, stats.n_waiting) == ((SlotStats(0), SlotStats(1)), 0, 0)


def test_those_wait_that_the_loop_has_taken_in_and_those_that_it_has_not():
    seen, runnings = [], []

    def submit(**_):
        if len(runnings) < 2:
            runnings.append(engine.submit([2], max_tokens=1, **GREEDY))
            seen.append(engine.stats().n_waiting)

    with toy_engine(observers=(submit, None)) as engine:
        engine.generate([1], max_tokens=3, **GREEDY)
        [running.result() for running in runnings]
    assert seen == [1, 2]


def test_a_slot_that_decodes_says_what_it_holds():
    seen = []
    with toy_engine(observers=(lambda **_: seen.append(engine.stats().slots[0]), None)) as engine:
        engine.generate([1, 2], id="one", max_tokens=3, **GREEDY)
    told = [(slot.state, slot.id, slot.n_held, slot.n_emitted) for slot in seen]
    assert told == [("decoding", "one", 2, 1), ("decoding", "one", 3, 2), ("idle", None, None, 0)]


def test_counts_hold_a_request_before_its_caller_hears_of_its_end(monkeypatch):
    with toy_engine(drafter=ScriptedDrafter) as engine:
        results = [engine.generate([1, 2, 3], max_tokens=9, **GREEDY) for _ in range(2)]
        counts, sums = engine.stats().counts, [result.stats for result in results]
        for name in ("n_emitted", "n_rounds", "n_drafted", "n_accepted", "n_reused"):
            assert getattr(counts, name) == sum(getattr(each, name) for each in sums) > 0
        assert (counts.n_finished, counts.n_prompt) == (2, 6 - counts.n_reused)
        assert counts.forward_s > 0 < counts.draft_s
        gate = Gate(engine)
        cancelled = engine.submit([1], **GREEDY)
        cancelled.cancel()
        gate.open()
        cancelled.result()

        def fail(*_):
            raise RuntimeError("planted")

        monkeypatch.setattr(ToyModel, "forward", fail)
        with pytest.raises((AuguryError, RuntimeError)):
            engine.generate([1], **GREEDY)
        counts = engine.stats().counts
    assert (counts.n_finished, counts.n_failed, counts.n_cancelled) == (2, 1, 1)


def test_an_evaluation_takes_a_slot():
    seen = []
    with toy_engine() as engine:
        engine._worker._loop._context.model.on_forward = lambda: seen.append(engine.stats().slots[0].state)
        engine.evaluate([1, 2, 3])
        assert engine.stats().slots[0].state == "idle"
    assert seen == ["evaluating"]


def test_the_plain_speed_begins_as_that_of_the_planners_pass_of_one_token():
    planner = planner_of(PassCosts([PassTime(1, 0, 0.25), PassTime(2, 0, 0.5)], 9), False)
    with toy_engine(drafter=ScriptedDrafter, planner=planner) as engine:
        assert engine.stats().plain_per_second == 4.0
        result = engine.generate([1], max_tokens=9, **GREEDY)
        assert engine.stats().plain_s == result.stats.timings.plain_s < 0.25  # it has learnt
    with toy_engine() as engine:
        assert engine.stats().plain_per_second is None


class SlowDrafter(ScriptedDrafter):
    """Has nothing to propose, for which it takes its time."""

    take = None

    def draft(self, history, limit):
        self.take(16.0)
        return super().draft(history, limit)

    def accept(self, history, verdict):
        self.take(64.0)
        super().accept(history, verdict)


def test_the_plain_speed_counts_a_round_whole_but_no_drafters_part_of_it(monkeypatch):
    now = [0.0]

    def take(seconds):
        now[0] += seconds

    for module in (loop, round_pass):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(SlowDrafter, "take", staticmethod(take))
    planner = planner_of(PassCosts([PassTime(1, 0, 3.0), PassTime(2, 0, 6.0)], 9), False)
    how = {"drafter": lambda toy: SlowDrafter(toy, [(0, 0)]), "planner": planner}
    with toy_engine(**how, observers=(lambda **_: take(1.0), None)) as engine:
        engine._worker._loop._context.model.on_forward = lambda: take(3.0)
        timings = engine.generate([1], max_tokens=9, **GREEDY).stats.timings
    assert (timings.plain_per_second, timings.plain_range_s) == (1 / 4, (4.0, 4.0))


@pytest.mark.parametrize(("pace", "n", "expected"), [(1.1, 40, (3.0, 3.3)), (1.6, 40, None), (1.0, 8, None)])
def test_what_plain_rounds_took_is_told_unless_they_were_few_or_differ(monkeypatch, pace, n, expected):
    now, turn = [0.0], itertools.cycle([3.0, 3.0 * pace])

    def take():
        now[0] += next(turn)

    for module in (loop, round_pass):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    with toy_engine() as engine:
        engine._worker._loop._context.model.on_forward = take
        found = engine.generate([1], max_tokens=n, **GREEDY).stats.timings.plain_range_s
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_slot_tells_who_drafted_how_far_and_what_was_accepted():
    seen = []
    with toy_engine(drafter=ScriptedDrafter, observers=(lambda **_: seen.append(engine.stats().slots[0]), None)) as engine:
        summary = engine.generate([1, 2, 3], max_tokens=9, **GREEDY).stats
    last = seen[-2]  # before the round that ended it
    assert (last.drafter, last.draft_lengths) == ("scripted", summary.draft_lengths[:-1])
    assert last.n_emitted == len(last.draft_lengths) + 1 + last.n_accepted
    assert last.n_drafted == sum(last.draft_lengths) > 0
    assert summary.slot == 0


def test_a_request_whose_figures_cannot_be_summed_up_is_counted_as_failed(monkeypatch):
    def failing(_):
        raise RuntimeError("no sums today")

    with toy_engine() as engine:
        monkeypatch.setattr(RequestCounter, "summary", failing)
        with pytest.raises(RuntimeError, match="no sums today"):
            engine.generate([1, 2], max_tokens=3, **GREEDY)
        counts = engine.stats().counts
    assert (counts.n_failed, counts.n_finished, counts.n_emitted) == (1, 0, 3)
