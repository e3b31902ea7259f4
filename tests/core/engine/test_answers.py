"""Several answers to one prompt: those of as many requests, from a prompt that is processed once."""

import numpy as np
import pytest
from oracles.drafts import HEADS, MTP, agreeing
from oracles.models import tiny_model
from support.drafter_specs import head_specs, target_for
from support.toys import Gate, toy_engine

from augury import Engine
from augury.errors import OptionError
from augury.slot_states import SlotStates
from augury.testing.toy_model import ToyModel

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 128, 90)]
WAY = {"temperature": 0.9, "seed": 11, "max_tokens": 24, "ignore_eos": True, "logprobs": 1}


def outputs(results):
    return [[(piece.token, piece.logprob) for piece in result.pieces] for result in results]


@pytest.mark.sample(8)
@pytest.mark.parametrize("spec_type", ["none", "suffix"])
@pytest.mark.parametrize("slots", [1, 3, 4])
@pytest.mark.parametrize(
    ("model", "backend", "n_again"),  # computed again by each of the others
    [("llama-dense", "numba-cpu", 1), ("falcon-h1-dense", "numba-cpu", 4), ("lfm2-dense", "reference", 4)],
)
def test_they_are_those_of_separate_requests_and_the_prompt_is_processed_once(model, backend, n_again, slots, spec_type):
    how = {"backend": backend, "threads": 1, "n_ctx": 160, "spec_fixed": True}
    with Engine.load(tiny_model(model), spec_type="none", **how) as engine:
        alone = [engine.generate(PROMPT, cache_prompt=False, **WAY | {"seed": 11 + i}) for i in range(4)]
    with Engine.load(tiny_model(model), spec_type=spec_type, slots=slots, **how) as engine:
        results = engine.generate(PROMPT, n=4, **WAY)
        counts = engine.stats().counts
    assert outputs(results) == outputs(alone)
    assert len({result.tokens for result in results}) == 4
    assert counts.n_prompt == len(PROMPT) + 3 * n_again
    assert [result.stats.n_reused for result in results] == [0] + [len(PROMPT) - n_again] * 3


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        *(("llama-dense", head) for head in HEADS),
        ("falcon-h1-dense", "draft-eagle3"),
        *((name, "draft-mtp") for name in ("mtp-deepseek2", "mtp-qwen35", "mtp-step35")),
    ],
)
def test_drafters_that_read_hidden_states_take_the_prompt_over_too(name, drafter):
    path, how = (
        agreeing(name) if name in MTP else target_for(drafter, name),
        {"backend": "numba-cpu", "threads": 1, "n_ctx": 160},
    )
    spec, found = head_specs(name)[drafter] if drafter in HEADS else drafter, []
    for spec_type in ("none", spec):
        with Engine.load(path, spec_type=spec_type, spec_fixed=True, slots=3, **how) as engine:
            found.append(engine.generate(PROMPT, n=3, **WAY))
    assert outputs(found[0]) == outputs(found[1])
    for plain, drafted in zip(*found, strict=True):
        assert drafted.stats.n_reused >= plain.stats.n_reused - (drafter == "draft-eagle3")  # which lags behind by a token
        assert drafted.stats.n_drafted > drafted.stats.n_accepted > 0


def test_every_prompt_has_its_answers_in_order():
    with toy_engine(slots=2) as engine:
        several = engine.generate([[1, 2], [3]], n=2, max_tokens=3, temperature=0.9, seed=5)
        for seed in (np.int64(5), "5"):
            again = engine.generate([[1, 2], [3]], n=2, max_tokens=3, temperature=0.9, seed=seed)
            assert [[one.tokens for one in each] for each in again] == [[one.tokens for one in each] for each in several]
        for prompt, results in zip([[1, 2], [3]], several, strict=True):
            expected = [engine.generate(prompt, max_tokens=3, temperature=0.9, seed=seed) for seed in (5, 6)]
            assert [result.tokens for result in results] == [result.tokens for result in expected]
        assert [len(engine.generate([1], n=1, max_tokens=2))] == [1]
        assert [running.result().stats.id for running in engine.submit([1], n=2, id="mine")] == ["mine", "mine"]
        assert len({result.tokens for result in engine.generate([1], n=4, max_tokens=20, temperature=2.0)}) > 1


def test_the_others_wait_for_the_prompt_and_let_requests_behind_them_pass():
    with toy_engine(slots=3) as engine:
        gate = Gate(engine)
        first, second = engine.submit([1, 2, 3, 4], n=2, max_tokens=8, temperature=0.0)
        assert gate.has_begun.wait(60)
        behind = engine.submit([9, 9], max_tokens=8, temperature=0.0)
        gate.open()
        assert [each.result().stats.n_reused for each in (first, second, behind)] == [0, 3, 0]
        model = engine._worker._loop._context.model
        assert len(model.batches[0].tokens) == 4  # the first answer's prompt alone
        assert sorted(model.batches[1].tokens.tolist())[-2:] == [9, 9]  # the request behind, before the second answer


def test_where_the_first_is_cancelled_before_its_first_token_the_others_go_on():
    with toy_engine(slots=2) as engine:
        gate = Gate(engine)
        first, *others = engine.submit([1, 2, 3], n=3, max_tokens=4, temperature=0.0)
        assert gate.has_begun.wait(60)
        first.cancel()
        gate.open()
        assert [len(other.result().tokens) for other in others] == [4, 4]
        assert first.result().finish_reason == "cancelled"


def test_where_the_first_is_cancelled_before_it_has_a_slot_the_others_go_on():
    with toy_engine() as engine:
        gate = Gate(engine)
        before = engine.submit([9], max_tokens=1)
        assert gate.has_begun.wait(60)
        first, *others = engine.submit([1, 2, 3], n=3, max_tokens=4, temperature=0.0)
        first.cancel()
        gate.open()
        engine.generate([7], max_tokens=1)  # waits behind them
        assert before.is_done
        assert all(other.is_done for other in others)


def test_a_running_requests_prompt_is_copied_for_any_that_begins_like_it():
    with toy_engine(slots=3) as engine:
        gate = Gate(engine)
        running = engine.submit([1, 2, 3, 4], max_tokens=30, temperature=0.0)
        assert gate.has_begun.wait(60)
        others = [engine.submit([1, 2, 3, 9], max_tokens=4, temperature=0.0, cache_prompt=each) for each in (True, False)]
        gate.open()
        found, plain = (other.result() for other in others)
        running.result()
    assert (found.stats.n_reused, plain.stats.n_reused) == (3, 0)
    assert found.tokens == plain.tokens


def test_a_backend_that_cannot_copy_slots_processes_the_prompt_again(monkeypatch):
    monkeypatch.setattr(ToyModel, "slot_memory", SlotStates.slot_memory)
    with toy_engine(slots=2) as engine:
        gate = Gate(engine)
        runnings = engine.submit([1, 2, 3], n=3, max_tokens=4, temperature=0.0)
        gate.open()
        results = [running.result() for running in runnings]
        assert len({result.tokens for result in results}) == 1
        assert results[1].stats.n_reused == 0


@pytest.mark.parametrize(("n", "told"), [(0, "n is 0"), (True, "n is True"), ("2", "n is '2'"), (1.5, "n is 1.5")])
def test_a_number_of_answers_is_a_count(n, told):
    with toy_engine() as engine, pytest.raises(OptionError, match=told):
        engine.submit([1], n=n)


def test_a_stream_is_one_answer():
    with toy_engine() as engine, pytest.raises(OptionError, match="a stream is one answer"):
        engine.stream([1], n=2)
