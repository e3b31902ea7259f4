"""Models as Ollama's converter writes them are the ones that llama.cpp's writes, to the bit of each logit."""

import re

import numpy as np
import pytest
from attrs import evolve
from oracles.drafts import draft_file
from oracles.models import altered, tiny_file
from oracles.states import script_rows

from augury import Registry
from augury.files.gguf import ModelFile
from augury.files.ollama import in_llama_cpp_words
from augury.loader import plan_of

REGISTRY = Registry.discover()
SECTIONS = {"rope.dimension_sections": "rope.mrope_section"}
OTHERS = {  # by a model: the architecture's name, and Ollama's names of keys and tensors
    "deepseek2-ocr-moe": ("deepseekocr", {}, {}),
    "gemma3-dense": ("gemma3", {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"}, {}),
    "gemma4-moe": ("gemma4", {}, {"ffn_down_exps.scale": "ffn_gate_inp.per_expert_scale"}),
    "glm4-dense": (
        "glmocr",
        SECTIONS,
        {
            "attn_output.": "attn_out.",
            "post_attention_norm.": "post_attn_norm.",
            "post_ffw_norm.": "post_ffn_norm.",
        },
    ),
    "gpt-oss-moe": (
        "gptoss",
        {},
        {"attn_output.": "attn_out.", "attn_sinks.weight": "attn_sinks", "post_attention_norm.": "ffn_norm."},
    ),
    "laguna-moe": (
        "laguna",
        {"rope.dimension_count_swa": "rope.swa.dimension_count", "rope.freq_base_swa": "rope.swa.freq_base"},
        {"attn_gate.": "attn_g."},
    ),
    "lfm2-dense": ("lfm2", {}, {"token_embd_norm.weight": "output_norm.weight"}),
    "mistral3-yarn": (
        "mistral3",
        {
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        },
        {},
    ),
    "nemotron_h_moe-moe": (
        "nemotron_h_omni",
        {},
        {"ffn_latent_down.": "ffn_latent_in.", "ffn_latent_up.": "ffn_latent_out."},
    ),
    "olmo2-dense": ("olmo3", {}, {}),
    "qwen2vl-dense": ("qwen25vl", SECTIONS, {}),
    "qwen35-dense": ("qwen35", {}, {"ssm_dt.bias": "ssm_dt"}),
    "qwen35moe-moe": ("qwen35moe", {}, {"ssm_dt.bias": "ssm_dt"}),
    "qwen3next-moe": ("qwen3next", {}, {"ssm_dt.bias": "ssm_dt"}),
}


def told_otherwise(file, architecture, keys, tensors, without=()):
    """The metadata and tensors of a file, as Ollama's converter names them."""
    metadata = {}
    for full, value in file.metadata.items():
        key = full.removeprefix(f"{file.architecture}.")
        if key not in without:
            metadata[full if key == full else f"{architecture}.{keys.get(key, key)}"] = value
    named = {}
    for name, tensor in file.tensors.items():
        for right, theirs in tensors.items():
            name = re.sub(rf"^(blk\.\d+\.)?{re.escape(right)}", rf"\1{theirs}", name)  # noqa: PLW2901
        named[name] = tensor
    return {**metadata, "general.architecture": architecture}, named


@pytest.mark.parametrize("name", OTHERS)
def test_names_are_those_of_llama_cpp(name):
    file = tiny_file(name)
    metadata, tensors = told_otherwise(file, *OTHERS[name])
    assert metadata.keys() != file.metadata.keys() or tensors.keys() != file.tensors.keys()
    found, named = in_llama_cpp_words(metadata, tensors)
    for key, value in file.metadata.items():
        assert np.array_equal(found[key], value, equal_nan=isinstance(value, float))
    assert {each: tensor.name for each, tensor in named.items()} == {each: each for each in file.tensors}
    assert all(named[each].data is tensor.data for each, tensor in file.tensors.items())


@pytest.mark.parametrize("name", [*OTHERS, "llama-dense"])
def test_files_of_llama_cpp_s_converter_stay_as_they_are(name):
    file = tiny_file(name)
    metadata, tensors = in_llama_cpp_words(file.metadata, file.tensors)
    assert metadata == file.metadata
    assert dict(tensors) == dict(file.tensors)


def logits(file):
    return script_rows(REGISTRY.backends["reference"], file, plan_of(file, REGISTRY))


@pytest.mark.parametrize("name", ["qwen35-dense", "gpt-oss-moe", "qwen2vl-dense", "qwen3vl-dense"])
def test_a_file_of_ollama_s_converter_has_the_logits_of_the_same_model(monkeypatch, name):
    """It states three sections of positions on the axes of an image, or none; as in llama.cpp's report 25334."""
    file, key = tiny_file(name), "rope.dimension_sections"
    sections = file.metadata[f"{file.architecture}.{key}"][:3]
    file = altered(file, metadata={f"{file.architecture}.{key}": np.int32([*sections, 0])})
    architecture, keys, tensors = OTHERS.get(name, (file.architecture, {}, {}))
    metadata, tensors = told_otherwise(file, architecture, keys, tensors)
    if name in OTHERS:
        metadata[f"{architecture}.{keys.get(key, key)}"] = sections
    else:
        del metadata[f"{architecture}.{key}"]
    theirs = ModelFile(file.path, file.paths, file.n_bytes, metadata, tensors)
    monkeypatch.setattr(ModelFile, "_open_parts", lambda path: theirs)
    assert np.array_equal(logits(ModelFile.open(file.path)), logits(file))


def test_gates_apart_compute_what_fused_ones_do():
    """As in GLM-OCR's files."""
    file = tiny_file("glm4-dense")
    fused = {name: tensor.floats() for name, tensor in file.tensors.items() if name.endswith("ffn_up.weight")}
    halves = {
        f"{name.removesuffix('ffn_up.weight')}ffn_{part}.weight": half
        for name, both in fused.items()
        for part, half in zip(("gate", "up"), np.split(both, 2), strict=True)
    }
    assert np.array_equal(logits(altered(file, arrays=halves)), logits(altered(file, arrays=fused)))


def left_out(name, *keys):
    """A file of Ollama's with some keys left out, in llama.cpp's words."""
    file = tiny_file(name)
    metadata, tensors = told_otherwise(file, *OTHERS[name], without=keys)
    return in_llama_cpp_words(metadata, tensors)[0]


def test_values_that_its_files_leave_out_are_those_of_the_family():
    assert left_out("gpt-oss-moe", "rope.scaling.type")["gpt-oss.rope.scaling.type"] == "yarn"
    eps = "attention.layer_norm_rms_epsilon"
    assert left_out("deepseek2-ocr-moe", eps)[f"deepseek2-ocr.{eps}"] == 1e-6
    short = left_out("gemma3-dense", eps, "rope.freq_base", "rope.scaling.type", "rope.scaling.factor")
    assert (short[f"gemma3.{eps}"], short["gemma3.rope.freq_base"]) == (1e-6, 1e6)
    assert "gemma3.rope.scaling.factor" not in short
    long, _ = in_llama_cpp_words({"general.architecture": "gemma3", "gemma3.context_length": 131072}, {})
    assert (long["gemma3.rope.scaling.type"], long["gemma3.rope.scaling.factor"]) == ("linear", 8.0)


SHARED = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
}


def test_a_head_that_is_no_layer_yet_becomes_one():
    """As in Ollama's older files of Qwen 3.5, whose heads have the names and norms of the original's."""
    right = ModelFile.open(draft_file("mtp-qwen35"))
    tensors = {}
    for name, tensor in right.tensors.items():
        new = name.replace("blk.2.nextn.", "mtp.").replace("blk.2.", "mtp.layers.0.")
        new = re.sub(r"^mtp\.(\w+)\.weight$", lambda found: f"mtp.{SHARED[found[1]]}.weight", new)
        lacks = {} if new == name or "norm" not in name else {"data": (tensor.floats() - 1).view(np.uint8)}
        tensors[new] = evolve(tensor, name=new, **lacks)
    metadata = {**right.metadata, "qwen35.block_count": 2}
    del metadata["qwen35.nextn_predict_layers"]
    found, named = in_llama_cpp_words(metadata, tensors)
    assert (found["qwen35.block_count"], found["qwen35.nextn_predict_layers"]) == (3, 1)
    assert named.keys() == right.tensors.keys()
    for name, tensor in right.tensors.items():
        assert (named[name].name, named[name].shape) == (name, tensor.shape)
        np.testing.assert_allclose(named[name].floats(), tensor.floats(), rtol=0, atol=2e-7 if "norm" in name else 0)


def test_experts_of_a_head_are_joined_in_their_order():
    like = tiny_file("qwen35-dense").tensors["blk.0.ffn_up.weight"]
    rows = [np.full(like.shape, i, np.float32) for i in range(3)]
    names = {i: f"mtp.layers.1.mlp.experts.{i}.gate_proj.weight" for i in (2, 0, 1)}
    tensors = {name: evolve(like, name=name, data=rows[i].reshape(-1).view(np.uint8)) for i, name in names.items()}
    metadata = {"general.architecture": "qwen35moe", "qwen35moe.block_count": 4}
    found, named = in_llama_cpp_words(metadata, tensors)
    assert (found["qwen35moe.block_count"], found["qwen35moe.nextn_predict_layers"]) == (6, 2)
    assert np.array_equal(named["blk.5.ffn_gate_exps.weight"].floats(), rows)


def test_an_embedding_model_is_none_that_generates():
    """As in Ollama's files of EmbeddingGemma, which attend to both sides; dense layers tell them from Gemma 3."""
    like = tiny_file("gemma3-dense").tensors["output_norm.weight"]
    tensors = {name: evolve(like, name=name) for name in ("dense.0.weight", "dense.1.weight", "norm.weight")}
    found, named = in_llama_cpp_words({"general.architecture": "gemma3", "gemma3.block_count": 24}, tensors)
    assert found == {"general.architecture": "gemma-embedding", "gemma-embedding.block_count": 24}
    assert [*named] == ["dense_2.weight", "dense_3.weight", "output_norm.weight"]


def test_sizes_of_heads_take_the_place_of_those_of_latents():
    sizes = {"key_length": 256, "value_length": 256, "key_length_mla": 576, "value_length_mla": 512}
    given = {"general.architecture": "glm4moelite", **{f"glm4moelite.attention.{key}": n for key, n in sizes.items()}}
    found, _ = in_llama_cpp_words(given, {})
    assert [found[f"deepseek2.attention.{key}"] for key in sizes] == [256] * 4


@pytest.mark.parametrize(
    ("architecture", "key", "theirs", "right"),
    [
        ("gptoss", "pre", "default", "gpt-4o"),
        ("gptoss", "pre", None, "gpt-4o"),
        ("mistral3", "pre", "tekken", "tekken"),
        ("mistral3", "pre", "llama-bpe", "llama-bpe"),
        ("glmocr", "pre", "llama-bpe", "chatglm-bpe"),
        ("gemma4", "model", "llama", "gemma4"),
        ("llama", "model", "llama", "llama"),
    ],
)
def test_tokenizers_are_named_as_llama_cpp_does(architecture, key, theirs, right):
    stated = {} if theirs is None else {f"tokenizer.ggml.{key}": theirs}
    found, _ = in_llama_cpp_words({"general.architecture": architecture, "tokenizer.ggml.tokens": ["a"], **stated}, {})
    assert found[f"tokenizer.ggml.{key}"] == right


@pytest.mark.parametrize("architecture", [3, ["gptoss"], None])
def test_an_architecture_that_is_no_text_is_left_to_others(architecture):
    metadata = {"general.architecture": architecture}
    assert in_llama_cpp_words(metadata, {}) == (metadata, {})
