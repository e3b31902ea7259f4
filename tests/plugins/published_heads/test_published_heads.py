"""Heads as their trainers publish them compute what the trainers' models do, or are refused by the name of what is unknown."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from oracles import published_heads as oracle
from oracles.drafts import copying_head, predictable
from oracles.models import tiny_file
from oracles.published_heads import SIZES, DFlash, E, Eagle
from support.cpu_backends import cpu_backends
from support.head_rig import Rig
from support.toys import as_history

from augury import Engine, Registry
from augury.batch import Batch
from augury.cli import Parser
from augury.cli.models import add_parsers
from augury.errors import AuguryError, ModelFileError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.files.quantized import quant_like
from augury.interfaces import Progress
from augury.plugins.published_heads.layers import NAMES
from augury.types import ModelOptions

REGISTRY = Registry.discover()
TARGET = "llama-dense"  # V = 128, E = 256; heads here read it as if it had eight layers
V, N_LAYERS = 128, 8
OPTIONS = ModelOptions(n_slots=1, n_ctx=64, threads=2, cache_type_k="f32", cache_type_v="f32")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FLAT = {**SIZES, "model_type": "llama", "num_hidden_layers": 1, "vocab_size": V, "draft_vocab_size": 96}
NESTED = {**SIZES, "model_type": "qwen3", "num_hidden_layers": 1, "vocab_size": V}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 96,
    "transformer_layer_config": NESTED,
    "speculators_config": {"verifier": {"name_or_path": "someone/model"}},
}
SPECFORGE = {**FLAT, "architectures": ["LlamaForCausalLMEagle3"]}
YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
EAGLES = {
    "original": FLAT | {"architectures": ["LlamaForCausalLM"], "rope_scaling": LLAMA3},
    "specforge": SPECFORGE | {"fc_norm": True, "norm_output": True, "eagle_config": {oracle.KEY: [1, 3, 4]}},
    "llama4": SPECFORGE | {"model_type": "llama4_text"},
    "yarn": SPECFORGE | {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64}},
    "yarn-mscale": SPECFORGE
    | {"rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 8, "beta_slow": 2}},
    "mrope": SPECFORGE
    | {"rope_scaling": {"type": "mrope", "rope_type": "mrope", "mrope_section": [4, 6, 6]}}
    | {"architectures": ["Eagle3Qwen2_5vlForCausalLM"]},
    "biases": SPECFORGE | {"attention_bias": True, "sliding_window": 5, oracle.KEY: [0, 1]},
    "speculators": SPECULATORS | {"norm_before_residual": True, "norm_before_fc": True, oracle.KEY: [0, 2, 4, 5]},
    "speculators-3.1": SPECULATORS
    | {"fc_norm": True, "norm_output": True, "transformer_layer_config": NESTED | {"num_hidden_layers": 2}},
    "nemo-3.1": SPECFORGE | {"architectures": ["LlamaEagle3DraftModel"], "norm_output": True},
    "deepspec": NESTED | {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 1, 3, 4, 6], "num_hidden_layers": 2},
}
PEAGLE = SPECULATORS | {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"], "mask_token_id": 99}
METHODS = {"speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 6}]}}
PEAGLES = {
    "peagle": PEAGLE
    | METHODS
    | {"norm_before_residual": True, "transformer_layer_config": NESTED | {"num_hidden_layers": 3}, oracle.KEY: [0, 1]},
    "peagle-window": PEAGLE
    | {
        "fc_norm": True,
        "num_depths": 5,
        oracle.KEY: [0, 1],
        "transformer_layer_config": NESTED | {"model_type": "llama", "sliding_window": 9},
    },
    "peagle-nemo": SPECFORGE
    | {"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": True, "mask_token_id": 127}
    | {"num_depths": 7, "norm_output": True, "num_hidden_layers": 2, oracle.KEY: [1, 0]},
    "peagle-vllm": SPECFORGE
    | {"ptd_token_id": 3, "eagle_config": {oracle.KEY: [-1, 0]}, "norm_before_fc": True, "num_hidden_layers": 2},
}
MIDLAYERS = ("original", "specforge", "llama4", "yarn", "yarn-mscale", "mrope", "biases", "peagle-vllm")
DFLASH = {**NESTED, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "block_size": 6}
NAMED = {"mask_token_id": 127, "target_layer_ids": [1, 4, 6]}
DSPARK = {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "confidence_head_with_markov": True}
DSPARK |= {"mask_token_id": 127, "target_layer_ids": [-1, 0, 1]}
LOCAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
INNER = {"speculators_model_type": "dflash", "block_size": 6, "mask_token_id": 127, "aux_hidden_state_layer_ids": [2, 5, 7]}
DOMINO = {"projector_type": "domino", "emb_dim": 24, "gru_hidden_dim": 8, "mask_token_id": 127, "target_layer_ids": [-1, 0, 1]}
DFLASHES = {
    "z-lab": DFLASH | {"dflash_config": NAMED},
    "z-lab-window": DFLASH | {"dflash_config": NAMED} | LOCAL,
    "causal": DFLASH | {"dflash_config": NAMED | {"causal": True}},
    "swa": DFLASH
    | {"dflash_config": NAMED | {"use_swa": True, "swa_window_size": 7, "causal": False}, "sliding_window": None}
    | {"layer_types": LOCAL["layer_types"]},
    "nemotron": DFLASH
    | {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": 8,
        "confidence_head_with_markov": True,
        "attention_sink_bias": True,
    }
    | {"dflash_config": NAMED | {"use_swa": True, "swa_window_size": 7, "causal": True}, "sample_from_anchor": False},
    "liquid": DFLASH
    | {"architectures": ["Lfm2DSparkDraftModel"], "markov_rank": 8, "markov_head_type": "vanilla", "rope_is_neox_style": False}
    | {"enable_confidence_head": True, "dflash_config": NAMED},
    "jetspec": DFLASH | {"dflash_config": NAMED | {"causal_head": True}},
    "speculators-dflash": INNER | {"transformer_layer_config": NESTED | LOCAL | {"num_hidden_layers": 2}},
    "speculators-both-ways": INNER
    | {"transformer_layer_config": NESTED | LOCAL | {"num_hidden_layers": 2}, "sliding_window_non_causal": True},
    "dflash2": DFLASH
    | {"architectures": ["DFlash2DraftModel"], "dflash_config": NAMED}
    | {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4},
    "domino": DFLASH | {"dflash_config": DOMINO | {"shift_label": True, "pure_draft_prefix_len": 2}},
    "domino-unshifted": DFLASH | {"dflash_config": DOMINO},
    "dspark": DFLASH | DSPARK | NAMED,
    "dspark-gated": DFLASH | DSPARK | {"markov_head_type": "gated"},
    "dspark-rnn": DFLASH | DSPARK | {"markov_head_type": "rnn"},
    "dspark-specforge": DFLASH
    | {"architectures": ["DSparkDraftModel"]}
    | {"dflash_config": {**NAMED, "markov_rank": 8, "confidence_head_with_markov": True}},
}


def opened(folder):
    file, target = open_model(folder, REGISTRY, Progress()), tiny_file(TARGET)
    target.metadata = {**target.metadata, "llama.block_count": N_LAYERS}
    file.borrow_from(target)
    return file


def loaded(file, backend, plan="main"):
    kind = REGISTRY.backends[backend]
    plans = REGISTRY.architectures[file.architecture].plans(file)
    return plans[plan], kind(kind.options_class()).load(file, plans[plan], OPTIONS, Progress())


def of_target(name):
    return tiny_file(TARGET).tensor(f"{name}.weight").floats()


def eagle_folder(path, name, **changes):
    """A folder of a head, the head in numpy, and which tokens its logits are of."""
    config, own = (EAGLES | PEAGLES)[name] | changes, {}
    first = "midlayer." if name in MIDLAYERS else "layers.0."
    outputs = config.get("target_layer_ids") or config.get("eagle_config", {}).get(oracle.KEY)
    n_features = len(config.get(oracle.KEY) or outputs or range(3))
    drawn = oracle.eagle_tensors(config, n_features, E, first=first)
    tokens = np.arange(V)
    if "draft_vocab_size" in config:
        tokens = np.sort(np.random.default_rng(2).permutation(V)[:96])
        own = {"d2t": tokens - np.arange(96), "t2d": np.isin(np.arange(V), tokens)}
        own["lm_head.weight"] = of_target("output")[tokens]
    drawn["norm.weight"] *= 4  # of logits that choose
    prefix = "model." if name in ("llama4", "peagle-nemo") else ""  # as NeMo writes them
    oracle.write(path, config, {f"{prefix}{key}": each for key, each in (drawn | own).items()}, n_files=2)
    whole = {"lm_head.weight": of_target("output"), "embed_tokens.weight": of_target("token_embd"), **drawn, **own}
    model = Eagle(config, {key: each for key, each in whole.items() if key not in ("d2t", "t2d")})
    model.first = first
    return path, model, tokens


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_head_drafts_what_its_trainers_model_does(name, backend, tmp_path):
    folder, right, tokens = eagle_folder(tmp_path / "head", name)
    file = opened(folder)
    plan, model = loaded(file, backend)
    _, encoder = loaded(file, backend, "encoder")
    rng, n = np.random.default_rng(3), 20
    text, features = rng.integers(0, V, n).astype(np.int32), rng.normal(size=(n, len(plan.hidden_of), E))
    g = encoder.forward(Batch.chain(np.zeros(n, np.int32), hidden=features.reshape(n, -1).astype(np.float32))).rows().copy()
    assert np.abs(g - right.encode(features)).max() < 1e-4
    given_on = f"layer.{len(plan.layers) - 1}"
    drafted, hidden, start = text, g, 0
    for _ in range(4):  # of which each is given what the one before gave on
        rows = np.int32([len(drafted) - 1])
        passed = model.forward(Batch.chain(drafted, start=start, hidden=hidden, rows=rows, features=(given_on,)))
        row, hidden = passed.rows()[0].copy(), passed.features(given_on)[-1:].copy()
        logits, made = right.forward(text, g)
        assert np.abs(row[tokens] - logits[-1]).max() < 1e-4
        assert np.abs(hidden - made[-1]).max() < 1e-4
        assert np.isneginf(np.delete(row, tokens)).all()
        drafted, start = np.array([row.argmax()], np.int32), len(text)
        text, g = np.append(text, drafted), np.concatenate([g, made[-1:]])
    for each in (model, encoder):
        each.close()


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", PEAGLES)
def test_a_parallel_head_drafts_all_tokens_with_one_pass(name, backend, tmp_path):
    folder, right, tokens = eagle_folder(tmp_path / "head", name)
    made, n = Rig("eagle3-llama", backend, model=folder), 5
    assert made.drafters[0].traits.drafts_at_once
    features, logits, fed, make = np.stack([*made.fed.values()], 1), [], 0, made.runner._pass
    made.runner._pass = lambda requests: logits.append(make(requests)) or logits[-1]
    for last in (20, 20, 21, 27):  # asked twice, after one token more, and after several
        made.feed(fed, last)
        fed, text = last, made.text[: last + 1]
        drafts, expected = made.draft(text, n), right.parallel(text, features[:last], n)
        assert np.abs(logits[-1].rows()[:, tokens] - expected).max() < 1e-4
        assert drafts == tokens[expected.argmax(1)].tolist()
    file = opened(folder)
    assert REGISTRY.architectures["eagle3"].plans(file)["main"].block.size == {
        "peagle": 6,
        "peagle-window": 5,
        "peagle-nemo": 7,
    }.get(name, 8)
    first = made.drafters[0].teacher_forced(as_history(text), 3).tolist()
    at = [right.parallel(text[: m + 1], features[:m], 1)[0].argmax() for m in (24, 25, 26)]
    assert first == tokens[at].tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("original", (2, 4, 5)),  # unless it is said otherwise: 2, N / 2, N - 3
        ("specforge", (2, 4, 5)),  # outputs of layers
        ("biases", (0, 1)),  # their inputs
        ("speculators", (0, 2, 4, 5)),
        ("deepspec", (1, 2, 4, 5, 7)),
        ("z-lab", (2, 5, 7)),
        ("speculators-dflash", (2, 5, 7)),
        ("dspark", (2, 5, 7)),
    ],
)
def test_publishers_number_the_targets_layers_in_their_own_ways(name, expected, tmp_path):
    make = eagle_folder if name in EAGLES else dflash_folder
    file = opened(make(tmp_path / "head", name)[0])
    seen = REGISTRY.architectures[file.architecture].plans(file)["main"].hidden_of
    assert seen == tuple(f"layer.{number - 1}" if number else "embedding" for number in expected)


def dflash_folder(path, name):
    """A folder of a head, and the head in numpy."""
    config = DFLASHES[name]
    drawn = oracle.dflash_tensors(config, 3, V)
    oracle.write(path, config, drawn)
    return path, DFlash(config, drawn | {"lm_head.weight": of_target("output"), "embed_tokens.weight": of_target("token_embd")})


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", DFLASHES)
def test_a_dflash_head_drafts_what_its_trainers_model_does(name, backend, tmp_path):
    folder, right = dflash_folder(tmp_path / "head", name)
    file = opened(folder)
    plan, model = loaded(file, backend)
    _, encoder = loaded(file, backend, "encoder")
    rng, n = np.random.default_rng(3), 20
    features = rng.normal(size=(n, 3, E))
    g = encoder.forward(Batch.chain(np.zeros(n, np.int32), hidden=features.reshape(n, -1).astype(np.float32))).rows().copy()
    model.forward(Batch.chain(np.zeros(n, np.int32), hidden=g, rows=np.empty(0, np.int32), part="inject"))
    block = np.int32([7] + [127] * (plan.block.size - 1))
    passed = model.forward(Batch.chain(block, start=n, features=("output",)))
    logits, states = right.draft(features, 7, len(block))
    assert np.abs(passed.rows() - logits).max() < 1e-4
    assert np.abs(passed.features("output") - states).max() < 1e-4
    assert plan.block.n_unread == (0 if name in ("domino", "liquid", "dspark", "dspark-gated", "dspark-rnn") else 1)
    if plan.block.has_transitions and plan.block.markov == "vanilla":
        for token in (5, 90):
            found = loaded(file, backend, "transitions")[1].forward(Batch.chain(np.int32([token]))).rows()[0]
            assert np.abs(found - right.transitions(token)).max() < 1e-4
    for each in (model, encoder):
        each.close()


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("name", ["dspark-gated", "dspark-rnn", "domino", "domino-unshifted"])
def test_a_markov_head_corrects_each_place_as_its_trainers_model_does(name, backend, tmp_path):
    folder, right = dflash_folder(tmp_path / "head", name)
    made, n, judged = Rig("eagle3-llama", backend, model=folder), 5, []
    features, after = np.stack([*made.fed.values()], 1), made.runner._after
    made.runner._after = lambda *args: judged.append(after(*args)[0].rows()) or after(*args)
    made.feed(0, 30)
    for _ in range(2):  # a recurrent state begins anew
        judged.clear()
        drafts, (expected, logits) = made.draft(made.text[:31], n), right.chosen(features[:30], int(made.text[30]), n)
        assert drafts == expected
        assert np.abs(np.concatenate(judged) - logits).max() < 1e-4


def test_the_further_tables_of_block_heads_are_where_the_drafter_looks(tmp_path):
    folder, right = dflash_folder(tmp_path / "dspark", "dspark")
    hidden, token = np.random.default_rng(1).normal(size=E).astype(np.float32), 9
    joined = np.concatenate([hidden, right.tensors["markov_head.markov_w1.weight"][token]]).astype(np.float32)[None]
    _, model = loaded(opened(folder), "reference", "confidence")
    found = model.forward(Batch.chain(np.int32([0]), hidden=joined)).rows()[0, 0]
    assert abs(found - right.confidence(hidden, token)) < 1e-4
    folder, right = dflash_folder(tmp_path / "dflash2", "dflash2")
    file, made = opened(folder), {}
    for name, given in (("predecessor", None), ("successor", None), ("selector", hidden[None])):
        _, model = loaded(file, "reference", name)
        tokens = np.int32([token if name == "predecessor" else 3])
        passed = model.forward(Batch.chain(tokens, hidden=given, features=("output",)))
        made[name] = passed.rows()[0] if given is not None else passed.features("output")[0]
    assert abs(np.prod([*made.values()], axis=0).sum() - right.score(hidden, token, 3)) < 1e-3


def as_published(head, path, stored):
    """The folder that a trainer would make of an EAGLE-3 head in a GGUF file."""
    file, tensors = ModelFile.open(head), {}
    n_heads, head_dim = (file.get(f"eagle3.{key}", int) for key in ("attention.head_count", "attention.key_length"))
    ours = {written: name for name, written in NAMES.items()}
    for name, tensor in file.tensors.items():
        values, part = tensor.floats(), name.removeprefix("blk.0.")
        if part in ("attn_q.weight", "attn_k.weight"):  # neighbours become halves
            values = values.reshape(n_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        own = {"attn_norm_2.weight": "hidden_norm.weight", **ours}.get(part)
        outside = {"output_norm.weight": "norm.weight", "fc.weight": "fc.weight"}
        tensors[outside[name] if own is None else f"layers.0.{own}"] = (
            oracle.as_bfloat16(values) if stored == "bfloat16" else values
        )
    config = {
        "architectures": ["Eagle3DraftModel"],
        "norm_before_residual": True,
        oracle.KEY: file.get("eagle3.target_layers", list[int]),
        "num_hidden_layers": 1,
        "hidden_size": n_heads * head_dim,
        "num_attention_heads": n_heads,
        "intermediate_size": file.get("eagle3.feed_forward_length", int),
        "rms_norm_eps": file.get("eagle3.attention.layer_norm_rms_epsilon", float),
        "vocab_size": V,
    }
    return oracle.write(path, config, tensors)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_an_engine_drafts_with_a_folder_as_with_the_gguf_file_of_the_same_head(stored, tmp_path):
    head, found = copying_head(TARGET), []
    for draft_model in (head, as_published(head, tmp_path / "head", stored)):
        how = {"spec_type": "draft-eagle3", "spec_fixed": True, "threads": 1, "n_ctx": 128}
        with Engine.load(predictable(TARGET), draft_model=draft_model, **how) as engine:
            result = engine.generate([3, 5, 9], max_tokens=40, temperature=0, ignore_eos=True)
        found.append((result.tokens, result.stats.n_drafted, result.stats.n_accepted))
        with Engine.load(predictable(TARGET), draft_model=draft_model, threads=1, n_ctx=128) as engine:
            assert "draft-eagle3" in engine.config["spec_type"]  # `auto` finds the kind of head
    assert found[0] == found[1]
    assert found[0][2] > 10


def test_a_folder_gets_as_many_bits_as_its_target_and_gguf_files_keep_theirs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, target = as_published(copying_head(TARGET), tmp_path / "head", "bfloat16"), predictable(TARGET)
    kept = tmp_path / "cache" / "augury" / "quantized"

    def kinds(**options):
        with Engine.load(
            target, spec_type="draft-eagle3", draft_model=folder, spec_options={"draft-eagle3": options}
        ) as engine:
            return engine.generate([3, 5, 9], max_tokens=20, temperature=0).tokens, len([*kept.glob("*.gguf")])

    plain, n = kinds()
    assert n == 0  # the target has floats itself
    assert kinds(quant="q8_0") == (plain, 1)
    assert kinds(quant="q8_0") == (plain, 1)  # made once
    assert kinds(quant="q4_0") == (plain, 2)
    (made,) = kept.glob("*-q8_0-*.gguf")
    with ModelFile.open(made) as file:
        assert {file.tensors[name].type.name for name in ("fc.weight", "blk.0.attn_q.weight")} == {"Q8_0"}
        assert {file.tensors[name].type.name for name in ("output_norm.weight", "blk.0.attn_norm.weight")} == {"F32"}
    with pytest.raises(OptionError, match="quant is 'q3', expected q4_0, "):
        kinds(quant="q3")


def test_as_many_bits_as_a_target():
    kinds = {name: quant_like(tiny_file(name)) for name in (TARGET,)}
    assert kinds == {TARGET: "none"}


REFUSED = [
    ({"hidden_act": "gelu"}, {}, "hidden_act to 'gelu'"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {}, "positions of type 'dynamic'"),
    ({"partial_rotary_factor": 0.5}, {}, "partial_rotary_factor"),
    ({"layer_types": ["chunked_attention"], "sliding_window": 4}, {}, "layer_types"),
    ({oracle.KEY: [2, "x"]}, {}, "layers of the target"),
    ({"target_hidden_size": 128}, {}, r"fc\.weight has shape"),
    ({"hidden_size": None}, {}, "hidden_size is None"),
    ({}, {"midlayer.self_attn.sinks": np.zeros(4, np.float32)}, r"tensors midlayer\.self_attn\.sinks are not understood"),
    ({}, {"norm.weight": None}, r"tensor 'norm\.weight' is missing"),
    ({"speculators_model_type": "medusa"}, {}, "states 'medusa', no head of a known kind"),
    ({"speculators_model_type": "peagle"}, {}, "tensor 'mask_hidden' is missing"),
    ({"mask_token_id": 1}, {"mask_hidden": np.zeros((1, 1, 8), np.float32)}, "mask_hidden has 8 values, expected 768"),
    ({}, {"mask_hidden": np.zeros((1, 1, 3 * E), np.float32)}, "mask_token_id is None"),
]


@pytest.mark.parametrize(("changes", "tensors", "match"), REFUSED)
def test_what_is_not_understood_is_refused_by_name(changes, tensors, match, tmp_path):
    config = EAGLES["llama4"] | {"model_type": "llama"} | changes
    drawn = oracle.eagle_tensors(EAGLES["llama4"], 3, E, first="midlayer.") | tensors
    oracle.write(tmp_path / "head", config, {name: each for name, each in drawn.items() if each is not None})
    with pytest.raises(AuguryError, match=match):
        open_model(tmp_path / "head", REGISTRY, Progress())


def test_an_embedding_of_masks_beside_a_head_is_refused(tmp_path):
    folder, _ = dflash_folder(tmp_path / "head", "z-lab")
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="has an embedding of masks in place of the target's"):
        open_model(folder, REGISTRY, Progress())


def test_other_models_and_damaged_folders_say_what_to_do(tmp_path):
    def refused(**files):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        oracle.write(folder, {"architectures": ["LlamaForCausalLM"], **SIZES}, {"norm.weight": np.ones(E, np.float32)})
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_bytes(content)
        with pytest.raises(AuguryError) as error:
            open_model(folder, REGISTRY, Progress())
        return str(error.value)

    assert "llama.cpp's convert_hf_to_gguf.py makes" in refused()
    assert "not JSON" in refused(config__json=b"{")
    assert "expected an object" in refused(config__json=b"[]")
    assert "no usable safetensors file" in refused(more__safetensors=b"\xff" * 64)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="is a directory, expected a GGUF file"):
        open_model(tmp_path / "empty", REGISTRY, Progress())


def test_inspect_says_what_a_head_is_and_for_which_target(tmp_path, capsys):
    folder = eagle_folder(tmp_path / "head", "speculators")[0]
    parser = Parser()
    add_parsers(parser.add_subparsers(), REGISTRY)
    args = parser.parse_args(["inspect", str(folder)])
    assert args.run(args) == 0
    shown = capsys.readouterr().out
    for text in (
        "general.architecture",
        "'eagle3'",
        "'EAGLE-3 head'",
        "general.base_model.0.name",
        "'someone/model'",
        "[0, 2, 4, 5]",
    ):
        assert text in shown


def test_a_head_of_other_tokens_is_refused_by_the_first_one_that_differs(tmp_path):
    folder, own = as_published(copying_head(TARGET), tmp_path / "head", "float32"), predictable(TARGET)
    texts = ModelFile.open(own).get("tokenizer.ggml.tokens", list[str], [])
    vocab = {text: token for token, text in enumerate(texts[:100])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab | {texts[70]: 71, texts[71]: 70}}}))
    with pytest.raises(UnsupportedError, match=re.escape(f"token 70 is {texts[70]!r} to {own} and {texts[71]!r} to the head")):
        Engine.load(own, draft_model=folder, threads=1, n_ctx=128)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [[text, 0.0] for text in texts[:100]]}}))
    with Engine.load(own, draft_model=folder, threads=1, n_ctx=128) as engine:
        assert "draft-eagle3" in engine.config["spec_type"]
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": "b"}}}')
    with pytest.raises(ModelFileError, match="no tokens by id"):
        opened(folder)
