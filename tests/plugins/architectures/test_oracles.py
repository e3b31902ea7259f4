"""Every architecture, on every backend that computes its blocks: the logits are llama.cpp's."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.drafts import DRAFTS, draft_file
from oracles.models import ORACLES, altered, architecture_of, expected, nmse, tiny_file
from oracles.passes import run_of, tree_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.blocks import Activation
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.testing import check_architecture
from augury.types import ModelOptions

REGISTRY = Registry.discover()
LIMIT, GELU_LIMIT = 1e-10, 2e-9  # where llama.cpp's GELU rounds to half precision, an input's last place may decide

ROPE_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
CASES = [(backend, name) for name in ORACLES for backend in cpu_backends(REGISTRY)]


def load(backend, model, **options):
    file, kind = tiny_file(model) if isinstance(model, str) else model, REGISTRY.backends[backend]
    given = {"n_ctx": 256, "cache_type_k": "f32", "cache_type_v": "f32", "threads": 1, **options}
    return kind(kind.options_class()).load(file, plan_of(file, REGISTRY), ModelOptions(**given), Progress())


def test_every_architecture_has_an_oracle():
    of_drafts = {ModelFile.open(draft_file(name)).architecture for name in DRAFTS}
    assert {architecture_of(name) for name in ORACLES} | of_drafts == set(REGISTRY.architectures)


@pytest.mark.sample(12)
@pytest.mark.parametrize(("backend", "name"), CASES)
def test_logits_are_those_of_llama_cpp_and_the_same_bits_one_by_one_or_in_a_tree(backend, name):
    tokens, right = expected(name)
    model = load(backend, name, n_slots=3)

    at_once = model.forward(run_of(tokens, slot=1)).rows().copy()
    one_by_one = [model.forward(run_of([token], start=i)).rows().copy() for i, token in enumerate(tokens)]

    plan = plan_of(tiny_file(name), REGISTRY)
    has_gelu = any(getattr(block, "activation", None) is Activation.GELU_HALF for block in plan.blocks())
    assert nmse(at_once, right) < (GELU_LIMIT if has_gelu else LIMIT)
    assert np.array_equal(np.concatenate(one_by_one), at_once)
    if not model.state_spec.n_bytes_per_sequence:  # beside every token another, which leads nowhere
        pairs, parents = np.repeat(tokens, 2), [2 * (i // 2) - 2 if i > 1 else -1 for i in range(2 * len(tokens))]
        pairs[1::2] = (pairs[1::2] + 1) % model.info.n_vocab
        assert np.array_equal(model.forward(tree_of(pairs, parents, slot=2)).rows()[::2], at_once)


@pytest.mark.sample(0)
def test_quantised_matrices_of_heads_in_one_tensor_are_near_the_reference():
    narrow = {
        "minicpm3.rope.dimension_count": 64,
        "minicpm3.attention.value_length": 64,
    }  # so rope leaves a part of heads alone
    rng, arrays = np.random.default_rng(1), {}
    for layer in range(2):
        arrays[f"blk.{layer}.attn_kv_a_mqa.weight"] = rng.standard_normal((576, 256)) / 16
        arrays[f"blk.{layer}.attn_output.weight"] = rng.standard_normal((256, 128)) / 11
    file = altered(tiny_file("minicpm3-dense-q8_0"), metadata=narrow, arrays=arrays, without=ROPE_FACTORS)

    logits, right = (
        load(backend, file).forward(run_of(expected("minicpm3-dense")[0])).rows() for backend in cpu_backends(REGISTRY)
    )

    assert nmse(logits, right) < 1e-3


@pytest.mark.sample(0)
@pytest.mark.parametrize("name", [name for name in ORACLES if not name.endswith("-64-layers")])  # which are all alike
def test_whatever_a_file_says_there_is_a_good_plan_or_an_error_of_ours(name):
    file = tiny_file(name)

    check_architecture(file.architecture, file, registry=REGISTRY)
