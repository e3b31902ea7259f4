"""A token whose states are not numbers spoils its own text alone, on every backend."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from oracles.models import altered, tiny_file
from oracles.passes import joined, run_of
from support.cpu_backends import cpu_backends

from augury import Registry
from augury.files.gguf import ModelFile, Tensor
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
SICK = 9  # the token whose embedding is not a number
TEXT = np.arange(20, 40, dtype=np.int32)


CASES = {
    "llama-dense": "q8_0",
    "gemma3-dense": "f16",
    "llama-dense-q8_0": "f16",
    "gemma2-dense": "f32",  # which caps scores and logits
    "jais2-dense": "f32",  # with ReLU
    "minicpm3-dense": "q4_0",  # whose attention is latent
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize(("name", "cache_type"), CASES.items(), ids=CASES)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's about what is computed with them
def test_a_token_that_is_no_number_reaches_neither_its_neighbours_nor_who_follows_in_its_slot(backend, name, odd, cache_type):
    file = tiny_file(name)
    embedding = tiny_file("llama-dense" if name.startswith("llama") else name).tensors["token_embd.weight"]
    sound = embedding.data.view(np.float32).reshape(embedding.shape)
    embedding = sound.copy()
    embedding[SICK] = odd
    file = altered(file, arrays={"token_embd.weight": embedding, "sound": sound})
    plan = plan_of(file, REGISTRY)
    if plan.output.weight.weight == "token_embd.weight":
        plan = attrs.evolve(plan, output=attrs.evolve(plan.output, weight=attrs.evolve(plan.output.weight, weight="sound")))
    kind = REGISTRY.backends[backend]
    options = ModelOptions(n_slots=2, n_ctx=64, threads=2, cache_type_k=cache_type, cache_type_v=cache_type)
    model = kind(kind.options_class()).load(file, plan, options, Progress())
    try:
        right = model.forward(run_of(TEXT, slot=1)).rows().copy()
        logits = model.forward(joined(run_of([SICK] * 30), run_of(TEXT, slot=1)))
        assert (logits.argmax()[:30] == -1).all()
        assert np.array_equal(logits.rows()[30:], right)
        # token by token, in the slot that still holds the others after it
        found = [model.forward(run_of(TEXT[i : i + 1], start=i)).rows()[0].copy() for i in range(len(TEXT))]
        assert np.array_equal(found, right)
    finally:
        model.close()


def with_odd_number(file, name, odd):
    """A model one number of whose tensor is odd: of a quantised one the factor of a block."""
    tensor = file.tensors[name]
    data = tensor.data.view(np.uint8).copy()
    if tensor.type == TensorType.F32:
        data.view(np.float32)[data.size // 12] = odd
    else:
        blocks = data.reshape(-1, {TensorType.Q8_0: 34, TensorType.Q4_0: 18}[tensor.type])
        blocks[len(blocks) // 3, :2] = np.array([odd], np.float16).view(np.uint8)
    tensors = {**file.tensors, name: Tensor(name, tensor.shape, tensor.type, data)}
    return ModelFile(file.path, file.paths, file.n_bytes, file.metadata, tensors)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["llama-dense", "llama-dense-q8_0", "llama-dense-q4_0", "gemma2-dense", "minicpm3-dense", "jamba-dense"]
)
@pytest.mark.parametrize("backend", cpu_backends(REGISTRY))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_weight_that_is_no_number_is_told_whatever_tensor_it_is_in(backend, name):
    whole, finite = tiny_file(name), []
    for tensor in whole.tensors:
        if tensor.startswith(("token_embd", "rope_")) or tensor.endswith("scale"):  # of one token; refused or not used
            continue
        for odd in (np.nan, np.inf) if "attn_q." in tensor or "attn_k." in tensor else (np.nan,):
            file = with_odd_number(whole, tensor, odd)
            kind = REGISTRY.backends[backend]
            options = ModelOptions(n_slots=1, n_ctx=64, threads=1)
            model = kind(kind.options_class()).load(file, plan_of(file, REGISTRY), options, Progress())
            try:
                # a score that is -inf weighs nothing, so that a short text may not show an infinite weight
                found = model.forward(run_of(TEXT)).argmax()[-8:]
            finally:
                model.close()
            if (found >= 0).any():
                finite.append((tensor, odd))
    assert finite == []
