"""The engine as its callers see it: threads, cancelling, errors."""

import copy
import pickle
import re
import threading
import time

import numpy as np
import pytest
from support.more_toys import registry_with_toys
from support.toys import Gate, ScriptedDrafter, ToyModel, toy_engine

from augury.engine.channel import Channel
from augury.engine.engine import Engine
from augury.errors import AuguryError, CapacityError, OptionError, UnsupportedError
from augury.testing.toys import TINY_TARGET
from augury.text.chat_template import ChatTemplate
from augury.text.renderer import Renderer

GREEDY = {"temperature": 0.0}


@pytest.fixture
def engine():
    with toy_engine(n_ctx=600, slots=2) as made:
        yield made


def test_a_lack_of_memory_is_a_capacity_error_at_load_and_in_a_request(engine, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("Unable to allocate 183. GiB")

    monkeypatch.setattr(ToyModel, "forward", fail)
    with pytest.raises(CapacityError, match="there is too little memory: Unable to allocate 183"):
        engine.generate([1, 2], max_tokens=7)
    monkeypatch.setattr("augury.engine.engine.Loader.open", fail)
    with pytest.raises(CapacityError, match="there is too little memory: Unable to allocate 183"):
        Engine.load("model.gguf")


def test_an_engine_is_shown_by_its_model_and_what_was_chosen():
    with Engine.load(TINY_TARGET, backend="toy", spec_type="none", n_ctx=64, slots=2, registry=registry_with_toys()) as engine:
        assert repr(engine) == f"Engine(model={TINY_TARGET!r}, backend='toy', spec_type='none', n_slots=2, n_ctx=64)"


def test_requests_without_an_id_are_told_apart_and_two_may_be_given_the_same(engine):
    made = [engine.generate([1], max_tokens=1).id for _ in range(2)]
    assert len(set(made)) == 2
    assert all(re.fullmatch(r"req-\d+", each) for each in made)
    assert [each.id for each in engine.generate([[1], [2]], id="same", max_tokens=1)] == ["same", "same"]


def test_an_iterator_that_is_given_up_cancels_and_frees_its_slot(engine):
    running = engine.submit([1], max_tokens=590, **GREEDY)
    for _ in running:
        break
    result = running.result()
    assert result.finish_reason == "cancelled"
    assert len(result.tokens) < 590
    assert len(engine.generate([[1], [2], [3]], max_tokens=3, **GREEDY)) == 3


def test_a_waiting_request_can_be_cancelled(engine):
    busy = [engine.submit([1], **GREEDY) for _ in range(2)]
    waiting = engine.submit([2], **GREEDY)
    waiting.cancel()
    assert waiting.result().tokens == ()
    assert (waiting.result().stats.timings.n_prompt, waiting.result().stats.n_reused) == (0, 0)
    for running in busy:
        running.cancel()
        running.result()


def test_evaluate_gives_every_row_or_those_asked_for(engine):
    tokens = np.random.default_rng(0).integers(0, 16, 590)
    logits = engine.evaluate(tokens)
    toy = ToyModel(n_ctx=600)
    expected = np.array([toy.logits(tokens[: i + 1]) for i in (0, 511, 512, 589)], np.float32)
    assert logits.shape == (590, 16)
    assert np.array_equal(logits[[0, 511, 512, 589]], expected)
    assert np.array_equal(engine.evaluate(tokens, rows=[512, 0, 0]), logits[[512, 0, 0]])


def test_evaluate_waits_for_a_free_slot(engine):
    busy = [engine.submit([1], max_tokens=100, **GREEDY) for _ in range(2)]
    assert engine.evaluate([1, 2]).shape == (2, 16)
    assert [len(running.result().tokens) for running in busy] == [100, 100]


def test_an_evaluation_that_waits_for_a_slot_holds_up_no_other_step(tmp_path):
    with toy_engine(slots=1) as engine:
        gate, saved, logits = Gate(engine), [], []
        running = engine.submit([1], max_tokens=40, **GREEDY)
        assert gate.has_begun.wait(60)
        evaluating = threading.Thread(target=lambda: logits.append(engine.evaluate([1, 2])))
        evaluating.start()
        while engine._worker._engine_thread.inbox.empty():
            time.sleep(0.001)
        saving = threading.Thread(target=lambda: saved.append(engine.save_slot(0, tmp_path / "slot")))
        saving.start()
        while engine._worker._engine_thread.inbox.qsize() < 2:
            time.sleep(0.001)
        gate.open()
        for thread in (evaluating, saving):
            thread.join()
        assert len(saved[0].tokens) < 40  # while the request still ran, for which the evaluation waited
        assert logits[0].shape == (2, 16)
        assert len(running.result().tokens) == 40


def test_whoever_wants_to_know_is_told_how_far_the_prompt_is():
    with toy_engine(n_ctx=3000, slots=2) as engine:
        told = []
        engine.generate([1] * 1200, max_tokens=3, on_prompt=told.append, n=2, **GREEDY)
        engine.generate([1] * 1200 + [2], max_tokens=3, on_prompt=told.append, **GREEDY)
    found = [(each.n_prompt, each.n_reused, each.n_processed) for each in told]
    assert found[:4] == [(1200, 0, 0), (1200, 0, 512), (1200, 0, 1024), (1200, 0, 1200)]
    assert found[4:] == [(1201, 1200, 1200), (1201, 1200, 1201)]
    assert [each.seconds for each in told[:4]] == sorted(each.seconds for each in told[:4])


def test_a_callable_that_fails_when_told_of_the_prompt_ends_nothing(caplog):
    with toy_engine(kind=Engine) as engine:
        assert len(engine.generate([1, 2], max_tokens=3, on_prompt=lambda _: 1 / 0, **GREEDY).tokens) == 3


def test_requests_go_on_beside_a_long_evaluation():
    with toy_engine(n_ctx=3000, slots=2) as engine:
        toy = engine._worker._loop._context.model
        runnings = []

        def submit_once():
            if not runnings:
                runnings.append(engine.submit([1], max_tokens=3, **GREEDY))

        toy.on_forward = submit_once
        engine.evaluate([1] * 2900, rows=[0])  # in six chunks
        assert len(runnings[0].result().tokens) == 3
        is_evaluation = [len(batch.tokens) > 1 for batch in toy.batches]
    assert is_evaluation[:7] == [True, False, True, False, True, False, True]


def test_an_evaluation_that_is_interrupted_frees_its_slot(monkeypatch):
    def interrupted(channel, wakers, end):
        raise KeyboardInterrupt

    with toy_engine(n_ctx=3000, slots=1) as engine:
        toy, was_interrupted = engine._worker._loop._context.model, threading.Event()
        toy.on_forward = lambda: was_interrupted.wait(30)
        monkeypatch.setattr(Channel, "block", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.evaluate([1] * 2900, rows=[0])
        monkeypatch.undo()
        was_interrupted.set()
        assert len(engine.generate([1], max_tokens=3, **GREEDY).tokens) == 3
        assert sum(len(batch.tokens) > 1 for batch in toy.batches) <= 1


def test_closing_the_engine_ends_evaluations():
    engine = toy_engine(n_ctx=3000, slots=1)
    has_begun = threading.Event()
    outcome = []

    def stay_until_closing():
        has_begun.set()
        while engine._worker._engine_thread.inbox.empty():
            time.sleep(0.001)

    def evaluate():
        with pytest.raises(AuguryError, match="closed") as caught:
            engine.evaluate([1] * 2900, rows=[0])
        outcome.append(caught.value)

    engine._worker._loop._context.model.on_forward = stay_until_closing
    evaluating = threading.Thread(target=evaluate)
    evaluating.start()
    assert has_begun.wait(30)
    engine.close()
    evaluating.join()
    assert len(outcome) == 1


@pytest.mark.parametrize("rows", [[2], [-1], ["a"], [0.5], [10**30]])
def test_rows_that_are_no_positions_are_refused(engine, rows):
    with pytest.raises(OptionError, match="expected 0 to 1"):
        engine.evaluate([1, 2], rows=rows)


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": -1},
        {"slots": None},
        {"backend": None},
        {"memory": None},
        {"spec_type": None},
        {"spec_type": [5]},
        {"spec_timeout": 0},
        {"spec_timeout": float("nan")},
        {"spec_timeout": "long"},
        {"spec_options": 5},
        {"spec_type": "ngram-simple", "spec_options": {"ngram-simple": 5}},
        {"spec_type": "ngram-simple", "spec_options": {"ngram-simple": {5: 5}}},
    ],
)
def test_options_of_the_wrong_kind_are_refused_before_anything_is_loaded(options):
    with pytest.raises(OptionError, match="expected"):
        Engine.load("/absent.gguf", **options)


def test_a_closed_engine_says_so():
    engine = toy_engine(drafter=ScriptedDrafter)
    running = engine.submit([1], **GREEDY)
    engine.close()
    engine.close()
    assert running.result().finish_reason in {"cancelled", "length"}
    with pytest.raises(AuguryError, match="closed"):
        engine.generate([1], **GREEDY)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_engine_cannot_be_copied_into_another_process_or_object(engine, copied):
    with pytest.raises(TypeError, match="cannot be pickled or copied; load it in the process that uses it"):
        copied(engine)


def test_a_closed_engine_takes_the_process_along_that_renders_templates(monkeypatch):
    monkeypatch.setattr("augury.text.chat_template.Renderer", Renderer)  # not that of all tests
    with toy_engine() as engine:
        engine.chat_template = ChatTemplate("a")
        assert engine.chat_template.render([{"role": "user", "content": "b"}]) == "a"
        process = engine.chat_template._renderer._process
        assert process.poll() is None
    assert process.poll() is not None


def test_an_idle_engine_uses_no_processor_time(engine):
    engine.generate([1], max_tokens=3, **GREEDY)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], {}, OptionError, "prompt is empty"),
        ([16], {}, OptionError, "token 16, the vocabulary has tokens 0 to 15"),
        ([-1], {}, OptionError, "token -1"),
        ([2**40], {}, OptionError, "token 1099511627776"),
        ([1.5], {}, OptionError, "expected a text or a list of token ids"),
        ({"role": "user", "content": "Hi"}, {}, OptionError, "list of token ids; give a conversation as messages"),
        ([1] * 601, {}, CapacityError, "601 tokens"),
        (None, {}, OptionError, "neither a prompt nor messages are given"),
        ([1], {"messages": [{"role": "user", "content": "Hi"}]}, OptionError, "a prompt and messages are both given"),
        ("text", {}, UnsupportedError, "no tokenizer"),
        (None, {"messages": [{"role": "user", "content": "Hi"}]}, UnsupportedError, "no tokenizer"),
        ([1], {"temprature": 1}, OptionError, "did you mean 'temperature'"),
        ([1], {"max_tokens": 0}, OptionError, "max_tokens is 0"),
        ([1], {"id": ""}, OptionError, "id is '', expected a text that is not empty"),
        ([1], {"id": 5}, OptionError, "id is 5"),
        ([1], {"max_tokens": "many"}, OptionError, "max_tokens is 'many'"),
        ([1], {"stop": ["x", ""]}, OptionError, "stop is"),
        ([1], {"stop": 5}, OptionError, "stop is 5"),
        ([1], {"logit_bias": dict.fromkeys(range(16), float("-inf"))}, OptionError, "leave at least one"),
        ([1], {"speculative": {5: 5}}, OptionError, "there is no 5"),
        ([1], {"speculative": {"none": 5}}, OptionError, "there is no 'none'"),
        ([1], {"stop": "x"}, UnsupportedError, "no tokenizer"),
        ([1], {"logprobs": -1}, OptionError, "logprobs is -1"),
        ([1], {"ignore_eos": "yes"}, OptionError, "ignore_eos is 'yes'"),
        ([1], {"speculative": {"n_mx": 1}}, OptionError, "did you mean 'n_max'"),
        ([1], {"speculative": {"n_max": -1}}, OptionError, "n_max is -1"),
        ([1], {"speculative": {"type": "ngram-simple"}}, OptionError, "loaded with 'none'"),
        ([1], {"speculative": 3}, OptionError, "expected True, False or a mapping"),
    ],
)
def test_bad_requests_are_refused_with_what_was_expected(engine, prompt, params, error, message):
    with pytest.raises(error, match=message):
        engine.generate(prompt, **params)
