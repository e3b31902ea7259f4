"""Slots saved to files: what comes back, by whom, and what is refused."""

import shutil
from time import monotonic

import numpy as np
import pytest
from oracles.models import tiny_model
from support.more_toys import registry_with_toys
from support.toys import Gate, toy_engine

from augury.engine.engine import Engine
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError, UnsupportedError
from augury.testing.toys import TINY_TARGET

REGISTRY = registry_with_toys()
SAMPLED = {"temperature": 0.9, "seed": 5, "repeat_penalty": 1.2, "logit_bias": {3: -np.inf, 4: 0.5}, "ignore_eos": True}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3
BACKENDS = {
    "kv": ("toy", "auto"),
    "kept aside": ("toy-recurrent:is_hybrid=true", "auto"),
    "restored": ("toy-recurrent:is_hybrid=true,keeps_aside=false", "auto"),
    "reference": ("reference", "auto"),
    "numba-cpu": ("numba-cpu", "auto"),
}


def load(kind, model=None, **how):
    backend, memory = BACKENDS[kind]
    model = model or (TINY_TARGET if "toy" in backend else tiny_model("llama-dense"))
    how = {"spec_type": "ngram-simple:n=1,m=4", "spec_fixed": True, "n_ctx": 128, "threads": 1} | how
    return Engine.load(model, backend=backend, memory=memory, registry=REGISTRY, **how)


def answer(engine, prompt, n, **how):
    result = engine.generate(prompt, max_tokens=n, logprobs=0, **how)
    return list(result.tokens), [piece.logprob for piece in result.pieces], result.stats.n_reused


@pytest.mark.parametrize("n", [12, 13, 14])  # that end after accepted and rejected drafts
@pytest.mark.parametrize("kind", BACKENDS)
def test_a_saved_slot_goes_on_elsewhere_as_it_would_have_here(kind, n, tmp_path):
    with load(kind) as engine:
        whole = answer(engine, PROMPT, 30, **SAMPLED)
        engine.generate(PROMPT, max_tokens=n, **SAMPLED)
        saved = engine.save_slot(0, tmp_path / "slot")
    assert saved.tokens.tolist() == [*PROMPT, *whole[0][:n]]
    with load(kind, slots=3) as engine:
        loaded = engine.load_slot(2, tmp_path / "slot")
        assert dict(loaded.params) == dict(saved.params)
        assert np.array_equal(loaded.tokens, saved.tokens)
        assert np.array_equal(engine.save_slot(2, tmp_path / "again").tokens, saved.tokens)
        tokens, logprobs, n_reused = answer(engine, loaded.tokens, 30 - n, ignore_eos=True, **loaded.params)
    assert (tokens, logprobs) == (whole[0][n:], whole[1][n:])
    assert n_reused >= len(PROMPT)


@pytest.mark.parametrize("kind", ["kv", "kept aside", "restored"])
def test_the_slot_of_a_request_that_runs_is_saved_between_two_rounds(kind, tmp_path):
    with load(kind) as engine:
        whole = answer(engine, PROMPT, 80, **SAMPLED)
        running = engine.submit(PROMPT, max_tokens=80, **SAMPLED)
        pieces = iter(running)  # which cancels it where nobody holds it
        next(pieces)
        saved = engine.save_slot(0, tmp_path / "slot")
        assert list(running.result().tokens) == whole[0]
        n = len(saved.tokens) - len(PROMPT)
        assert 1 <= n <= 80
        assert saved.tokens.tolist() == [*PROMPT, *whole[0][:n]]
        engine.load_slot(0, tmp_path / "slot")
        if n < 80:
            assert answer(engine, saved.tokens, 80 - n, ignore_eos=True, **saved.params)[:2] == (whole[0][n:], whole[1][n:])


def damaged(data):
    yield data[:-1], "damaged"
    yield b"", "no saved slot"
    yield data[:20], "no saved slot"
    yield b"GGUF" + data[4:], "no saved slot"
    yield data[:8] + b"\x07" + data[9:], "version 7, expected 3"
    for at in range(12, len(data), max(len(data) // 40, 1)):
        yield data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], "damaged"


@pytest.mark.parametrize("kind", ["kv", "restored", "numba-cpu"])
def test_a_damaged_file_is_an_error_and_the_slot_is_as_it_was(kind, tmp_path):
    path = tmp_path / "slot"
    with load(kind) as engine:
        engine.generate(PROMPT, max_tokens=9, **SAMPLED)
        engine.save_slot(0, path)
        other = [7, 7, 8, 9, 7, 7, 8, 9]
        text = [*other, *engine.generate(other, max_tokens=9, **SAMPLED).tokens]
        for data, told in damaged(path.read_bytes()):
            path.write_bytes(data)
            with pytest.raises(ModelFileError, match=rf"{path}: .*{told}"):
                engine.load_slot(0, path)
        with pytest.raises(ModelFileError, match="could not be read"):
            engine.load_slot(0, tmp_path / "nothing")
        assert engine.generate([*text, 3], max_tokens=1).stats.n_reused >= len(text) - 4


def test_a_file_of_other_weights_another_manager_or_other_types_is_foreign(tmp_path):
    path = tmp_path / "slot"
    for name in ("llama-dense", "llama-dense-q4_0"):
        (tmp_path / name).mkdir()
        shutil.copy(tiny_model(name), tmp_path / name / "model.gguf")
    one, two = tmp_path / "llama-dense/model.gguf", tmp_path / "changed/model.gguf"
    two.parent.mkdir()
    data = bytearray(one.read_bytes())
    data[-len(data) // 4 :] = bytes(reversed(data[-len(data) // 4 :]))  # the same name and size
    two.write_bytes(data)
    with load("reference", one) as engine:
        engine.generate(PROMPT, max_tokens=3)
        engine.save_slot(0, path)
    for model in (two, tmp_path / "llama-dense-q4_0/model.gguf", TINY_TARGET):
        with (
            load("reference", model) as engine,
            pytest.raises(ModelFileError, match=r"saved with the weights of model, not of "),
        ):
            engine.load_slot(0, path)
    renamed = one.rename(tmp_path / "renamed.gguf")
    with load("reference", renamed) as engine:
        assert engine.load_slot(0, path).tokens[: len(PROMPT)].tolist() == PROMPT
    renamed.rename(one)
    with (
        load("reference", one, cache_type_k="f32") as engine,
        pytest.raises(ModelFileError, match=f"{path}: .*than this one .*f32"),
    ):
        engine.load_slot(0, path)
    with load("kv") as engine:
        engine.generate(PROMPT, max_tokens=3)
        engine.save_slot(0, path)
    with load("kept aside") as engine, pytest.raises(ModelFileError, match="was saved with memory 'contiguous'"):
        engine.load_slot(0, path)


def test_what_cannot_be_saved_or_loaded_is_told(tmp_path, monkeypatch):
    path = tmp_path / "slot"
    with load("kv", slots=2) as engine:
        for slot in (-1, 2, True, "0"):
            with pytest.raises(OptionError, match="expected 0 to 1"):
                engine.save_slot(slot, path)
        with pytest.raises(OptionError, match="slot 0 holds no request's text"):
            engine.save_slot(0, path)
        engine.generate(PROMPT, max_tokens=60, **SAMPLED)
        with pytest.raises(ModelFileError, match="could not be saved"):
            engine.save_slot(0, tmp_path / "no" / "folder")
        engine.save_slot(0, path)
        running = engine.submit(PROMPT, max_tokens=80, **SAMPLED)
        pieces = iter(running)  # which cancels it where nobody holds it
        next(pieces)
        with load("kv", n_ctx=32) as small, pytest.raises(CapacityError, match="which has 32 positions"):
            small.load_slot(0, path)
        assert running.result()
        memory = engine._worker._loop._context.memory
        monkeypatch.setattr(memory, "save", lambda slot: type(memory).__mro__[1].save(memory, slot))
        with pytest.raises(UnsupportedError, match="contiguous cannot save slots"):
            engine.save_slot(0, path)
    with pytest.raises(AuguryError, match="closed"):
        engine.load_slot(0, path)


def test_a_slot_in_use_is_not_written_over(tmp_path):
    with load("kv") as engine:
        engine.generate(PROMPT, max_tokens=9, **SAMPLED)
        engine.save_slot(0, tmp_path / "slot")
        running = engine.submit(PROMPT, max_tokens=100, **SAMPLED)
        model, told = engine._loader.models[0], []

        def load_slot():  # on the engine's thread, in the middle of the request
            model.on_forward = lambda: None
            try:
                engine._worker._loop._context.restore(0, b"")
            except CapacityError as error:
                told.append(str(error))

        model.on_forward = load_slot
        assert running.result()
        again = engine.submit(PROMPT, max_tokens=100, **SAMPLED)
        assert again.result().tokens == running.result().tokens
    assert told
    assert "which is in use" in told[0]


def test_a_request_waits_for_the_slot_that_it_names_and_those_after_it_do_not():
    with load("kv", slots=2) as engine:
        engine.generate(PROMPT, slot=1, max_tokens=2)
        gate = Gate(engine)
        first = engine.submit(PROMPT, slot=1, max_tokens=3)
        assert gate.has_begun.wait(60)
        named, other = engine.submit(PROMPT, slot=1, max_tokens=2), engine.submit([1, 2], max_tokens=40, ignore_eos=True)
        gate.open()
        ended = [running.result().stats for running in (first, named, other)]
    assert [stats.slot for stats in ended] == [1, 1, 0]
    assert ended[1].n_reused == len(PROMPT) - 1
    with (
        load("kv", slots=2) as engine,
        pytest.raises(OptionError, match="there is no slot 2, expected 0 to 1; leave it out for any"),
    ):
        engine.submit(PROMPT, slot=2)


def test_an_erased_slot_holds_nothing_and_one_in_use_is_not_erased(tmp_path):
    with load("kv") as engine:
        stats = engine.generate(PROMPT, max_tokens=3, **SAMPLED).stats
        n_held = stats.n_prompt + stats.n_emitted - 1
        assert engine.erase_slot(0) == n_held
        assert engine.erase_slot(0) == 0
        assert engine.generate(PROMPT, max_tokens=3, **SAMPLED).stats.n_reused == 0
        engine.erase_slot(0)
        with pytest.raises(OptionError, match="it was erased"):
            engine.save_slot(0, tmp_path / "slot")
        pieces = engine.stream(PROMPT, max_tokens=100, **SAMPLED)
        next(pieces)
        engine._worker._loop.slots.in_use.add(0)  # also where the request has just ended
        with pytest.raises(CapacityError, match="slot 0 is in use"):
            engine.erase_slot(0)


@pytest.mark.parametrize("step", ["slots.SavedSlot.of", "stats.RequestCounter.summary", "stats.EngineCounter.ended"])
def test_a_caller_hears_of_the_end_where_a_step_of_it_fails(monkeypatch, step):
    def failing(*_):
        raise RuntimeError("a fault")

    with toy_engine() as engine:
        monkeypatch.setattr(f"augury.engine.{step}", failing)
        channel = engine.submit([1, 2], max_tokens=2)._channel
        channel.block(channel.waiters, monotonic() + 10)
        assert channel.outcome is not None
        monkeypatch.undo()
        assert len(engine.generate([1, 2], max_tokens=2).tokens) == 2
