"""The loop by what its engine does: lossless, complete, and with every part told the truth."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.toys import Gate, ScriptedDrafter, ToyModel, planner_of, toy_engine

from augury.errors import ModelFileError
from augury.interruption import interrupted
from augury.passes import ArrayPass
from augury.speculation.costs import DraftCost, PassCosts, PassTime, measure_passes
from augury.speculation.planner import DraftPlanner

GREEDY = {"temperature": 0.0}
scripts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6)


def scripted(script):
    return lambda model: ScriptedDrafter(model, script)


@given(script=scripts, n=st.integers(1, 24), n_max=st.integers(0, 6), n_min=st.integers(0, 3))
def test_any_script_of_drafts_gives_the_tokens_of_plain_decoding(script, n, n_max, n_min):
    with toy_engine(drafter=scripted(script), n_max=n_max, n_min=n_min) as engine:
        result = engine.generate([1, 2, 3], max_tokens=n, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], n)


@given(
    script=scripts,
    seed=st.integers(0, 1000),
    repeat=st.sampled_from([1.0, 1.3]),
    top_k=st.sampled_from([0, 3]),
    more=st.sampled_from([{}, {"post_sampling_probs": True}, {"post_sampling_probs": True, "mirostat": 2}]),
)
def test_the_same_seed_gives_the_same_tokens_with_any_drafter(script, seed, repeat, top_k, more):
    params = {"seed": seed, "repeat_penalty": repeat, "top_k": top_k, "max_tokens": 16, "frequency_penalty": 0.2, **more}
    with toy_engine() as plain, toy_engine(drafter=scripted(script)) as speculative:
        one, other = plain.generate([5, 6], logprobs=2, **params), speculative.generate([5, 6], logprobs=2, **params)
    assert one.tokens == other.tokens
    assert [(p.logprob, p.top_logprobs) for p in one.pieces] == [(p.logprob, p.top_logprobs) for p in other.pieces]


@settings(max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=9), min_size=1, max_size=7),
    slots=st.integers(1, 4),
    script=scripts,
)
def test_sequences_beside_each_other_are_what_they_are_alone(prompts, slots, script):
    with toy_engine(slots=slots, drafter=scripted(script)) as engine:
        results = engine.generate(prompts, max_tokens=12, **GREEDY)
    assert [list(result.tokens) for result in results] == [ToyModel().plain(prompt, 12) for prompt in prompts]


def test_a_drafter_is_told_of_every_round_and_of_nothing_else():
    with toy_engine(drafter=scripted([(2, 1), (0, 0)]), n_max=3) as engine:
        engine.generate([1, 2], max_tokens=6, **GREEDY)
        (drafter,) = engine._drafters
    kinds = [event[0] for event in drafter.events]
    # the last round has but one token left to emit, so that nothing can be drafted
    assert kinds == ["begin", "draft", "accept", "draft", "accept", "accept", "end", "close"]
    assert drafter.events[0] == ("begin", 3, 0)
    verdicts = [event[1] for event in drafter.events if event[0] == "accept"]
    assert [(v.n_offered, v.n_accepted, v.n_emitted, v.is_used) for v in verdicts[:2]] == [(3, 2, 3, True), (0, 0, 1, False)]


def test_no_drafter_is_called_where_nothing_may_be_drafted():
    with toy_engine(drafter=scripted([(2, 0)])) as engine:
        result = engine.generate([1, 2], max_tokens=6, speculative={"n_max": 0}, **GREEDY)
        (drafter,) = engine._drafters
        assert drafter.events == []
    assert result.stats.n_rounds == 6


def test_what_exceeds_the_limit_is_cut_and_what_is_short_thrown_away():
    with toy_engine(drafter=scripted([(6, 0)]), n_max=4) as engine:
        assert engine.generate([1], max_tokens=11, **GREEDY).stats.accepted_by_position == (2, 2, 2, 2)
        assert engine.generate([1], max_tokens=9, speculative={"n_max": 1}, **GREEDY).stats.accepted_by_position == (4,)
        assert engine.generate([1], max_tokens=3, speculative={"n_min": 3}, **GREEDY).stats.n_drafted == 0


PERFECT = scripted([(8, 0)])


@pytest.mark.parametrize("drafter", [None, PERFECT, scripted([(1, 3)])])
@pytest.mark.parametrize("n_prompt", [1, 9, 10])
def test_a_full_context_ends_a_request_cleanly(drafter, n_prompt):
    prompt = list(range(n_prompt))
    with toy_engine(n_ctx=10, drafter=drafter) as engine:
        result = engine.generate(prompt, **GREEDY)
    assert result.finish_reason == "context"
    assert list(result.tokens) == ToyModel().plain(prompt, 10 - n_prompt + 1)
    if drafter is PERFECT:
        assert result.stats.n_rounds == min(2, len(result.tokens)), "a draft may fill the context"


def test_a_request_reuses_what_its_slot_still_holds():
    with toy_engine() as engine:
        first = engine.generate([1, 2, 3, 4], max_tokens=4, **GREEDY)
        again = engine.generate([1, 2, 3, 4, *first.tokens, 9], max_tokens=4, **GREEDY)
        fresh = engine.generate([1, 2, 3, 4, *first.tokens, 9], max_tokens=4, cache_prompt=False, **GREEDY)
    assert (again.stats.n_reused, fresh.stats.n_reused) == (7, 0)  # the last token was emitted, but never stored
    assert again.tokens == fresh.tokens


def test_a_long_prompt_is_processed_in_chunks_between_the_rounds_of_others():
    with toy_engine(n_ctx=2000, slots=2) as engine:
        running = engine.submit([1, 2], max_tokens=1900, **GREEDY)
        pieces = iter(running)
        next(pieces)
        long = engine.generate([3] * 900, max_tokens=2, **GREEDY)
        running.cancel()
        batches = engine._worker._loop._context.model.batches
    assert list(long.tokens) == ToyModel(n_ctx=2000).plain([3] * 900, 2)
    sizes = [len(batch.tokens) for batch in batches]
    assert max(sizes) <= 512
    assert sum(len(set(batch.slots.tolist())) == 2 for batch in batches) >= 2


def test_prompts_beside_each_other_share_what_a_pass_takes_of_prompts():
    prompts = [[1], [2] * 300, [3] * 300]
    with toy_engine(n_ctx=500, slots=3) as engine:
        gate, model = Gate(engine), engine._worker._loop._context.model
        runnings = [engine.submit(prompts[0], max_tokens=20, **GREEDY)]
        assert gate.has_begun.wait(60)
        runnings += [engine.submit(prompt, max_tokens=20, **GREEDY) for prompt in prompts[1:]]
        gate.open()
        tokens = [list(running.result().tokens) for running in runnings]
    assert tokens == [ToyModel(n_ctx=500).plain(prompt, 20) for prompt in prompts]
    assert [len(batch.tokens) for batch in model.batches[1:4]] == [129] * 3, "a token of the first request, and 128 of prompts"


def test_a_text_that_was_evaluated_need_not_be_computed_again():
    with toy_engine() as engine:
        engine.evaluate([1, 2, 3, 4])
        assert engine.generate([1, 2, 3, 4, 5], max_tokens=1, **GREEDY).stats.n_reused == 4


class SteppingDrafter(ScriptedDrafter):
    """Takes five steps to begin with a prompt, and writes them into a log that it shares with the model's passes."""

    n_steps = 5

    def __init__(self, model):
        super().__init__(model)
        self.log = model.__dict__.setdefault("log", [])
        model.on_forward = lambda: self.log.append(sorted(set(model.batches[-1].slots.tolist())))

    def begin(self, history, n_reused):
        super().begin(history, n_reused)
        for i in range(self.n_steps):
            yield
            self.step(i)

    def step(self, i):
        self.log.append(f"step {i}")

    def draft(self, history, limit):
        self.log.append("draft")
        return super().draft(history, limit)


def test_others_decode_between_the_steps_of_a_drafter_s_begin():
    with toy_engine(slots=2, drafter=SteppingDrafter) as engine:
        model, both = engine._worker._loop._context.model, threading.Event()
        log_pass = model.on_forward
        model.on_forward = lambda: both.wait() and log_pass()
        other = engine.submit([1, 2], max_tokens=40, speculative={"n_max": 0}, **GREEDY)
        running = engine.submit([3, 4, 5], max_tokens=12, **GREEDY)
        both.set()
        assert list(running.result().tokens) == ToyModel().plain([3, 4, 5], 12)
        assert list(other.result().tokens) == ToyModel().plain([1, 2], 40)
    start, end = model.log.index("step 0"), model.log.index("draft")
    assert model.log[start - 1 : end] == [[0], "step 0", [0], "step 1", [0], "step 2", [0], "step 3", [0], "step 4"]
    assert model.log[end + 1] == [0, 1]


def test_alone_a_begin_in_steps_changes_neither_passes_nor_tokens():
    results = []
    for drafter in (SteppingDrafter, ScriptedDrafter):
        with toy_engine(drafter=drafter) as engine:
            results.append(engine.generate([1, 2, 3], max_tokens=20, **GREEDY))
    one, other = results
    assert one.tokens == other.tokens
    assert one.stats.draft_lengths == other.stats.draft_lengths


def test_a_request_cancelled_while_its_drafter_begins_ends_without_the_rest():
    running = []

    class Cancelling(SteppingDrafter):
        def step(self, i):
            super().step(i)
            if i == 2 and len(running) == 1:
                running[0].cancel()

    with toy_engine(drafter=Cancelling) as engine:
        held = threading.Event()
        (drafter,) = engine._drafters
        drafter.model.on_forward = held.wait
        running.append(engine.submit([1, 2], max_tokens=9, **GREEDY))
        held.set()
        result = running[0].result()
        assert (result.finish_reason, list(result.tokens)) == ("cancelled", ToyModel().plain([1, 2], 1))
        assert (result.stats.n_emitted, result.stats.n_rounds) == (1, 1)
        assert drafter.log == ["step 0", "step 1", "step 2"]
        assert [event[0] for event in drafter.events] == ["begin", "end"]
        running.append(None)
        assert list(engine.generate([1, 2, 3], max_tokens=9, **GREEDY).tokens) == ToyModel().plain([1, 2, 3], 9)


def test_the_steps_of_a_begin_are_prompt_time_and_what_catching_up_is_expected_to_take(monkeypatch):
    now = [0.0]
    for module in ("speculation.drafter_guard", "engine.loop", "engine.round_pass", "engine.stats"):
        monkeypatch.setattr(f"augury.{module}.perf_counter", lambda: now[0])
    seen = []

    class Slow(SteppingDrafter):
        def __init__(self, model):
            super().__init__(model)
            model.on_forward = lambda: now.__setitem__(0, now[0] + 100)

        def step(self, i):
            now[0] += 1

        def accept(self, history, verdict):
            super().accept(history, verdict)
            now[0] += 0.5

    planner = planner_of(PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 9.0)], 64), False)
    monkeypatch.setattr(DraftCost, "observe_prompt", lambda _, *told: seen.append(told))
    with toy_engine(drafter=Slow, planner=planner) as engine:
        stats = engine.generate([1, 2, 3], max_tokens=3, **GREEDY).stats
    n, drafter = stats.n_rounds - 1, stats.drafters["scripted"]
    assert (drafter.begin_s, drafter.accept_s) == (5, 0.5 * n)
    assert (stats.timings.prompt_s, stats.timings.predict_s) == (105, 100.5 * n - 0.5), "until the last token came"
    assert seen == [(4, 5.0)]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "on a thread"])
def test_interruptions_are_time_that_teaches_the_planner_nothing(is_elsewhere, monkeypatch):
    now, of_passes, of_drafts = [0.0], [], []
    for module in ("speculation.drafter_guard", "engine.loop", "engine.round_pass"):
        monkeypatch.setattr(f"augury.{module}.perf_counter", lambda: now[0])

    def work(own_s, lost_s):
        now[0] += own_s + lost_s
        interrupted.seconds += lost_s

    class Interrupted(ScriptedDrafter):
        def __init__(self, model):
            super().__init__(model, [(2, 1)])

        def draft(self, history, limit):
            work(0.25, 0.5)
            return super().draft(history, limit)

    class Told(DraftPlanner):
        def observe_round(self, rounds, depth, n_others, pass_s, overhead_s=None):
            of_passes.append(pass_s)

        def observe_draft(self, drafter, k, seconds):
            of_drafts.append(seconds)

    planner, rounds = planner_of(PassCosts([PassTime(1, 0, 1.0), PassTime(9, 0, 1.0)], 64), False, kind=Told), []
    observers = (lambda **seen: rounds.append(seen["round"]), None)
    with toy_engine(drafter=Interrupted, planner=planner, observers=observers) as engine:
        context = engine._worker._loop._context
        if is_elsewhere:
            context.begin_on_thread()
        context.model.on_forward = lambda: work(8, 4)
        stats = engine.generate([1, 2, 3], max_tokens=9, **GREEDY).stats
    assert of_passes == [8] * len(of_passes) != []
    assert of_drafts == [0.25] * len(of_drafts) != []
    assert {each.forward_s for each in rounds} == {12}, "what users are told is all of it"
    assert stats.drafters["scripted"].draft_s == 0.75 * len(of_drafts)


def test_a_pass_takes_what_its_device_says(monkeypatch):
    monkeypatch.setattr(ArrayPass, "wait", lambda _: 1000.0)
    rounds = []
    with toy_engine(observers=(lambda **seen: rounds.append(seen["round"]), None)) as engine:
        stats = engine.generate([1, 2], max_tokens=3, **GREEDY).stats
    assert [each.forward_s for each in rounds] == [1000] * 3
    assert stats.timings.prompt_s == 1000
    assert measure_passes(ToyModel(), 4).seconds(1, 0) == 1000


def test_prompt_time_is_its_own_tokens_time_whoever_shares_its_passes_or_goes_before(monkeypatch):
    now = [0.0]
    for module in ("engine.loop", "engine.round_pass", "engine.stats"):
        monkeypatch.setattr(f"augury.{module}.perf_counter", lambda: now[0])
    with toy_engine(n_ctx=2000, slots=2) as engine:
        model, held = engine._worker._loop._context.model, threading.Event()
        model.on_forward = lambda: held.wait() and now.__setitem__(0, now[0] + len(model.batches[-1].tokens))
        prompts = [[1, 2], [3] * 300, [4] * 700, [5] * 600]
        runnings = [engine.submit(prompt, max_tokens=20, **GREEDY) for prompt in prompts]
        held.set()
        stats = [running.result().stats for running in runnings]
        batches = [len(set(batch.slots.tolist())) for batch in model.batches]
    assert max(batches) == 2, "the test must see passes of two sequences"
    for each in stats:
        assert each.timings.n_prompt == each.n_prompt - each.n_reused
        assert each.timings.prompt_s == pytest.approx(each.timings.n_prompt)
        assert each.timings.prompt_per_second == pytest.approx(1)


def test_a_prompt_cancelled_half_way_counts_what_was_processed():
    with toy_engine(n_ctx=2000) as engine:
        model, running = engine._worker._loop._context.model, []
        held = threading.Event()
        model.on_forward = lambda: held.wait() and running[0].cancel()
        running.append(engine.submit([3] * 900, max_tokens=5, **GREEDY))
        held.set()
        stats = running[0].result().stats
    assert (stats.n_prompt, stats.timings.n_prompt, stats.n_emitted) == (900, 512, 0)


def test_observers_see_rounds_and_requests_whose_sums_agree():
    rounds, summaries = [], []
    observers = (lambda **seen: rounds.append(seen["round"]), lambda **seen: summaries.append(seen["summary"]))
    with toy_engine(slots=2, drafter=scripted([(2, 1)]), observers=observers) as engine:
        runnings = [engine.submit([1], id="one", max_tokens=9, **GREEDY), engine.submit([2, 3], max_tokens=9, **GREEDY)]
        results = [running.result() for running in runnings]
    ids = {running.id for running in runnings}
    assert ids == {result.id for result in results} == {each.id for each in summaries}
    assert ids == {name for each in rounds for name in each.ids}
    assert "one" in ids
    assert all(len(each.ids) == each.n_sequences for each in rounds)
    assert sum(each.n_emitted for each in rounds) == 18
    assert sum(each.n_accepted for each in rounds) == sum(result.stats.n_accepted for result in results)
    assert sum(each.n_drafted for each in rounds) == sum(result.stats.n_drafted for result in results)
    assert sorted(each.n_prompt for each in summaries) == [1, 2]
    assert np.isfinite([each.forward_s for each in rounds]).all()


def test_an_observer_changes_nothing_for_the_caller():
    with toy_engine(drafter=scripted([(1, 0)]), observers=(None, lambda summary: summary.effective.clear())) as engine:
        assert engine.generate([1], max_tokens=3, **GREEDY).stats.effective["type"] == "scripted"


def test_a_failing_observer_is_logged_and_harms_no_request(caplog):
    def failing(**seen):
        raise RuntimeError("cannot watch")

    with toy_engine(observers=(failing, failing)) as engine:
        result = engine.generate([1], max_tokens=5, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1], 5)
    assert "cannot watch" in caplog.text


def test_observers_see_every_request_that_was_submitted_once(monkeypatch):
    ids = []
    with toy_engine(observers=(None, lambda summary: ids.append((summary.id, summary.n_prompt)))) as engine:
        for _ in engine.stream([1], id="dropped", **GREEDY):
            break
        gate = Gate(engine)
        running = engine.submit([1, 2], id="running", max_tokens=2, **GREEDY)
        assert gate.has_begun.wait(60)
        waiting = engine.submit([1, 2, 3], id="cancelled in the queue", **GREEDY)
        waiting.cancel()
        gate.open()
        assert (running.result().finish_reason, waiting.result().finish_reason) == ("length", "cancelled")

        def refuse():
            raise ModelFileError("cut short")

        monkeypatch.setattr(engine._worker._loop.slots, "_check", refuse)
        with pytest.raises(ModelFileError):
            engine.generate([1, 2, 3, 4], id="refused", **GREEDY)
    assert sorted(ids) == sorted([("dropped", 1), ("running", 2), ("cancelled in the queue", 3), ("refused", 4)])


def test_a_request_and_its_drafters_are_logged_where_someone_listens(caplog):
    with toy_engine(drafter=scripted([(2, 1)])) as engine:
        engine.generate([1, 2], max_tokens=6, **GREEDY)
        assert caplog.text == ""
        with caplog.at_level("INFO", logger="augury.engine.loop"):
            engine.generate([1, 2], id="mine", max_tokens=6, **GREEDY)
    assert "request done" in caplog.text
    assert ["id=mine" in each.message for each in caplog.records] == [True, True]
    assert "emitted=6" in caplog.text
    assert "drafter=scripted" in caplog.text
