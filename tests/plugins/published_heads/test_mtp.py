"""Layers that predict further tokens are read from safetensors, and draft as those of the GGUF file of the same model.

What that drafts is llama.cpp's (`tests/data/drafts`), so names, order and norms have to be right.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from oracles.drafts import agreeing, draft_file, error, parted, runs
from oracles.models import altered, tiny_file
from oracles.passes import hidden_states, mtp
from oracles.published_heads import Mtp, as_bfloat16 as bf16, mtp_tensors, write
from support.cpu_backends import cpu_backends
from support.head_rig import OPTIONS, REGISTRY, Told

from augury import Engine
from augury.batch import Batch
from augury.cli import Parser
from augury.cli.models import add_parsers
from augury.errors import AuguryError
from augury.files.gguf import ModelFile
from augury.files.models import open_model
from augury.files.mtp_file import n_mtp_of, with_mtp
from augury.files.quantized import quantized
from augury.interfaces import Progress
from augury.loader import Loader, make_backend, plan_of

QWEN = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    **{f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
LATENT = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}
EXPERTS = {"mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
EXPERTS |= {f"mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")}
GLM_EXPERTS = {name.replace("shared_expert.", "shared_experts."): each for name, each in EXPERTS.items()}
OWN = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
SPECULATORS = dict(zip(("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"), OWN.values(), strict=True))
DEEPSEEK = {each: each for each in ("eh_proj", "enorm", "hnorm", "embed_tokens")}
DEEPSEEK |= {f"shared_head.{each}": f"shared_head_{each}" for each in ("norm", "head")}
STEP = {name: ours for name, ours in QWEN.items() if "mlp" not in name} | {"post_attention_layernorm": "ffn_norm"}
STEP |= {"self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp"}
for part in ("gate", "up", "down"):
    STEP |= {f"moe.{part}_proj": f"ffn_{part}_exps", f"share_expert.{part}_proj": f"ffn_{part}_shexp"}
MIMO = QWEN | {"post_attention_layernorm": "ffn_norm", "self_attn.attention_sink_bias": "attn_sinks"}
DEEPSEEK4 = {
    f"attn.{theirs}": f"attn_{ours}"
    for theirs, ours in [
        ("attn_sink", "sinks"),
        ("wq_a", "q_a"),
        ("wq_b", "q_b"),
        ("q_norm", "q_a_norm"),
        ("wkv", "kv"),
        ("kv_norm", "kv_a_norm"),
        ("wo_a", "output_a"),
        ("wo_b", "output_b"),
    ]
}
DEEPSEEK4 |= {f"hc_{part}_{each}": f"hc_{part}_{each}" for part in ("attn", "ffn") for each in ("fn", "base", "scale")}
DEEPSEEK4 |= {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "ffn.gate": "ffn_gate_inp"}
DEEPSEEK4 |= {f"ffn.shared_experts.w{i}": f"ffn_{each}_shexp" for i, each in ((1, "gate"), (2, "down"), (3, "up"))}
V4 = {"enorm": "enorm", "hnorm": "hnorm", "norm": "shared_head_norm"}
BESIDE = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm"}
KINDS = {  # the model, its `model_type`, where its layer and what is beside that are, the names of that, and of the layer
    "qwen35": ("mtp-qwen35", "qwen3_5_text", "mtp.layers.0.", "mtp.", OWN, QWEN | EXPERTS),
    "qwen35moe": ("mtp-qwen35moe", "qwen3_5_moe_text", "mtp.layers.0.", "mtp.", OWN, QWEN | EXPERTS),
    "qwen3next": ("mtp-qwen3next", "qwen3_next", "mtp.layers.0.", "mtp.", OWN, QWEN | EXPERTS),
    "speculators": ("mtp-qwen35moe", "qwen3_5_moe_text", *["mtp_layers.0."] * 2, SPECULATORS, QWEN | EXPERTS),
    "glm4moe": ("mtp-glm4moe", "glm4_moe", *["model.layers.{}."] * 2, DEEPSEEK, QWEN | GLM_EXPERTS),
    "deepseek": ("mtp-deepseek2", "deepseek_v3", *["model.layers.{}."] * 2, DEEPSEEK, QWEN | LATENT | GLM_EXPERTS),
    "mimo2": ("mtp-mimo2", "mimo_v2_flash", *["model.mtp.layers.0."] * 2, BESIDE | {"final_layernorm": OWN["norm"]}, MIMO),
    "step35": (
        *("mtp-step35", "step3p5", *["model.layers.{}."] * 2),
        *(BESIDE | {"transformer.shared_head.norm": "shared_head_norm"}, STEP),
    ),
    "deepseek4": ("mtp-deepseek4", "deepseek_v4", *["mtp.0."] * 2, V4, DEEPSEEK4),
}


SETTINGS = {  # that say something of each layer
    "mimo2": {"swa_num_key_value_heads": 2},
    "step35": {
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2],
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
        "swiglu_limits_shared": [None, 0.3, None, 0.02, 0.3, 0.3],
    },
    "deepseek4": {"compress_ratios": [0, 0, 4, 128, 0], "swiglu_limit": 10.0},
}


def published(path, kind, change=lambda tensors: tensors):
    """A model's folder as it is published, of the same weights, with a tensor of its own layers."""
    name, model_type, *_ = KINDS[kind]
    file = ModelFile.open(draft_file(name))
    (n, n_mtp), tensors = n_mtp_of(file), {"model.layers.0.input_layernorm.weight": np.ones(4, np.float32)}
    for i in range(n_mtp):
        tensors |= layer_of(file, kind, i)
    n_experts = file.get(f"{file.architecture}.expert_count", int, 0)
    sizes = {"model_type": model_type, "num_hidden_layers": n, "num_experts": n_experts, **SETTINGS.get(kind, {})}
    config = {"architectures": ["SomeModelForCausalLM"], **sizes}
    if kind == "speculators":
        config = {"speculators_model_type": "mtp", "architectures": ["MTPDraftModel"], "transformer_layer_config": sizes}
    tensors = {key: np.float32(each) for key, each in tensors.items()}
    return write(path, config, change(tensors), n_files=2)


def layer_of(file, kind, i):
    """The tensors of a layer, by their names in safetensors."""
    name, _, layer, beside, of_head, names = KINDS[kind]
    own, at, tensors = file.tensors, n_mtp_of(file)[0] + i, {}
    layer, beside = (each.format(at) for each in (layer, beside))
    values = {key.removeprefix(f"blk.{at}."): each.floats() for key, each in own.items() if key.startswith(f"blk.{at}.")}
    is_shifted = kind in ("qwen35", "qwen35moe", "qwen3next", "speculators", "step35")
    if "attn_k_b.weight" in values:  # of one head
        values["attn_kv_b.weight"] = np.concatenate([values["attn_k_b.weight"].T, values["attn_v_b.weight"]])
    if "attn_qkv.weight" in values and kind == "mimo2":
        parts = np.split(values.pop("attn_qkv.weight"), 3)
        values |= {f"attn_{each}.weight": part for each, part in zip("qkv", parts, strict=True)}
    values = {key.replace("layer_output_norm", "nextn.shared_head_norm"): each for key, each in values.items()}
    if kind == "deepseek4":
        halves = np.split(values["nextn.eh_proj.weight"], 2, axis=1)
        tensors |= {f"{layer}{each}_proj.weight": half for each, half in zip("eh", halves, strict=True)}
        heads = {each: own[f"output_hc_{each}.weight"].floats() for each in ("fn", "base", "scale")}
        tensors |= {f"{layer}hc_head_{each}": found for each, found in heads.items()}
    # which GLM's and DeepSeek's experts do without
    scales = {key: each for key, each in values.items() if "qwen" in name or not key.startswith("ffn")}
    for end in ("weight", "bias"):
        for theirs, ours in names.items():
            if f"{ours}.{end}" in values:
                found = values[f"{ours}.{end}"] * (scales.get(f"{ours}.scale", 1.0) if end == "weight" else 1.0)
                found = found[None] if ours == "ffn_gate_inp_shexp" else found
                is_bare = ours == "attn_sinks" or ours.startswith("hc_")
                tensors[f"{layer}{theirs}" + ("" if is_bare else f".{end}")] = (
                    found - 1 if is_shifted and ours.endswith("norm") else found
                )
    for theirs, ours in of_head.items():
        if (found := values.get(f"nextn.{ours}.weight")) is not None:
            tensors[f"{beside}{theirs}.weight"] = found - 1 if is_shifted and ours.endswith("norm") else found
    if "exp_probs_b.bias" in values:
        bias = {"step35": "moe.router_bias", "deepseek4": "ffn.gate.bias"}.get(kind, "mlp.gate.e_score_correction_bias")
        tensors[f"{layer}{bias}"] = values["exp_probs_b.bias"]
    return tensors if kind == "step35" else tensors | experts_of(values, layer, kind, scales)


def experts_of(values, layer, kind, scales):
    """The experts of a layer: Qwen's in one tensor, the others' each in its own."""
    tensors = {}
    for each in ("gate", "up", "gate_up", "down"):
        if (found := values.get(f"ffn_{each}_exps.weight")) is None:
            continue
        found = found * scales.get(f"ffn_{each}_exps.scale", np.ones(1))[:, None, None]
        if KINDS[kind][0].startswith("mtp-qwen35"):
            tensors[f"{layer}mlp.experts.{each}_proj"] = found
            continue
        for part, rows in zip(each.split("_"), np.split(found, 1 + each.count("_"), axis=1), strict=True):
            number = {"gate": 1, "down": 2, "up": 3}[part]
            at, end = ("ffn.", f"w{number}") if kind == "deepseek4" else ("mlp.", f"{part}_proj")
            tensors |= {f"{layer}{at}experts.{i}.{end}.weight": expert for i, expert in enumerate(rows)}
    return tensors


def joined(folder, kind):
    model = ModelFile.open(parted(draft_file(KINDS[kind][0]))[0])
    return with_mtp(model, open_model(folder, REGISTRY, Progress()))


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"deepseek4"}))
def test_layers_in_safetensors_draft_as_those_in_the_model_s_gguf_file(kind, tmp_path):
    folder, name = published(tmp_path / "model", kind), KINDS[kind][0]
    run = runs(name)[-1]
    found, logits = zip(*Told(name, "reference", change=lambda _: joined(folder, kind)).replayed(run), strict=True)
    assert list(found) == run.drafts.tolist()
    assert error(name, logits, run.logits) < 1e-9


def test_whatever_is_not_understood_of_a_layer_is_refused_and_the_model_s_own_tensors_are_not_read(tmp_path):
    def refused(kind, change, **config):
        folder = published(tmp_path / str(len([*tmp_path.iterdir()])), kind, change)
        settings = folder / "config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | config))
        with pytest.raises(AuguryError) as error:
            joined(folder, kind)
        return str(error.value)

    with_few = refused("deepseek4", dict, compress_ratios=[0, 0, 4, 128])
    assert "compress_ratios to [0, 0, 4, 128], expected 5" in with_few
    halved = refused("deepseek4", lambda own: {key: each for key, each in own.items() if key != "mtp.0.h_proj.weight"})
    assert "is made of mtp.0.e_proj.weight, expected e_proj.weight and h_proj.weight" in halved
    other = "mtp.layers.0.self_attn.sinks"
    assert f"tensors {other} are not" in refused("qwen35", lambda own: own | {other: np.ones(2, np.float32)})
    assert "of 'qwen4' are not read from safetensors" in refused("qwen35", dict, model_type="qwen4")
    assert "convert_hf_to_gguf.py makes" in refused("qwen35", lambda own: {"norm.weight": np.ones(2, np.float32)})
    lacks = {f"model.layers.2.mlp.experts.1.{each}_proj.weight" for each in ("gate", "up", "down")}
    without = refused("glm4moe", lambda own: {key: each for key, each in own.items() if key not in lacks})
    assert "is made of 1 experts, expected 2" in without
    assert "for 1 layers of architecture 'glm4moe'" in refused("glm4moe", dict, num_hidden_layers=1)
    none = refused("speculators", lambda own: {"embed_tokens.weight": np.ones((2, 2), np.float32)})
    assert "no layers that predict further tokens, expected tensors such as mtp.fc.weight" in none


def test_the_layer_of_deepseek_4_is_that_of_the_gguf_file_and_its_output_has_a_connection_of_its_own(tmp_path):
    own, made = ModelFile.open(draft_file("mtp-deepseek4")), joined(published(tmp_path / "model", "deepseek4"), "deepseek4")
    unread = ("scale", "exp_probs_b_vl.bias")  # by this family
    for name, tensor in own.tensors.items():
        if name.startswith("blk.4.") and (name.startswith("blk.4.hc_") or not name.removesuffix(".weight").endswith(unread)):
            assert np.array_equal(made.tensors[name].floats(), tensor.floats()), name
    for key in ("block_count", "attention.compress_ratios", "swiglu_clamp_exp", "swiglu_clamp_shexp"):
        assert np.array_equal(*(each.metadata[f"deepseek4.{key}"] for each in (made, own))), key
    for file in (made, with_mtp(*map(ModelFile.open, parted(draft_file("mtp-deepseek4"))))):
        plan = plan_of(file, REGISTRY)
        names = [each.output.connection.coefficients.weight for each in (plan, plan.mtp[0])]
        assert names == ["output_hc_fn.weight", "blk.4.nextn.hc_head_fn.weight"]


def test_an_engine_drafts_with_a_model_s_folder(tmp_path, capsys):
    folder = published(tmp_path / "model", "glm4moe", lambda own: {key: bf16(each) for key, each in own.items()})
    texts = []
    for draft_model in (folder, None):
        own = parted(agreeing("mtp-glm4moe"))[0]
        with Engine.load(own, draft_model=draft_model, spec_type="draft-mtp" if draft_model else "none", threads=1) as engine:
            result = engine.generate([3, 5, 9], max_tokens=20, temperature=0, ignore_eos=True)
        texts.append(result.tokens)
        assert (result.stats.n_drafted > 0) is (draft_model is not None)
    assert texts[0] == texts[1]
    parser = Parser()
    add_parsers(parser.add_subparsers(), REGISTRY)
    args = parser.parse_args(["inspect", str(folder)])
    assert args.run(args) == 0
    assert "layers that predict further tokens, for a glm4moe model of 2 layers" in capsys.readouterr().out


def test_layers_get_as_many_bits_as_the_model_and_what_chooses_experts_keeps_its_floats(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = published(tmp_path / "model", "glm4moe")
    file = open_model(folder, REGISTRY, Progress())
    kinds = {name.removeprefix("blk.2."): each.type.name for name, each in quantized(file, "q8_0", Progress()).tensors.items()}
    expected = {
        "attn_q.weight": "Q8_0",
        "ffn_down_exps.weight": "Q8_0",
        "ffn_gate_inp.weight": "F32",
        "nextn.enorm.weight": "F32",
    }
    assert kinds | expected == kinds
    loader = Loader(REGISTRY, make_backend(REGISTRY, "reference"), Progress())
    for quant, kind in ((None, "F32"), ("q4_0", "Q4_0")):  # as the model, and as told
        model = loader.open(parted(draft_file("mtp-glm4moe"))[0], folder, quant)
        assert model.tensors["blk.2.attn_q.weight"].type.name == kind


OF_MODELS = {  # what llama.cpp's files leave out, or llama.cpp does not use: the tiny model, and `model_type`
    "ernie": ("ernie4_5-moe-moe", "ernie4_5_moe"),
    "exaone-moe": ("exaone-moe-moe", "exaone_moe"),
    "exaone4": ("exaone4-64-layers", "exaone4_5_text"),
}
LENT = {"embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
SIZE_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_hidden_layers": "block_count",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.parametrize("kind", OF_MODELS)
def test_a_layer_that_llama_cpp_does_not_compute_drafts_what_its_publishers_model_does(kind, backend, tmp_path):
    name, model_type = OF_MODELS[kind]
    file = altered(tiny_file(name), without=("rope_freqs.weight",))
    own = {key: file.metadata[f"{file.architecture}.{each}"] for key, each in SIZE_KEYS.items()}
    config = {"model_type": model_type, **own}
    tensors = mtp_tensors(config)
    stated = {"text_config": config, "model_type": "exaone4_5"} if kind == "exaone4" else config
    joined_file = with_mtp(file, open_model(write(tmp_path / "head", stated, tensors), REGISTRY, Progress()))
    lent = {f"{each}.weight": file.tensor(f"{ours}.weight").floats() for each, ours in LENT.items()}
    right = Mtp(config, tensors | lent)
    make = REGISTRY.backends[backend]
    model = make(make.options_class()).load(joined_file, plan_of(joined_file, REGISTRY), OPTIONS, Progress())
    text = np.random.default_rng(4).integers(0, 128, 40).astype(np.int32)
    hidden = hidden_states(model, text)
    expected, given = right.forward(text, hidden[:-1])
    logits, made = mtp(model, text, 0, hidden[:-1])
    assert np.abs(logits - expected).max() < 1e-4
    assert np.abs(made - given).max() < 1e-4
    said = model.forward(Batch.chain(text)).rows()  # by what is given on of the model, too
    assert np.abs(said[-1] - hidden[-1] @ lent["lm_head.weight"].T).max() < 1e-4
    draft, more = [int(logits[-1].argmax())], made[-1:]
    for i in range(3):
        row, more = mtp(model, np.int32(draft[-1:]), len(text) + i, more)
        draft.append(int(row[-1].argmax()))
    drafted, states = text, hidden[:-1]
    for token in draft:
        expected, given = right.forward(drafted, states)
        assert token == expected[-1].argmax()
        drafted, states = np.append(drafted, token), np.concatenate([states, given[-1:]])
    model.close()


def test_the_layers_of_another_exaone_are_refused_by_the_setting_that_says_so(tmp_path):
    config = {"model_type": "exaone_moe", "num_hidden_layers": 2, "mtp_layer_types": ["sliding_attention"]}
    folder = write(tmp_path / "head", config, {"mtp.fc.weight": np.ones((2, 4), np.float32)})
    with pytest.raises(AuguryError, match=r"sets mtp_layer_types to .'sliding_attention'., expected full_attention"):
        open_model(folder, REGISTRY, Progress())
