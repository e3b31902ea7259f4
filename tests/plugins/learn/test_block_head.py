"""A block head drafts what its training computes, which is what a reference in numpy computes, and goes on from a file."""

import numpy as np
import pytest
from attrs import evolve
from oracles import published_heads
from oracles.drafts import target_of
from oracles.models import tiny_file
from support.commands import run
from support.head_rig import REGISTRY, Rig

from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.loader import plan_of
from augury.plugins.learn import head, losses, training
from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.head import TargetTensors, write_head
from augury.plugins.learn.losses import TrainingBatch, exact_product
from augury.testing.tiny_model import write_tiny_model

NAME, N_DRAFTED = "dflash-qwen3", 100
NAMES = {  # of a layer's tensors, as trainers publish them
    "attn_norm": "input_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"attn_{part}_norm": f"self_attn.{part}_norm" for part in "qk"},
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
OUTSIDE = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "output_norm": "norm",
    "output": "lm_head",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj",
}


@pytest.fixture
def block(tmp_path, monkeypatch):
    """A head of two layers with random weights, in float32: its sizes and weights, its target and its file."""
    monkeypatch.setattr(head, "quant_like", lambda file: "f32")
    monkeypatch.setattr(published_heads, "G", 4)
    file = tiny_file(target_of(NAME))
    plan = plan_of(file, REGISTRY)
    sizes = BlockSizes.for_target(file, plan, NAME, N_DRAFTED)
    sizes = evolve(sizes, n_layers=2, n_heads=4, n_kv_heads=4, head_dim=32, n_rot=32, n_ff=96, rank=24, mask=127)
    rng, target = np.random.default_rng(1), TargetTensors(file, plan)
    weights = {
        name: np.float32((len(shape) == 1) + rng.standard_normal(shape) * (0.2 if len(shape) == 1 else shape[1] ** -0.5))
        for name, shape in sizes.shapes.items()
    }
    tokens = np.sort(rng.permutation(plan.n_vocab)[:N_DRAFTED]).astype(np.int32)
    write_head(tmp_path / "head.gguf", sizes, file, tokens, sizes.stored(weights, target), target.output(tokens))
    return sizes, weights, target, tokens, tmp_path / "head.gguf"


def reference(path, target, sizes):
    """The head of a file in numpy."""
    with ModelFile.open(path) as file:
        places = OUTSIDE | {
            f"blk.{i}.{name}": f"layers.{i}.{end}" for i in range(sizes.n_layers) for name, end in NAMES.items()
        }
        tensors = {f"{end}.weight": file.tensor(f"{name}.weight").floats() for name, end in places.items()}
        tensors["confidence_head.proj.bias"] = file.tensor("conf_proj.bias").floats()
    tensors["embed_tokens.weight"] = target.embedding(np.arange(sizes.n_vocab))
    config = {
        "num_hidden_layers": sizes.n_layers,
        "mask_token_id": sizes.mask,
        "causal_head": True,
        "rope_theta": sizes.rope_base,
        "rms_norm_eps": 1e-5,
        "markov_rank": sizes.rank,
    }
    return published_heads.DFlash(config, tensors)


def test_training_computes_and_the_drafter_drafts_what_a_reference_does(block):
    sizes, weights, target, tokens, path = block
    rig = Rig(NAME, "reference", model=path)
    text, n = rig.text[:10].astype(np.int64), 8
    features = np.hstack([rig.fed[each][:10] for each in sizes.features])
    every = np.ones((1, n), bool)
    outputs = np.zeros((1, n, sizes.n_embd), np.float32)
    batch = TrainingBatch(
        features[None, :n], target.embedding(text[1 : n + 1])[None], outputs, every.astype(np.int32), every, every
    )
    mask, anchors = target.embedding(np.int32(sizes.mask)), np.arange(n - sizes.n_block)
    how = {"mask": mask, "sizes": sizes, "product": exact_product, "anchors": anchors}
    hidden, previous, logits = losses.drafted(weights, target.output(tokens), batch, **how)
    sure = np.concatenate([hidden, previous], -1) @ weights["conf_proj.weight"][0] + weights["conf_proj.bias"]
    right = reference(path, target, sizes)
    for p in anchors.tolist():
        read = features[: p + 1].reshape(p + 1, -1, sizes.n_embd)
        base, states = right.draft(read, text[p + 1], sizes.n_block)
        before = text[p + 1 : p + 1 + sizes.n_block]
        expected = base + [right.transitions(token) for token in before]
        assert np.abs(logits[0, p] - expected).max() < 1e-4
        assert np.abs(sure[0, p] - [right.confidence(*each) for each in zip(states, before, strict=True)]).max() < 1e-4
        chosen = [int(text[p + 1])]
        for logit in base:
            chosen.append(int(tokens[(logit + right.transitions(chosen[-1])).argmax()]))
        rig.feed(0, p + 1)
        for k in range(1, sizes.n_block + 1):
            assert rig.draft(text[: p + 2].astype(np.int32), k) == chosen[1 : k + 1], "a shorter draft begins a longer one"
    rig.loader.close()


def test_a_training_goes_on_from_a_block_head(block, monkeypatch):
    sizes, weights, target, _, path = block
    file, given = tiny_file(target_of(NAME)), evolve(sizes, rank=8, mask=3, n_ff=32)
    plan = plan_of(file, REGISTRY)
    with ModelFile.open(path) as found:
        assert given.of_head(found, file, plan) == sizes
        again = sizes.weights_of(found, {"features.weight": np.float32(2) * weights["features.weight"]}, target)
        for name, values in sizes.stored(again, target).items():
            assert np.abs(values - found.tensor(name).floats()).max() < 1e-4
        for key, value, match in (
            ("dflash.attention.causal", False, "attention.causal is False, expected True"),
            ("dflash.block_count", 1, "the number of layers is 1, expected 2"),
        ):
            with pytest.raises(UnsupportedError, match=match):
                given.of_head(evolve(found, metadata={**found.metadata, key: value}), file, plan)


@pytest.mark.sample(0)  # of 20 s, in which JAX compiles
def test_a_block_head_is_learnt_and_taken_up_to_the_same_one(capsys, tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "model.gguf")
    texts = np.random.default_rng(1).integers(0, 260, (24, 60)).tolist()
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"tokens": {[*text, *text]}}}\n' for text in texts))

    def learn(name, *more):
        words = ("-m", tmp_path / "model.gguf", "-f", tmp_path / "texts.jsonl", "-o", tmp_path / name, "-t", 1, "-c", 512)
        return run(capsys, "learn", *words, "--draft-vocabulary", 200, "--epochs", 2, *more)

    code, out, err = learn("whole.gguf", "--kind", "block")
    assert code == 0, err
    assert "of drafts were accepted up to token 1, 2, ..." in err
    assert "whole.gguf" in out
    monkeypatch.setattr(training, "_SAVE_EVERY_S", 0.0)
    step, calls = training.Trainer.step, iter(range(4))

    def interrupted(*given):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "step", interrupted)
        assert learn("resumed.gguf", "--kind", "block")[0] == 130
    code, _, err = learn("resumed.gguf")
    assert "holds the beginning of another training" in err
    assert learn("resumed.gguf", "--kind", "block")[0] == 0
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "resumed.gguf").read_bytes()
    code, out, _ = run(capsys, "inspect", tmp_path / "whole.gguf")
    assert code == 0
    assert "DSpark head for" in out
    code, _, err = learn("more.gguf", "--from", tmp_path / "whole.gguf", "--export", tmp_path / "folder")
    assert code == 2
    assert "--export writes heads of --kind eagle3 as a folder, not of block" in err
    code, _, err = learn("more.gguf", "--from", tmp_path / "whole.gguf")
    assert code == 0, err
    assert "before: " in err
