"""Embeddings; logits of texts are tested with the engine."""

import asyncio
import threading
from pathlib import Path

import attrs
import numpy as np
import pytest
from oracles.models import nmse, tiny_model
from support.toys import Gate, toy_engine

from augury import Engine
from augury.engine.loop import CHUNK
from augury.errors import AuguryError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.loader import plan_of
from augury.passes import ArrayPass
from augury.registry import Registry
from augury.types import ModelInfo

DATA = Path(__file__).parents[2] / "data" / "embeddings"
NAMES = sorted(path.stem for path in DATA.glob("*.npz"))
TEXTS = [[1, 2, 3], [7] * 40, [5], list(range(100)), [9, 8, 7]]


@pytest.fixture(scope="module", params=["numba-cpu", "reference"])
def engine(request):
    how = {"backend": request.param, "threads": 1, "n_ctx": 1200, "slots": 3, "spec_type": "none"}
    with Engine.load(tiny_model("llama-dense"), **how) as engine:
        yield engine


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["numba-cpu", "reference"])
def test_embeddings_are_those_of_llama_cpp(backend, name):
    with (
        np.load(DATA / f"{name}.npz") as oracle,
        Engine.load(tiny_model(name), backend=backend, spec_type="none", threads=1) as engine,
    ):
        tokens = oracle["tokens"].tolist()
        for pooling in ("none", "mean", "cls", "last"):
            found = engine.embed(tokens, pooling=pooling, normalize=False)
            assert found.dtype == np.float32
            assert found.shape == oracle[pooling].shape
            assert nmse(found, oracle[pooling]) < (1e-9 if backend == "reference" else 1e-3)
            lengths = np.linalg.norm(oracle[pooling], axis=-1, keepdims=True)
            assert np.allclose(engine.embed(tokens, pooling=pooling), found / lengths, rtol=0.05, atol=0.02)


def test_scores_are_those_of_the_logits_alone_and_among_others(engine):
    long = [i * 7 % 128 for i in range(CHUNK + 90)]  # more than a pass takes
    texts = [*TEXTS, long]
    together = engine.score(texts, logprobs=3)
    for text, found in zip(texts, together, strict=True):
        assert found == engine.score(text, logprobs=3)
        assert [each.token for each in found] == text
        assert (found[0].logprob, found[0].rank, found[0].top_logprobs) == (None, None, ())
        passed, rows = ArrayPass(engine.evaluate(text)[:-1]), np.arange(len(text) - 1, dtype=np.int32)
        normalizers = np.array([passed.log_normalizer(row) for row in rows])
        logits = passed.rows()[rows, text[1:]]
        assert np.allclose([each.logprob for each in found[1:]], logits - normalizers, rtol=0, atol=1e-12)
        assert [each.rank for each in found[1:]] == (1 + (passed.rows() > logits[:, None]).sum(axis=1)).tolist()
        ids, values = passed.top_k(rows, 3)
        assert [[top.token for top in each.top_logprobs] for each in found[1:]] == ids.tolist()
        told = [[top.logprob for top in each.top_logprobs] for each in found[1:]]
        assert np.allclose(np.reshape(told, values.shape), values - normalizers[:, None], rtol=0, atol=1e-12)


def test_a_score_is_the_log_probability_that_a_request_reports_of_the_same_token(engine):
    result = engine.generate([4, 5, 6], max_tokens=20, ignore_eos=True, temperature=0.0, logprobs=2)
    scored = engine.score([4, 5, 6, *result.tokens], logprobs=2)[3:]
    assert [each.logprob for each in scored] == [piece.logprob for piece in result.pieces]
    assert [each.top_logprobs for each in scored] == [piece.top_logprobs for piece in result.pieces]


def test_scores_for_asyncio_are_the_same(engine):
    assert asyncio.run(engine.ascore(TEXTS[0], logprobs=1)) == engine.score(TEXTS[0], logprobs=1)
    with pytest.raises(OptionError, match="logprobs is -1"):
        engine.score(TEXTS[0], logprobs=-1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_a_text_has_the_same_embedding_alone_and_among_others(engine, pooling):
    together = engine.embed(TEXTS, pooling=pooling)
    assert len(together) == len(TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        assert np.array_equal(found, engine.embed(text, pooling=pooling))
    long = [i % 128 for i in range(CHUNK + 90)]
    beside = engine.embed([[3] * 100, long], pooling=pooling)[1]  # the chunks end elsewhere
    assert np.array_equal(beside, engine.embed(long, pooling=pooling))


def test_pooling_is_what_the_file_says_or_else_the_last_token(engine, monkeypatch):
    def embedded(**how):
        return engine.embed(TEXTS[0], **how).tolist()

    assert embedded() == embedded(pooling="last")
    for pooling in ("mean", "cls", "none"):
        monkeypatch.setattr(engine, "info", attrs.evolve(engine.info, pooling=pooling))
        assert embedded() == embedded(pooling=pooling)
        assert embedded(pooling="last") != embedded()
    monkeypatch.setattr(engine, "info", attrs.evolve(engine.info, pooling="rank"))
    with pytest.raises(UnsupportedError, match="pooling_type is rank"):
        engine.embed(TEXTS[0])
    assert embedded(pooling="last")


def test_embeddings_have_length_one_unless_asked_for_as_they_are(engine):
    assert np.allclose(np.linalg.norm(engine.embed(TEXTS, pooling="mean"), axis=1), 1)
    assert not np.allclose(np.linalg.norm(engine.embed(TEXTS, pooling="mean", normalize=False), axis=1), 1)


def test_hidden_states_are_those_of_a_pass_and_the_same_alone_and_among_others(engine):
    long = [i * 7 % 128 for i in range(CHUNK + 90)]
    names = ("layer.1", "output")
    together = engine.hidden_states([*TEXTS, long], names)
    for text, found in zip([*TEXTS, long], together, strict=True):
        alone = engine.hidden_states(text, names)
        assert set(found) == set(names)
        for name in names:
            assert np.array_equal(found[name], alone[name])
        assert np.array_equal(found["output"], engine.embed(text, pooling="none", normalize=False))
    with pytest.raises(UnsupportedError, match=r"no hidden states 'layer\.99'; expected some of: .*layer\.0"):
        engine.hidden_states(TEXTS[0], ["layer.99"])
    with pytest.raises(OptionError, match=r"names is 'layer\.1', expected a list of names, such as \['layer\.1'\]"):
        engine.hidden_states(TEXTS[0], "layer.1")


def test_a_request_goes_on_beside_embeddings_and_neither_changes_the_other(engine):
    params = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.0, "logprobs": 1}
    alone = engine.generate([4, 5, 6], **params)
    running = engine.submit([4, 5, 6], **params)
    next(tokens := iter(running))
    found = engine.embed(TEXTS)
    list(tokens)
    assert [piece.logprob for piece in running.result().pieces] == [piece.logprob for piece in alone.pieces]
    assert np.array_equal(found, engine.embed(TEXTS))
    assert engine.stats().slots[0].state == "idle"


def test_several_texts_share_a_pass_and_all_slots_are_free_afterwards():
    engine = Engine.load(tiny_model("llama-dense"), backend="reference", n_ctx=64, slots=4, spec_type="none")
    with engine:
        model = engine._worker._loop._context.model
        passes, forward = [], model.forward
        model.forward = lambda batch: passes.append(len(batch.tokens)) or forward(batch)
        engine.embed([[1, 2], [3, 4, 5], [6]])
        assert passes == [6]
        assert [slot.state for slot in engine.stats().slots] == ["idle"] * 4

        def fail(batch):
            raise RuntimeError("planted")

        model.forward = fail
        with pytest.raises(RuntimeError, match="planted"):
            engine.embed([[1, 2], [3, 4, 5], [6]])
        model.forward = forward
        assert engine.embed([[1]] * 9).shape == (9, 256)


def test_embeddings_are_awaited_and_a_task_that_is_cancelled_frees_its_slots():
    with toy_engine(n_ctx=3000, slots=1) as engine:
        texts = [[1, 2, 3], [4, 5]]
        assert np.array_equal(asyncio.run(engine.aembed(texts)), engine.embed(texts))
        assert np.array_equal(asyncio.run(engine.aembed([1, 2, 3])), engine.embed([1, 2, 3]))
        gate = Gate(engine)

        async def give_up():
            task = asyncio.create_task(engine.aembed([[1] * 2900] * 5))
            await asyncio.to_thread(gate.has_begun.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        n_before = len(engine._worker._loop._context.model.batches)
        asyncio.run(give_up())
        gate.open()
        assert len(engine.generate([1], max_tokens=3, temperature=0.0).tokens) == 3
        batches = engine._worker._loop._context.model.batches[n_before:]
        assert sum(len(batch.tokens) > 1 for batch in batches) == 1


def test_a_head_that_is_not_computed_is_told(engine, monkeypatch):
    monkeypatch.setattr(engine, "info", attrs.evolve(engine.info, has_embedding_head=True))
    with pytest.raises(UnsupportedError, match="which augury does not compute"):
        engine.embed(TEXTS[0])


@pytest.mark.parametrize(("name", "has_head"), [("qwen35-dense", True), ("qwen3-dense", False)])
def test_a_head_counts_where_llama_cpp_applies_it(name, has_head):
    with ModelFile.open(tiny_model(name)) as file:
        assert "cls.output.weight" in file.tensors
        assert ModelInfo.of(file, plan_of(file, Registry.discover())).has_embedding_head == has_head


def test_closing_the_engine_ends_embeddings():
    engine = Engine.load(tiny_model("llama-dense"), backend="reference", n_ctx=64, slots=1, spec_type="none")
    model, has_begun = engine._worker._loop._context.model, threading.Event()
    forward = model.forward

    def wait(batch):
        has_begun.set()
        while engine._worker._engine_thread.inbox.empty():
            threading.Event().wait(0.001)
        return forward(batch)

    model.forward, outcome = wait, []

    def embed():
        with pytest.raises(AuguryError, match="closed") as caught:
            engine.embed([[1]] * 100)
        outcome.append(caught.value)

    embedding = threading.Thread(target=embed)
    embedding.start()
    assert has_begun.wait(30)
    engine.close()
    embedding.join(30)
    assert outcome


@pytest.mark.parametrize(
    ("text", "how", "told"),
    [
        ([1], {"pooling": "max"}, "pooling is 'max', expected one of none, mean, cls, last"),
        ([], {}, "the prompt is empty"),
        ([[1], []], {}, "the prompt is empty"),
        ([999], {}, "holds token 999"),
    ],
)
def test_what_cannot_be_embedded_is_an_error(engine, text, how, told):
    with pytest.raises(OptionError, match=told):
        engine.embed(text, **how)


def test_a_backend_without_features_has_no_embeddings():
    with toy_engine() as engine:
        engine._worker._loop._context.model.features = {}
        with pytest.raises(UnsupportedError, match="this backend has no embeddings"):
            engine.embed([1])


@pytest.mark.sample(2)
@pytest.mark.parametrize("spec_type", ["none", "ngram-simple:n=1,m=4"])
@pytest.mark.parametrize("name", ["llama-dense", "falcon-h1-dense", "gemma3-dense", "lfm2-dense"])
def test_those_that_an_answer_is_made_of_are_those_of_its_text(name, spec_type):
    """Of chunks, drafts, neighbours and reused prefixes: each row is the one of a pass over the whole text, to the bit."""
    names, prompts = ("embedding", "layer.0", "output"), [[i * 7 % 50 for i in range(n)] for n in (40, 9, 60)]
    told = [list[tuple[int, np.ndarray, dict[str, np.ndarray]]]() for _ in prompts]
    how = {"backend": "numba-cpu", "threads": 1, "n_ctx": 128, "slots": 2, "spec_type": spec_type, "spec_fixed": True}
    with Engine.load(tiny_model(name), **how) as engine:
        runnings = [
            engine.submit(
                prompt,
                max_tokens=30,
                temperature=0.0,
                ignore_eos=True,
                hidden_states=names,
                on_hidden_states=lambda *each, kept=kept: kept.append(each),
            )
            for prompt, kept in zip(prompts, told, strict=True)
        ]
        results = [running.result() for running in runnings]
        for prompt, kept, result in zip(prompts, told, results, strict=True):
            text, start = [*prompt, *result.tokens][:-1], kept[0][0]
            assert start == result.stats.n_reused
            assert np.concatenate([tokens for _, tokens, _ in kept]).tolist() == text[start:]
            expected = engine.hidden_states(text, names)
            for each in names:
                assert np.array_equal(np.concatenate([states[each] for *_, states in kept]), expected[each][start:])
        assert (sum(result.stats.n_drafted for result in results) > 0) == (spec_type != "none")
        first = engine.submit([1, 2], n=2, max_tokens=3, hidden_states=["output"], on_hidden_states=told.append)
        assert [len(running.result().tokens) for running in first] == [3, 3]  # a callable that fails changes nothing
        for given, error, said in (
            ({"hidden_states": ["layer.99"]}, UnsupportedError, r"no hidden states 'layer\.99'; expected some of: embedding, "),
            ({"hidden_states": ["output"], "on_hidden_states": None}, OptionError, "give both or neither"),
            ({"hidden_states": "output"}, OptionError, "hidden_states is 'output', expected a list of names"),
        ):
            with pytest.raises(error, match=said):
                engine.submit([1], **{"on_hidden_states": told.append, **given})
