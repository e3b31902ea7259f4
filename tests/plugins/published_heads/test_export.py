"""An exported head has what speculators' model has, by name, shape and type, and drafts as its file does."""

import json

import numpy as np
import pytest
from oracles.drafts import copying_head, draft_file, predictable, target_of
from oracles.models import tiny_file
from safetensors import safe_open
from support.commands import run

from augury import Engine, Registry
from augury.errors import OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.plugins.learn.head import HeadSizes, Sample, TargetTensors, draft_vocabulary, write_head
from augury.plugins.published_heads import export

REGISTRY = Registry.discover()
TARGET = "llama-dense"
OF_FILES = ("general.", "tokenizer.", "eagle3.attention.sliding_window_pattern", "eagle3.norm_output")  # say nothing new


def learnt(path, target="eagle3-llama"):
    """A head as `augury learn` writes it, its weights and its output before they were quantised."""
    file = tiny_file(target_of(target))
    plan = plan_of(file, REGISTRY)
    sizes, of_target = HeadSizes.for_target(file, plan, target, 96), TargetTensors(file, plan)
    tokens = draft_vocabulary([np.arange(20, 128)], plan.n_vocab, 96)
    weights = sizes.first_weights(of_target, Sample(np.ones((1, 3 * sizes.n_embd), np.float32), np.zeros(1, np.int32)), 1)
    output = of_target.output(tokens)
    write_head(path, sizes, file, tokens, weights, output)
    return path, sizes, {**weights, "output.weight": output}, tokens


def test_a_learnt_head_has_the_tensors_and_settings_of_speculators(tmp_path):
    head, sizes, values, tokens = learnt(tmp_path / "head.gguf")
    with ModelFile.open(head) as file:
        export.write_folder(tmp_path / "head", file, values)
    e, f, v = sizes.n_embd, sizes.n_ff, sizes.n_vocab
    with safe_open(tmp_path / "head" / "model.safetensors", framework="np") as saved:
        assert saved.metadata() == {"format": "pt"}
        stored = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 - it is no mapping
    floats = {  # of `Eagle3DraftModel`, which saves no `verifier_norm` and `verifier_lm_head`; `embed_tokens` is the model's
        "fc.weight": (e, 3 * e),
        "input_norm.weight": (3 * e,),
        "norm.weight": (e,),
        "lm_head.weight": (96, e),
        **{f"layers.0.{name}.weight": (e,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        **{f"layers.0.self_attn.{each}_proj.weight": (e, 2 * e) for each in "qkv"},
        "layers.0.self_attn.o_proj.weight": (e, e),
        **{f"layers.0.mlp.{each}_proj.weight": (f, e) for each in ("gate", "up")},
        "layers.0.mlp.down_proj.weight": (e, f),
    }
    kinds = {name: (shape, "float32") for name, shape in floats.items()} | {"d2t": ((96,), "int64"), "t2d": ((v,), "bool")}
    assert {name: (each.shape, each.dtype.name) for name, each in stored.items()} == kinds
    assert np.array_equal(stored["d2t"] + np.arange(96), tokens)
    assert np.array_equal(np.flatnonzero(stored["t2d"]), tokens)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["draft_vocab_size"] == 96
    assert config["norm_before_residual"] is config["norm_before_fc"] is True
    assert config["eagle_aux_hidden_state_layer_ids"] == list(sizes.layers)
    layer = config["transformer_layer_config"]
    assert (layer["vocab_size"], layer["hidden_size"], layer["layer_types"]) == (v, e, ["sliding_attention"])
    read, q = open_model(tmp_path / "head", REGISTRY, Progress()), stored["layers.0.self_attn.q_proj.weight"]
    assert not np.array_equal(q, values["blk.0.attn_q.weight"])  # rope turns halves there, and neighbours here
    for name, each in values.items():
        assert np.array_equal(read.tensors[name].floats(), each)


@pytest.mark.parametrize("name", ["eagle3-llama", "eagle3-qwen3-d2t", "learnt"])
def test_a_head_that_is_read_back_is_the_same(name, tmp_path):
    path = learnt(tmp_path / "head.gguf")[0] if name == "learnt" else draft_file(name)
    head = ModelFile.open(path)
    export.write_folder(tmp_path / "head", head)
    read = open_model(tmp_path / "head", REGISTRY, Progress())
    assert read.tensors.keys() == head.tensors.keys()
    for each, tensor in head.tensors.items():
        kept = (found.floats() if found.type.integers is None else found.data for found in (tensor, read.tensors[each]))
        assert np.array_equal(*kept), each
    for key in {*head.metadata, *read.metadata}:
        if not key.startswith(OF_FILES):
            assert np.array_equal(read.metadata[key], head.metadata[key]), key


def test_the_command_exports_a_head_that_is_there_and_it_drafts_the_same(tmp_path, capsys):
    head, found = copying_head(TARGET), []
    words = ["learn", "-o", head, "--export", tmp_path / "head"]
    code, _, err = run(capsys, *words)
    assert code == 0, err
    assert "for vLLM" in err
    assert run(capsys, *words)[0] == 0, "it takes the place of an earlier one"
    for draft_model in (head, tmp_path / "head"):
        how = {"spec_type": "draft-eagle3", "spec_fixed": True, "threads": 1, "n_ctx": 128}
        with Engine.load(predictable(TARGET), draft_model=draft_model, **how) as engine:
            result = engine.generate([3, 5, 9], max_tokens=40, temperature=0, ignore_eos=True)
        found.append((result.tokens, result.stats.n_drafted, result.stats.n_accepted))
    assert found[0] == found[1]
    assert found[0][2] > 10


def test_what_no_folder_can_say_or_hold_is_refused(tmp_path):
    for metadata, match in (
        ({"eagle3.block_count": 2}, "2 layers"),
        ({"eagle3.rope.scaling.type": "yarn"}, "scaled positions"),
    ):
        file = ModelFile.open(draft_file("eagle3-llama"))
        file.metadata = {**file.metadata, **metadata}
        with pytest.raises(UnsupportedError, match=match):
            export.write_folder(tmp_path / "head", file)
    file = ModelFile.open(draft_file("eagle3-llama"))
    file.tensors = {**file.tensors, "rope_freqs.weight": file.tensors["output_norm.weight"]}
    with pytest.raises(UnsupportedError, match=r"'rope_freqs\.weight' has no place"):
        export.write_folder(tmp_path / "head", file)
    (tmp_path / "mine").write_text("text")
    for path in (tmp_path, tmp_path / "mine", tmp_path / "none" / "head"):
        with pytest.raises(OptionError, match="no new folder, empty folder or folder of a head"):
            export.check_folder(path)
