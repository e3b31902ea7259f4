"""The loop by what its engine does: lossless, complete, and with every part told the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ScriptedDrafter, ToyModel, toy_engine

from augury.interfaces import Drafter
from augury.types import Draft

GREEDY = {"temperature": 0.0}
scripts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6)


def scripted(script):
    return lambda model: ScriptedDrafter(model, script)


@settings(deadline=None)
@given(script=scripts, n=st.integers(1, 24), n_max=st.integers(0, 6), n_min=st.integers(0, 3))
def test_any_script_of_drafts_gives_the_tokens_of_plain_decoding(script, n, n_max, n_min):
    with toy_engine(drafter=scripted(script), n_max=n_max, n_min=n_min) as engine:
        result = engine.generate([1, 2, 3], max_tokens=n, **GREEDY)
    stats = result.stats
    assert list(result.tokens) == ToyModel().plain([1, 2, 3], n)
    assert stats.n_emitted == len(result.tokens) == stats.n_rounds + stats.n_accepted
    assert sum(stats.accepted_by_position) == stats.n_accepted
    assert sum(piece.drafter == "scripted" for piece in result.pieces) == stats.n_accepted


@settings(deadline=None)
@given(script=scripts, seed=st.integers(0, 1000), repeat=st.sampled_from([1.0, 1.3]), top_k=st.sampled_from([0, 3]))
def test_the_same_seed_gives_the_same_tokens_with_any_drafter(script, seed, repeat, top_k):
    params = {"seed": seed, "repeat_penalty": repeat, "top_k": top_k, "max_tokens": 16, "frequency_penalty": 0.2}
    with toy_engine() as plain, toy_engine(drafter=scripted(script)) as speculative:
        one, other = plain.generate([5, 6], logprobs=2, **params), speculative.generate([5, 6], logprobs=2, **params)
    assert one.tokens == other.tokens
    assert [(p.logprob, p.top_logprobs) for p in one.pieces] == [(p.logprob, p.top_logprobs) for p in other.pieces]


@settings(deadline=None, max_examples=40)
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
        assert engine.generate([1], max_tokens=3, speculative={"n_min": 3}, **GREEDY).stats.n_drafted == 0


def test_tokens_that_the_target_does_not_have_end_a_draft():
    class Foreign(Drafter):
        name = "foreign"

        def draft(self, history, limit):
            return Draft([3, 99, 1])

    with toy_engine(drafter=lambda _: Foreign(None, None)) as engine:
        result = engine.generate([1], max_tokens=8, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1], 8)
    assert len(result.stats.accepted_by_position) == 1


@pytest.mark.parametrize("drafter", [None, scripted([(7, 0)]), scripted([(1, 3)])])
@pytest.mark.parametrize("n_prompt", [1, 9, 10])
def test_a_full_context_ends_a_request_cleanly(drafter, n_prompt):
    prompt = list(range(n_prompt))
    with toy_engine(n_ctx=10, drafter=drafter) as engine:
        result = engine.generate(prompt, **GREEDY)
    assert result.finish_reason == "length"
    assert list(result.tokens) == ToyModel().plain(prompt, 10 - n_prompt + 1)


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
        batches = engine._worker._loop._model.batches
    assert list(long.tokens) == ToyModel(n_ctx=2000).plain([3] * 900, 2)
    sizes = [len(batch.tokens) for batch in batches]
    assert max(sizes) <= 512
    assert sum(len(set(batch.slots.tolist())) == 2 for batch in batches) >= 2


def test_observers_see_rounds_and_requests_whose_sums_agree():
    rounds, summaries = [], []
    observers = (lambda **seen: rounds.append(seen["round"]), lambda **seen: summaries.append(seen["summary"]))
    with toy_engine(slots=2, drafter=scripted([(2, 1)]), observers=observers) as engine:
        results = engine.generate([[1], [2, 3]], max_tokens=9, **GREEDY)
    assert sum(each.n_emitted for each in rounds) == 18
    assert sum(each.n_accepted for each in rounds) == sum(result.stats.n_accepted for result in results)
    assert sum(each.n_drafted for each in rounds) == sum(result.stats.n_drafted for result in results)
    assert sorted(each.n_prompt for each in summaries) == [1, 2]
    assert np.isfinite([each.forward_s for each in rounds]).all()


def test_a_failing_observer_or_end_is_logged_and_harms_no_request(caplog):
    class Ending(ScriptedDrafter):
        def end(self):
            raise RuntimeError("cannot end")

    def failing(**seen):
        raise RuntimeError("cannot watch")

    with toy_engine(drafter=Ending, observers=(failing, failing)) as engine:
        result = engine.generate([1], max_tokens=5, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1], 5)
    assert "cannot end" in caplog.text
    assert "cannot watch" in caplog.text


def test_observers_see_cancelled_requests_too():
    summaries = []
    with toy_engine(observers=(None, lambda **seen: summaries.append(seen))) as engine:
        for _ in engine.stream([1], **GREEDY):
            break
    assert len(summaries) == 1


def test_a_request_and_its_drafters_are_logged_where_someone_listens(caplog):
    with toy_engine(drafter=scripted([(2, 1)])) as engine:
        engine.generate([1, 2], max_tokens=6, **GREEDY)
        assert caplog.text == ""
        with caplog.at_level("INFO", logger="augury.loop"):
            engine.generate([1, 2], max_tokens=6, **GREEDY)
    assert "request done" in caplog.text
    assert "emitted=6" in caplog.text
    assert "drafter=scripted" in caplog.text
