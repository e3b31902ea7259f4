"""`draft-eagle3` knows its heads, and which of their features are missing."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.drafts import draft_file, runs, target_of
from oracles.models import tiny_file, tiny_model
from support.head_rig import OPTIONS, REGISTRY
from support.more_toys import write_tiny_head
from support.toys import as_history

from augury import Engine
from augury.drafters.draft_heads import DraftEagle3
from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.types import Verdict


def test_teacher_forced_it_gives_the_tokens_that_it_would_have_drafted(rig):
    made = rig("eagle3-llama")
    made.feed(0, 60)
    made.feed(0, 40, slot=1)
    said = made.draft(made.text[:41], 1, slot=1)
    for end in range(41, 80):
        made.feed(end - 1, end, slot=1)
        said += made.draft(made.text[: end + 1], 1, slot=1)
    history = as_history(made.text[:61])  # said[0] is what stands in place of token 41
    assert made.drafters[0].teacher_forced(history, 16).tolist() == said[4:20]
    made.draft(made.text[:61], 3)
    assert made.drafters[0].teacher_forced(history, 16).tolist() == said[4:20]
    forced = made.drafters[1].teacher_forced(as_history(made.text[:81]), 70).tolist()  # what was long ago it does not know
    assert forced[:24] == [-1] * 24
    assert -1 not in forced[24:]
    assert forced[30:] == said
    assert made.draft(made.text[:61], 1) == made.draft(made.text[:61], 1)


@pytest.mark.parametrize("name", ["eagle3-llama", "eagle3-qwen3-d2t"])
@pytest.mark.parametrize("chain_rows", [42, 2])
def test_a_head_that_feeds_itself_drafts_the_same(rig, name, chain_rows, monkeypatch):
    made, run, chains = rig(name), runs(name)[-1], []
    context = made.runner._context
    model = type(context.model)
    chain = model.forward_chain
    monkeypatch.setattr(context, "chain_rows", chain_rows)
    monkeypatch.setattr(model, "forward_chain", lambda model, batch, n: (chains.append(n), chain(model, batch, n))[1])
    assert list(made.replayed(run)) == run.drafts.tolist()
    assert {*chains} == {min(run.k, chain_rows)}


def test_a_context_that_is_full_ends_its_drafts(rig):
    made = rig("eagle3-llama")
    text = np.resize(made.text, OPTIONS.n_ctx)
    made.feed(0, OPTIONS.n_ctx - 2, text=text)
    assert len(made.draft(text[: OPTIONS.n_ctx - 1], 8)) == 4 - 1
    assert made.drafters[0].accept(as_history(text), Verdict(0, 0, 1, is_used=False)) is None


def test_a_recurrent_state_is_gone_on_from_at_a_text_s_end():
    name, prompt = "eagle3-qwen35-hybrid", [7, 8, 9, 30, 31] * 4
    model, how = tiny_model(target_of(name)), {"backend": "numba-cpu", "n_ctx": 64, "threads": 1, "registry": REGISTRY}
    with Engine.load(model, draft_model=draft_file(name), spec_type="draft-eagle3", spec_fixed=True, **how) as engine:
        first = engine.generate(prompt, max_tokens=12, temperature=0.0, ignore_eos=True)
        second = engine.generate([*prompt, *first.tokens, 5], max_tokens=2, temperature=0.0, ignore_eos=True)
    assert second.stats.n_reused == len(prompt) + 11  # all that was computed


def test_several_residual_streams_count_by_their_mean(rig):
    made = rig("eagle3-llama")
    streams = {name: np.concatenate([rows - 1, rows + 1], axis=1) for name, rows in made.fed.items()}
    joined = made.runner.encoder.joined(streams)
    assert np.allclose(joined, made.runner.encoder.joined(made.fed), atol=1e-6)
    assert joined.shape == (90, 768)
    assert not joined[:, 512:].any()  # what llama.cpp has nothing for


def test_a_head_of_another_target_is_refused(tmp_path):
    write_tiny_head(tmp_path / "other.gguf", n_embd=96, head_dim=32)
    how = {"backend": "numba-cpu", "registry": REGISTRY}
    with pytest.raises(ModelFileError, match=r"'token_embd\.weight' has .* 96\) of .*other\.gguf; use a draft model"):
        Engine.load(tiny_model("llama-dense"), draft_model=tmp_path / "other.gguf", **how)
    wide = draft_file("eagle3-gpt-oss-wide")
    with pytest.raises(UnsupportedError, match="the head reads 256"):
        Engine.load(tiny_model("deepseek2-moe"), draft_model=wide, **how)
    with pytest.raises(UnsupportedError, match=r"the target has 3072 tokens and the draft model 128, .* trained for qwen3tts"):
        Engine.load(tiny_model("qwen3tts-dense"), draft_model=wide, **how)


def test_a_cache_type_that_the_head_s_keys_do_not_fit_is_refused_in_its_name():
    path = draft_file("eagle3-gpt-oss-wide")
    expected = rf"head {path}: cache_type_k is 'q8_0', .* but heads have 48; choose f16, bf16 or f32 for the head, with -ctkd"
    with pytest.raises(UnsupportedError, match=expected):
        Engine.load(tiny_model("gpt-oss-moe"), backend="reference", draft_model=path, cache_type_k="q8_0")
    with pytest.raises(UnsupportedError, match=r"head .*: cache_type_v is 'q9', expected one of f16, .* for the head"):
        Engine.load(
            tiny_model("gpt-oss-moe"),
            backend="reference",
            draft_model=path,
            spec_options={"draft-eagle3": {"cache_type_v": "q9"}},
        )
    own = {"draft-eagle3": {"cache_type_k": "f16"}}
    how = {"draft_model": path, "cache_type_k": "q8_0", "spec_options": own, "n_ctx": 32}
    with Engine.load(tiny_model("gpt-oss-moe"), backend="reference", **how) as engine:
        assert engine.config["cache_type_k"] == "q8_0"


def test_a_file_of_its_architecture_is_its_head():
    assert DraftEagle3.drafts_with(ModelFile.open(draft_file("eagle3-llama")))
    assert not DraftEagle3.drafts_with(tiny_file("llama-dense"))
