import math
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.models import FAMILIES, NAMES, ORACLES, altered, file_for_plans, tiny_file

from augury import Registry
from augury.blocks import Activation, Attention, Embedding, FeedForward, Output
from augury.errors import AuguryError, ModelFileError, UnsupportedError
from augury.plugins.architectures import rope

ARCHITECTURES = Registry.discover().architectures


def plan_of(file):
    return ARCHITECTURES[file.architecture].plans(file)["main"]


def plan_with(family="llama", *, without=(), arrays=None, **values):
    """The plan of a tiny model with other metadata; `__` stands for a dot in a key."""
    metadata = {f"{family}.{key.replace('__', '.')}": value for key, value in values.items()}
    return plan_of(altered(tiny_file(f"{family}-dense"), metadata=metadata, without=without, arrays=arrays))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_named_as_its_files_name_it(family):
    assert ARCHITECTURES[family].name == family == tiny_file(f"{family}-dense").architecture


def test_a_family_that_differs_in_fields_names_known_ones():
    family = ARCHITECTURES["llama"].family("tidal", "Heads are normed.", attention_args={"has_head_norms": True})
    assert (family.name, family.__doc__, family.rope_args) == ("tidal", "Heads are normed.", ARCHITECTURES["llama"].rope_args)
    with pytest.raises(TypeError, match="tidal has a field 'attention', which Llama does not know"):
        ARCHITECTURES["llama"].family("tidal", "Heads are normed.", attention={})


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_embedding_layers_and_output(name):
    file = tiny_file(name)
    plan = plan_of(file)

    assert [[type(block) for block in layer.blocks] for layer in plan.layers] == [[Attention, FeedForward]] * 2
    assert [type(block) for block in plan.blocks()] == [Embedding, *[Attention, FeedForward] * 2, Output]
    assert {name: file.tensors[name].shape for name in plan.shapes()} == plan.shapes()
    assert (plan.embedding.n_vocab, plan.embedding.n_embd, plan.n_vocab) == (128, 256, 128)
    assert plan.n_ctx_train == 256


def test_llama_rope_is_interleaved_and_its_factors_divide():
    plan = plan_with("llama", arrays={"rope_freqs.weight": np.linspace(1, 8, 64)})

    attention = plan.layers[0].mixer
    assert attention.rope.is_interleaved
    expected = rope.plain(128, 10000.0) / np.linspace(1, 8, 64).astype(np.float32)
    np.testing.assert_array_equal(attention.rope.frequencies, expected)


def test_qwen_ropes_are_not_interleaved_and_take_no_factors():
    for family in ("qwen2", "qwen3"):
        attention = plan_with(family).layers[0].mixer
        assert not attention.rope.is_interleaved
        np.testing.assert_array_equal(attention.rope.frequencies, rope.plain(attention.head_dim, 10000.0))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3moe-moe", "feed_forward_length", 0),
        ("deepseek2-moe", "attention.value_length", "unknown"),
        ("llama-dense", "rope.scaling.original_context_length", -1),
        ("llama-dense", "pooling_type", ["mean"]),
        ("mistral3-dense", "rope.scaling.yarn_beta_fast", 0.0),
        ("llama-dense", "who.knows", [[1], ["x"]]),
    ],
)
def test_a_key_that_the_plan_does_not_need_may_be_anything(name, key, value):
    file = file_for_plans(name)
    odd = plan_of(altered(file, metadata={f"{file.architecture}.{key}": value}))
    assert odd.shapes() == plan_of(file).shapes()


def test_biases_and_output_weights_are_optional():
    names = [f"blk.{layer}.attn_{part}.bias" for layer in (0, 1) for part in "qkv"]
    plan = plan_with("qwen2", without=[*names, "output.weight", "output.bias"])

    assert [plan.layers[0].mixer.q.bias, plan.layers[1].mixer.v.bias] == [None, None]
    assert plan.output.weight.weight == "token_embd.weight"
    assert plan_with("qwen2").layers[0].mixer.q.bias == "blk.0.attn_q.bias"
    assert plan_with("llama").layers[0].mixer.o.bias == "blk.0.attn_output.bias"


def test_head_sizes_follow_from_the_embedding_where_no_key_states_them():
    keys = ["attention.key_length", "attention.value_length", "rope.dimension_count"]
    plan = plan_with("llama", without=[f"llama.{key}" for key in keys])

    attention = plan.layers[0].mixer
    assert (attention.head_dim, attention.value_dim, 2 * len(attention.rope.frequencies)) == (128, 128, 128)
    assert attention.scale == 1 / math.sqrt(128)


def test_head_counts_may_differ_by_layer():
    arrays = {
        f"blk.1.attn_{part}.{kind}": np.zeros((128, 256)[: 2 - (kind == "bias")])
        for part in "kv"
        for kind in ("weight", "bias")
    }
    plan = plan_with("llama", arrays=arrays, attention__head_count_kv=np.array([2, 1]))

    assert [layer.mixer.n_kv_heads for layer in plan.layers] == [2, 1]


def test_a_rope_may_turn_a_part_of_a_head():
    plan = plan_with("qwen3", rope__dimension_count=32)

    assert len(plan.layers[0].mixer.rope.frequencies) == 16


def test_linear_scaling_divides_the_frequencies_under_either_key():
    plain = plan_with("qwen2").layers[0].mixer.rope

    new = plan_with("qwen2", rope__scaling__factor=4.0).layers[0].mixer.rope
    old = plan_with("qwen2", without=["qwen2.rope.scaling.factor"], rope__scale_linear=4.0).layers[0].mixer.rope
    none = plan_with("qwen2", rope__scaling__type="none", rope__scaling__factor=4.0).layers[0].mixer.rope

    np.testing.assert_array_equal(new.frequencies, plain.frequencies / 4)
    np.testing.assert_array_equal(old.frequencies, plain.frequencies / 4)
    np.testing.assert_array_equal(none.frequencies, plain.frequencies)
    assert new.magnitude == 1.0


def test_yarn_scaling_is_worked_out_into_frequencies_and_magnitude():
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__attn_factor": 1.5}
    plan = plan_with("llama", **keys, rope__scaling__original_context_length=4096, without=["rope_freqs.weight"])

    yarn, found = rope.Yarn(4.0, 4096), plan.layers[0].mixer.rope
    np.testing.assert_array_equal(found.frequencies, yarn.frequencies(rope.plain(128, 10000.0), 10000.0))
    assert found.magnitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))
    assert found.is_interleaved


def test_other_scalings_are_unsupported():
    with pytest.raises(UnsupportedError, match=r"'llama\.rope\.scaling\.type' is 'dynamic'"):
        plan_with("llama", rope__scaling__type="dynamic")


def test_attention_to_later_tokens_is_unsupported():
    with pytest.raises(UnsupportedError, match=r"'llama\.attention\.causal' is false"):
        plan_with("llama", attention__causal=False)


def test_mixtures_of_experts_are_unsupported():
    with pytest.raises(UnsupportedError, match="mixtures of experts"):
        plan_with("qwen2", expert_count=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"expert_used_count": 9}, "expert_used_count' is 9, expected 1 to 8"),
        ({"expert_count": 4}, "blk.0.ffn_gate_inp.weight' has shape .8, 256., expected .4, 256."),
        ({"expert_group_count": 3}, "expert_group_count' is 3, expected a divisor of the 8 experts"),
        ({"expert_group_count": 8, "expert_group_used_count": 1}, "expected groups with at least the 2 experts"),
    ],
)
def test_experts_that_do_not_fit_each_other_are_refused(values, message):
    metadata = {f"llama.{key}": value for key, value in values.items()}

    with pytest.raises(ModelFileError, match=message):
        plan_of(altered(tiny_file("llama-moe-2-of-8"), metadata=metadata))


def test_blocks_of_positions_have_more_than_one():
    with pytest.raises(ModelFileError, match="compress_ratios' is -4, expected a divisor above 1"):
        plan_of(altered(tiny_file("qwen4exp-moe"), metadata={"qwen4exp.attention.compress_ratios": np.array([-4] * 4)}))


@pytest.mark.parametrize(
    ("name", "scale"),
    [("llama-moe", 1.0), ("qwen3next-moe", 1.0), ("lfm2moe-moe", 1.0), ("dots1-moe", 1.75), ("nemotron_h_moe-moe", 1.75)],
)
def test_some_families_scale_the_weights_of_experts(name, scale):
    file = tiny_file(name)
    plan = plan_of(altered(file, metadata={f"{file.architecture}.expert_weights_scale": 1.75}))

    assert plan.layers[-1].feed_forward.router.scale == scale


def test_layers_may_use_different_numbers_of_experts():
    file = tiny_file("qwen3moe-moe-3-of-8")
    plan = plan_of(altered(file, metadata={"qwen3moe.expert_used_count": np.array([1, 3])}))

    assert [layer.feed_forward.router.n_used for layer in plan.layers] == [1, 3]


PREDICTING = (
    *("bailingmoe2-moe", "cohere2moe-moe", "deepseek2-moe", "deepseek32-moe", "dots3note-moe", "exaone-moe-moe"),
    *("glm-dsa-moe", "glm4-dense", "glm4moe-moe", "glm5-next-moe", "hy_v3-moe", "mimo2-moe", "qwen35-dense"),
    *("qwen35moe-moe", "step35-moe"),
)


@pytest.mark.parametrize("name", PREDICTING)
def test_layers_that_predict_further_tokens_are_not_of_the_model(name):
    file = file_for_plans(name)
    n = file.metadata[f"{file.architecture}.block_count"]
    metadata = {
        key: np.append(value, value[-1:])
        for key, value in file.metadata.items()
        if isinstance(value, np.ndarray) and len(value) == n and key.startswith(file.architecture)
    }
    metadata |= {f"{file.architecture}.block_count": n + 1, f"{file.architecture}.nextn_predict_layers": 1}

    assert str(plan_of(altered(file, metadata=metadata))) == str(plan_of(file))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        *[("spark2_5-dense", 1), ("cohere2-dense", 0), ("maple-moe", 1), ("laguna-moe", 1), ("lfm2-dense", 0)],
        *[("deepseek4-moe", 0), ("step35-moe", 1)],
    ],
)
def test_layers_with_a_window_may_turn_fewer_values(name, layer):
    file = tiny_file(name)
    plan = plan_of(altered(file, metadata={f"{file.architecture}.rope.dimension_count_swa": 16}))

    assert len(plan.layers[layer].mixer.rope.frequencies) == 8


def test_a_scaling_that_is_none_leaves_deepseek_s_scores_alone():
    metadata = {"deepseek2.rope.scaling.type": "none", "deepseek2.rope.scaling.factor": 4.0}
    plain, stretched = (plan_of(altered(tiny_file("deepseek2-moe"), metadata=each)) for each in ({}, metadata))

    assert stretched.layers[0].mixer.scale == plain.layers[0].mixer.scale


def test_the_experts_tensors_are_those_of_the_plan():
    file = tiny_file("qwen2moe-moe-2-of-8")
    shapes = plan_of(file).shapes()

    assert {name: file.tensors[name].shape for name in shapes} == shapes
    assert {name.split(".")[2] for name in shapes if "exp" in name} == {
        *("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
        *("ffn_gate_inp_shexp",),
    }


def test_the_first_mistral_s_window_is_not_used():
    assert [layer.mixer.window for layer in plan_with("llama", attention__sliding_window=32).layers] == [None, None]


def test_qwen3_norms_its_heads():
    attention = plan_with("qwen3").layers[0].mixer

    assert (attention.q_norm.weight, attention.q_norm.size) == ("blk.0.attn_q_norm.weight", 64)
    assert attention.k_norm.weight == "blk.0.attn_k_norm.weight"


def test_gemma3_scales_its_embedding_and_norms_what_is_added():
    plan = plan_with("gemma3")

    assert plan.embedding.scale == 16.0
    assert plan.layers[0].mixer.post_norm.weight == "blk.0.post_attention_norm.weight"
    assert plan.layers[0].feed_forward.post_norm.weight == "blk.0.post_ffw_norm.weight"
    assert plan.layers[0].feed_forward.activation is Activation.GELU_HALF


def test_gemma3_mixes_local_and_global_layers_with_ropes_of_their_own():
    plan = plan_with("gemma3", rope__freq_base=1e6, rope__freq_base_swa=1e4, rope__scaling__factor=8.0)

    local, wide = (layer.mixer for layer in plan.layers)  # the file's array says so
    assert (local.window, wide.window) == (32, None)
    np.testing.assert_array_equal(local.rope.frequencies, rope.plain(128, 1e4))
    np.testing.assert_array_equal(wide.rope.frequencies, rope.plain(128, 1e6) / 8)


@pytest.mark.parametrize(("period", "windows"), [(2, [32, None]), (1, [None, None]), (6, [32, 32]), (0, [32, 32])])
def test_a_gemma3_pattern_may_be_a_period(period, windows):
    plan = plan_with("gemma3", attention__sliding_window_pattern=period)

    assert [layer.mixer.window for layer in plan.layers] == windows


def test_a_gemma3_without_a_window_has_one_rope():
    plan = plan_with("gemma3", rope__freq_base=1e6, without=["gemma3.attention.sliding_window"])

    assert [layer.mixer.window for layer in plan.layers] == [None, None]
    assert plan.layers[0].mixer.rope.frequencies[1] == plan.layers[1].mixer.rope.frequencies[1]


def test_gemma3_scales_products_by_the_head_size_whatever_a_key_says():
    assert plan_with("gemma3", attention__scale=0.25).layers[0].mixer.scale == 1 / math.sqrt(128)


def test_gemma3_may_cap_its_logits():
    assert plan_with("gemma3", final_logit_softcapping=30.0).output.softcap == 30.0
    assert plan_with("gemma3", final_logit_softcapping=0.0).output.softcap is None


def test_a_gemma4_layer_is_scaled_as_its_tensor_says():
    plan = plan_with("gemma4", arrays={"blk.1.layer_output_scale.weight": [0.75]})

    assert [layer.scale for layer in plan.layers] == [1.0, 0.75, 1.0]


def test_gemma4_layers_that_keep_nothing_read_the_last_ones_of_their_kind():
    plan = plan_of(tiny_file("gemma4-e"))
    assert [layer.mixer.source for layer in plan.layers if layer.mixer] == [None] * 4 + [4, 6]

    with pytest.raises(ModelFileError, match="shared_kv_layers' is 5, expected a local and a wide layer before these"):
        plan_of(altered(tiny_file("gemma4-e"), metadata={"gemma4.attention.shared_kv_layers": 5}))


def test_scales_cover_the_bias_in_feed_forwards_only():
    attention, feed_forward = plan_with("llama").layers[0].blocks

    assert attention.q.scale == pytest.approx(-0.09687872)
    assert attention.q.bias_scale == 1.0
    assert feed_forward.gate.bias_scale == feed_forward.gate.scale == pytest.approx(-0.04322224)


BAD_VALUES = [
    ("block_count", 0, "is 0, expected 1 to"),
    ("block_count", 10**9, "is 1000000000, expected 1 to"),
    ("block_count", 10**5, "is 100000, expected at most"),
    ("block_count", 3, "tensor 'blk.2.attn_q.weight' is missing"),
    ("block_count", "2", "expected an integer"),
    ("context_length", 0, "is 0, expected 1 to"),
    ("context_length", -1, "is -1, expected 1 to"),
    ("embedding_length", 255, "expected (vocabulary, 255)"),
    ("embedding_length", 2**40, "expected 1 to"),
    ("feed_forward_length", 385, "has shape (384, 256), expected (385, 256)"),
    ("feed_forward_length", np.array([384]), "expected 2 of 1 to"),
    ("attention.head_count", 0, "is 0, expected 1 to"),
    ("attention.head_count", 3, "expected a divisor of the 3 heads"),
    ("attention.head_count", 4, "has shape (256, 256), expected (512, 256)"),
    ("attention.head_count_kv", 0, "is 0, expected 1 to"),
    ("attention.head_count_kv", -2, "is -2, expected 1 to"),
    ("attention.head_count_kv", np.array([2, 0]), "expected 2 of 1 to"),
    ("attention.head_count_kv", np.array([0.5, 2.0]), "expected an array of integers"),
    ("attention.key_length", 256, "has shape (256, 256), expected (512, 256)"),
    ("attention.key_length", 0, "is 0, expected 1 to"),
    ("attention.value_length", 2**63, "expected 1 to"),
    ("attention.layer_norm_rms_epsilon", math.nan, "is nan, expected a finite number above 0"),
    ("attention.layer_norm_rms_epsilon", 0.0, "expected a finite number above 0"),
    ("attention.layer_norm_rms_epsilon", -1e-5, "expected a finite number above 0"),
    ("attention.layer_norm_rms_epsilon", math.inf, "expected a finite number above 0"),
    ("rope.dimension_count", 129, "is 129, expected 2 to 128"),
    ("rope.dimension_count", 127, "is 127, expected an even number"),
    ("rope.freq_base", math.nan, "is nan, expected a finite number"),
    ("rope.freq_base", 0.0, "expected a finite number of at least"),
    ("rope.scaling.factor", -2.0, "expected a finite number of at least 0"),
    ("rope.scaling.factor", math.inf, "expected a finite number of at least 0"),
    ("rope.scaling.type", 3, "expected a string"),
    ("rope.scaling.factor", 1e-300, "expected a finite number of at least 0.001"),
    ("rope.freq_base", 1e300, "at most 1e+12"),
    ("expert_count", -1, "is -1, expected 0 to"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), BAD_VALUES)
def test_a_value_that_makes_no_sense_is_an_error_that_names_it(key, value, message):
    file = altered(tiny_file("llama-dense"), metadata={f"llama.{key}": value})

    with pytest.raises(ModelFileError) as error:
        plan_of(file)

    assert message in str(error.value)
    assert key in str(error.value) or "tensor" in str(error.value)


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_key_that_is_missing_is_named(family, key):
    with pytest.raises(ModelFileError, match=f"'{family}.{key}' is missing"):
        plan_with(family, without=[f"{family}.{key}"])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_plan_is_checked(family):
    file = tiny_file(f"{family}-dense")
    optional = ("output.weight", "rope_freqs.weight", "cls.output.weight")
    for name, tensor in file.tensors.items():
        if name.endswith("input_scale") or (name.endswith("scale") and family in ("qwen2", "gemma3") and "ffn" in name):
            continue
        if name.endswith(".weight") and name not in optional:
            with pytest.raises(ModelFileError, match=name):
                plan_of(altered(file, without=[name]))
        if name != "cls.output.weight" and (name != "rope_freqs.weight" or family == "llama"):
            wrong = np.zeros((*tensor.shape[:-1], tensor.shape[-1] + 1))
            with pytest.raises(ModelFileError, match=name):
                plan_of(altered(file, arrays={name: wrong}))


def test_more_tokens_than_rows_of_the_embedding_are_refused():
    file = altered(tiny_file("llama-dense"), metadata={"tokenizer.ggml.tokens": ["x"] * 129})

    with pytest.raises(ModelFileError, match=r"has 129 tokens, expected at most the 128"):
        plan_of(file)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_rope_factors_that_cannot_divide_are_refused(bad):
    factors = np.ones(64)
    factors[5] = bad

    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        plan_with("llama", arrays={"rope_freqs.weight": factors})


def test_a_window_of_a_negative_size_is_an_error_that_names_it():
    with pytest.raises(ModelFileError, match="sliding_window' is -1, expected 0 to"):
        plan_with("gemma3", attention__sliding_window=-1)


@pytest.mark.parametrize("pattern", [np.array([0.5, 1.0]), np.array([1]), -3, "every other"])
def test_a_gemma3_pattern_that_makes_no_sense_is_refused(pattern):
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        plan_with("gemma3", attention__sliding_window_pattern=pattern)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.full((128, 3), 8, np.int32), "holds 8, expected numbers from 0 to 7"),
        (np.full((128, 3), -1, np.int32), "holds -1, expected numbers from 0 to 7"),
        (np.zeros((128, 3)), "is stored as F32, expected I32"),
        (np.zeros((127, 3), np.int32), r"has shape \(127, 3\), expected \(128, 3\)"),
    ],
)
def test_a_table_of_tokens_experts_that_has_something_else_is_refused(table, message):
    with pytest.raises(ModelFileError, match=f"'blk.1.ffn_gate_tid2eid.weight' {message}"):
        plan_of(altered(file_for_plans("deepseek4-moe-token-experts"), arrays={"blk.1.ffn_gate_tid2eid.weight": table}))


SOME_TEXT = st.text("a0.-é☃\0", max_size=5)  # of all of Unicode, hypothesis first makes tables for a second
ANY_VALUE = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-2, 300),
    st.floats(),
    SOME_TEXT,
    st.booleans(),
    st.lists(st.integers(-2, 300), max_size=3).map(np.array),
    st.lists(SOME_TEXT, max_size=3),
)
MATTERS = re.compile("rope|attention|length|count|scale|cap|loop|hrm|layer")
A_PLACE = st.integers(0, 2**16)  # in a list that is gone around: a strategy for each model's names would be slow to make


@pytest.mark.sample(0)
@settings(max_examples=300)
@given(
    name=st.sampled_from(ORACLES),
    changed=st.dictionaries(A_PLACE, ANY_VALUE, max_size=3),
    left_out=st.lists(A_PLACE, max_size=2),
)
def test_whatever_the_metadata_says_there_is_a_plan_or_an_error_of_ours(name, changed, left_out):
    file = file_for_plans(name)
    keys = sorted(key for key in file.metadata if key.startswith(f"{file.architecture}.") and MATTERS.search(key))
    names = [*keys, *sorted(file.tensors)]
    metadata = {keys[place % len(keys)]: value for place, value in changed.items()}
    without = [names[place % len(names)] for place in left_out]

    try:
        plan = plan_of(altered(file, metadata=metadata, without=without))
    except AuguryError:
        pass
    else:
        for attention in (mixer for layer in plan.layers for mixer in layer.mixers if isinstance(mixer, Attention)):
            assert math.isfinite(attention.scale)
            if attention.rope is not None:
                assert np.isfinite(attention.rope.frequencies).all()
                assert math.isfinite(attention.rope.magnitude)


def test_indexers_are_left_out_of_contexts_where_they_would_choose_everything():
    plan = plan_of(tiny_file("glm-dsa-moe-shared"))

    small, large = plan.for_context(10), plan.for_context(11)

    assert [(mixer.indexer, mixer.reuses_choice) for mixer in small.mixers] == [(None, 0)] * 2
    assert large.mixers == plan.mixers


@pytest.mark.parametrize("n_layers", [1, 2])
def test_minicpm_scales_residuals_by_its_number_of_layers_where_the_file_states_nothing(n_layers):
    plan = plan_of(altered(tiny_file("minicpm-unstated"), metadata={"minicpm.block_count": n_layers}))
    products = [block.down for layer in plan.layers for block in layer.blocks if isinstance(block, FeedForward)]
    assert [product.scale for product in products] == [1.4 / math.sqrt(n_layers)] * n_layers
    assert plan.embedding.scale == 12.0
