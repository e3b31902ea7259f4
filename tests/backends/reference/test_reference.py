import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracles.models import FAMILIES, FLOAT_NAMES, NAMES, QUANTISED_NAMES, altered, expected, nmse, tiny_file
from oracles.passes import joined, run_of

from augury.backends.reference import Reference
from augury.errors import AuguryError, CapacityError, ModelFileError, OptionError
from augury.interfaces import Progress
from augury.options import NoOptions
from augury.plugins.architectures.gemma import Gemma3
from augury.plugins.architectures.llama import Llama, Qwen2, Qwen3
from augury.types import ModelOptions

ARCHITECTURES = {architecture.name: architecture for architecture in (Gemma3, Llama, Qwen2, Qwen3)}
FLOAT_LIMIT = 1e-9  # llama.cpp itself differs from itself by up to 1e-12, and its GELU is a float16 table
QUANTISED_LIMIT = 2e-4  # llama.cpp rounds activations to int8 there
COARSE_LIMIT = 1e-2  # for types of 2 and 3 bits


def load(file, **options):
    plan = ARCHITECTURES[file.architecture].plans(file)["main"]
    return Reference(NoOptions()).load(file, plan, ModelOptions(**{"n_ctx": 64, **options}), Progress())


def load_exact(name, **options):
    return load(tiny_file(name), cache_type_k="f32", cache_type_v="f32", **options)


def token_by_token(model, tokens, slot=0):
    return np.concatenate([model.forward(run_of([token], slot=slot, start=i)).rows().copy() for i, token in enumerate(tokens)])


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_float_models_give_the_logits_of_llama_cpp(name):
    tokens, right = expected(name)

    logits = load_exact(name).forward(run_of(tokens)).rows()

    assert logits.dtype == np.float32
    assert nmse(logits, right) < FLOAT_LIMIT


@pytest.mark.parametrize("name", QUANTISED_NAMES)
def test_quantised_models_are_near_llama_cpp_which_rounds_activations_too(name):
    tokens, right = expected(name)

    logits = load_exact(name).forward(run_of(tokens)).rows()

    assert nmse(logits, right) < (COARSE_LIMIT if name.endswith(("q2_k", "q3_k")) else QUANTISED_LIMIT)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_one_pass_equals_token_by_token_to_the_bit(name, cache_type):
    tokens, _ = expected(name)
    options = {"cache_type_k": cache_type, "cache_type_v": cache_type}

    at_once = load(tiny_file(name), **options).forward(run_of(tokens)).rows()

    assert np.array_equal(at_once, token_by_token(load(tiny_file(name), **options), tokens))


@pytest.mark.parametrize("n", [2, 3, 7, 16, 33, 64])
def test_a_token_in_a_batch_of_any_size_equals_the_token_alone(n):
    rng = np.random.default_rng(n)
    prompt, tokens = rng.integers(0, 128, 20), rng.integers(0, 128, n)
    alone, together = load_exact("gemma3-dense", n_ctx=128), load_exact("gemma3-dense", n_ctx=128)
    alone.forward(run_of(prompt, rows=[]))
    together.forward(run_of(prompt, rows=[]))

    rows = together.forward(run_of(tokens, start=20)).rows()

    for i, token in enumerate(tokens):
        assert np.array_equal(rows[i], alone.forward(run_of([token], start=20 + i)).rows()[0])


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 47), max_size=6), family=st.sampled_from(FAMILIES))
def test_any_split_of_a_prompt_gives_the_same_bits(cuts, family):
    tokens, _ = expected(f"{family}-dense")
    model = load(tiny_file(f"{family}-dense"), n_slots=2)
    whole = model.forward(run_of(tokens, slot=1)).rows().copy()

    edges = [0, *sorted(set(cuts)), len(tokens)]
    parts = [model.forward(run_of(tokens[a:b], start=a)).rows().copy() for a, b in itertools.pairwise(edges)]

    assert np.array_equal(np.concatenate(parts), whole)


@settings(max_examples=10)
@given(data=st.data())
def test_slots_do_not_see_each_other(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=3, max_size=3))
    texts = [rng.integers(0, 128, n) for n in lengths]
    model = load(tiny_file("qwen3-dense"), n_slots=3)

    together = model.forward(joined(*(run_of(text, slot=slot) for slot, text in enumerate(texts)))).rows()

    alone = [load(tiny_file("qwen3-dense")).forward(run_of(text)).rows() for text in texts]
    assert np.array_equal(together, np.concatenate(alone))


def test_writing_a_position_again_undoes_what_was_there():
    tokens, _ = expected("llama-dense")
    model = load_exact("llama-dense")
    straight = model.forward(run_of(tokens)).rows().copy()
    model.forward(run_of(tokens[:10], rows=[]))
    model.forward(run_of([1, 2, 3, 4, 5], start=10))

    assert np.array_equal(model.forward(run_of(tokens[10:], start=10)).rows(), straight[10:])


def test_only_the_rows_asked_for_are_returned_in_their_order():
    tokens, _ = expected("qwen2-dense")
    model = load_exact("qwen2-dense")
    all_rows = model.forward(run_of(tokens)).rows().copy()

    assert np.array_equal(model.forward(run_of(tokens, rows=[3, 40])).rows(), all_rows[[3, 40]])
    assert model.forward(run_of(tokens, rows=[])).rows().shape == (0, 128)


def test_the_cache_rounds_to_float16_unless_told_otherwise():
    tokens, _ = expected("qwen3-dense")
    exact, rounded = load_exact("qwen3-dense"), load(tiny_file("qwen3-dense"))

    error = nmse(rounded.forward(run_of(tokens)).rows(), exact.forward(run_of(tokens)).rows())

    assert 1e-14 < error < 1e-6
    assert 2 * rounded.state_spec.n_bytes_per_position == exact.state_spec.n_bytes_per_position


def test_a_window_hides_what_lies_further_back():
    tokens, _ = expected("gemma3-dense")
    file = altered(tiny_file("gemma3-dense"), metadata={"gemma3.attention.sliding_window_pattern": 1000})
    model, other = load(file), load(file)  # both layers see 32 positions, so two layers see 63
    changed = tokens.copy()
    changed[0] = 127 - changed[0]

    before, after = model.forward(run_of(tokens)).rows(), other.forward(run_of(changed)).rows()

    reach = 1 + 2 * 31
    long = np.concatenate([tokens, tokens])
    model, other = load(file, n_ctx=96), load(file, n_ctx=96)
    far, far_changed = model.forward(run_of(long)).rows(), other.forward(run_of(np.r_[changed[:1], long[1:]])).rows()
    assert not np.array_equal(before[-1], after[-1])
    assert np.array_equal(far[reach:], far_changed[reach:])
    assert not np.array_equal(far[reach - 1], far_changed[reach - 1])


def test_a_position_after_the_context_is_a_capacity_error():
    model = load_exact("llama-dense", n_ctx=8)

    model.forward(run_of(range(8)))
    with pytest.raises(CapacityError, match="position 8 does not fit into a slot of 8"):
        model.forward(run_of([1], start=8))


def test_slots_and_tokens_that_do_not_exist_are_refused():
    model = load_exact("llama-dense")

    with pytest.raises(CapacityError, match="slot 1 does not exist"):
        model.forward(run_of([1], slot=1))
    with pytest.raises(OptionError, match="0 to 127"):
        model.forward(run_of([128]))
    with pytest.raises(OptionError, match="0 to 127"):
        model.forward(run_of([-1]))


def test_a_context_beyond_all_memory_is_a_capacity_error():
    with pytest.raises(CapacityError, match="smaller context"):
        load(tiny_file("llama-dense"), n_ctx=1 << 60)


def test_a_tensor_of_another_shape_than_the_plan_says_is_refused():
    file = tiny_file("llama-dense")
    plan = Llama.plans(file)["main"]
    wrong = altered(file, arrays={"blk.1.ffn_up.weight": np.zeros((384, 128))})

    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight.*\(384, 128\).*\(384, 256\)"):
        Reference(NoOptions()).load(wrong, plan, ModelOptions(), Progress())


def test_the_memory_table_adds_up_to_weights_and_cache():
    model = load(tiny_file("qwen3-dense"), n_slots=3, n_ctx=50)
    table = {line.purpose: line.n_bytes for line in model.memory_table()}

    n_kv_values = 2 * 2 * 3 * 50 * 64  # layers, keys and values, slots, positions, G * D
    assert table["KV cache"] == 2 * n_kv_values == 3 * 50 * model.state_spec.n_bytes_per_position
    named = {name: tensor for name, tensor in tiny_file("qwen3-dense").tensors.items() if not name.endswith("scale")}
    del named["cls.output.weight"]
    assert table["weights"] == sum(tensor.n_bytes for tensor in named.values())


def test_tied_embeddings_are_held_once_and_used_twice():
    file = altered(tiny_file("llama-dense"), without=["output.weight"])
    tied, untied = load(file), load(tiny_file("llama-dense"))

    difference = untied.memory_table()[0].n_bytes - tied.memory_table()[0].n_bytes
    copied = altered(file, arrays={"output.weight": file.tensors["token_embd.weight"].data.view(np.float32).reshape(128, 256)})

    assert difference == 128 * 256 * 4
    assert np.array_equal(tied.forward(run_of(range(9))).rows(), load(copied).forward(run_of(range(9))).rows())


def test_a_closed_model_refuses_further_calls_and_may_be_closed_again():
    model = load_exact("llama-dense")
    model.close()
    model.close()

    with pytest.raises(AuguryError, match="closed"):
        model.forward(run_of([1]))


def test_what_others_may_know_of_the_model_is_right():
    info = load_exact("qwen2-dense").info

    assert (info.name, info.architecture) == ("qwen2-dense", "qwen2")
    assert (info.n_vocab, info.n_embd, info.n_layers, info.n_ctx_train) == (128, 256, 2, 256)
    assert info.n_bytes == tiny_file("qwen2-dense").path.stat().st_size


def test_loading_reports_progress_up_to_the_whole():
    reports = []

    class Recorder(Progress):
        def __call__(self, task, done, total):
            reports.append((task, done, total))

    file = tiny_file("llama-dense")
    Reference(NoOptions()).load(file, Llama.plans(file)["main"], ModelOptions(n_ctx=8), Recorder())

    assert {task for task, _, _ in reports} == {"load weights"}
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert reports[-1][1] == reports[-1][2]
