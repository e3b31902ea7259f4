"""Another head takes over while requests run: no text changes, and the one before is closed after them."""

import shutil

import pytest
from oracles.drafts import copying_head, draft_file, predictable

from augury import Engine
from augury.errors import AuguryError, OptionError, UnsupportedError

WAY = {"max_tokens": 30, "temperature": 0.0, "ignore_eos": True}
PROMPTS = [[i * 7 % 50 for i in range(n)] for n in (30, 5, 12)]
HEAD = copying_head("llama-dense", "draft-eagle3")


def engine_with(**how):
    given = {"backend": "numba-cpu", "threads": 1, "n_ctx": 128, "slots": 2, "spec_fixed": True, "draft_max": 3}
    return Engine.load(predictable("llama-dense"), **given | how)


@pytest.fixture(scope="module")
def engine():
    with engine_with(spec_type="draft-eagle3", draft_model=HEAD, cache_ram=8) as engine:
        yield engine


def test_texts_stay_the_same_while_heads_take_over_from_each_other(engine, tmp_path):
    expected = [result.tokens for result in engine.generate(PROMPTS, speculative=False, **WAY)]
    n_models, accepted = len(engine.memory_table()), 0
    for turn in range(4):
        runnings = [engine.submit(prompt, **WAY) for prompt in PROMPTS]
        stream = iter(runnings[0])
        next(stream)
        paths = [shutil.copy(HEAD, tmp_path / f"{turn}-{i}.gguf") for i in range(2)]
        for path in paths:
            engine.replace_draft_model(path)
        with pytest.raises(OptionError, match=r"-1\.gguf is in use"):
            engine.replace_draft_model(paths[1])
        results = [running.result() for running in runnings]
        assert [result.tokens for result in results] == expected
        accepted += sum(result.stats.drafters["draft-eagle3"].accepted for result in results)
        assert all(result.stats.drafters["draft-eagle3"].failed is None for result in results)
        assert engine.config["speculative"]["draft-eagle3"]["model"] == str(paths[1])
    assert accepted > 0
    assert len(engine.memory_table()) == n_models  # all others are closed
    assert engine._loader.contexts[1].prompt_cache is not None


def test_what_cannot_take_over_leaves_the_one_before(engine, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(HEAD.read_bytes()[:3000])
    n_models, before = len(engine.memory_table()), engine.config
    for path, error, told in (
        (tmp_path / "none.gguf", AuguryError, "none.gguf"),
        (tmp_path / "cut.gguf", AuguryError, "cut.gguf"),
        (predictable("llama-dense"), UnsupportedError, "draft-eagle3 takes heads of 'eagle3'"),
        (draft_file("dflash-qwen3"), UnsupportedError, "use draft-dflash"),
    ):
        with pytest.raises(error, match=told):
            engine.replace_draft_model(path)
    again = engine.generate(PROMPTS[0], **WAY)
    assert again.stats.drafters["draft-eagle3"].accepted > 0
    assert (engine.config, len(engine.memory_table())) == (before, n_models)
    with engine_with(spec_type="none") as plain, pytest.raises(OptionError, match="no drafter in use has one"):
        plain.replace_draft_model(HEAD)
