"""Rows of logits of several blocks: wherever a token's block begins it has the same logit, and the blocks' largest follow."""

import attrs
import numpy as np
import pytest
from oracles.models import altered, tiny_file
from oracles.passes import joined, run_of
from oracles.weights import random_weights
from support.stand_in_tiles import STAND_IN

from augury import Registry
from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.backends.numba_cpu.kernels.logits import BLOCK
from augury.files.gguf import ModelFile, Tensor
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.passes import ArrayPass
from augury.types import ModelOptions

N_VOCAB = 5 * BLOCK + 70  # the last panel is filled in part, and so is the last block
REGISTRY = Registry.discover()
# Plain, by tiles, capped, scaled and biased.
KINDS = [
    ("llama-dense", None, TensorType.Q4_K),
    ("llama-dense", STAND_IN, TensorType.Q8_0),
    ("gemma2-dense", None, TensorType.F32),
    ("granite-rope", None, TensorType.F32),
    ("qwen2-dense", None, TensorType.F32),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind[1] or kind[0])
def model(request, monkeypatch):
    """A model with a larger vocabulary, on two threads."""
    name, isa, kind = request.param
    if isa is not None:
        monkeypatch.setenv("AUGURY_CPU_ISA", isa)
    yield (loaded := load(name, kind))
    loaded.close()


def load(name, kind=TensorType.F32, *, bias=None, n_threads=2):
    file, rng = tiny_file(name), np.random.default_rng(5)
    tensors = dict(file.tensors)
    for matrix in tensors.keys() & {"token_embd.weight", "output.weight"}:
        shape = (N_VOCAB, tensors[matrix].shape[1])
        tensors[matrix] = Tensor(matrix, shape, kind, random_weights(rng, kind, *shape))
    file = ModelFile(file.path, file.paths, file.n_bytes, file.metadata, tensors)
    if name == "qwen2-dense":
        file = altered(file, arrays={"output.bias": rng.standard_normal(N_VOCAB) if bias is None else bias})
    options = ModelOptions(n_slots=2, n_ctx=640, threads=n_threads)
    return NumbaCpu(NumbaCpuOptions(keep_weights=False)).load(file, plan_of(file, REGISTRY), options, Progress())


def some_tokens(n):
    return np.random.default_rng(n).integers(0, N_VOCAB, n).astype(np.int32)


def batches():
    """Passes by the ways of kernels: tokens in registers and unpacked first, tiles that are one, two or many, in two parts."""
    for n in (1, 3, 20, 40):
        yield run_of(some_tokens(n))
    yield run_of(some_tokens(600), rows=[3, 100, 599])
    mixed = joined(run_of(some_tokens(4)), run_of(some_tokens(3), slot=1))
    order = [4, 0, 1, 5, 2, 3, 6]
    yield attrs.evolve(mixed, tokens=mixed.tokens[order], slots=mixed.slots[order], positions=mixed.positions[order])


def assert_right(passed, rows):
    """The best tokens are those of the rows."""
    right = ArrayPass(rows)
    assert np.array_equal(passed.argmax(), right.argmax())
    for k in (1, 4, 5, 50):
        for found, expected in zip(passed.top_k(np.arange(len(rows)), k), right.top_k(np.arange(len(rows)), k), strict=True):
            assert np.array_equal(found, expected, equal_nan=True)


def largest_of(passed):
    """What follows the logits of each row."""
    start = passed._width
    return passed._array.base[: len(passed.rows()), start : start + N_VOCAB // BLOCK]


def test_rows_end_with_the_largest_logit_of_each_block(model):
    for batch in batches():
        passed = model.forward(batch)
        rows = passed.rows()
        blocks = rows[:, : N_VOCAB // BLOCK * BLOCK].reshape(len(rows), -1, BLOCK)
        assert np.array_equal(largest_of(passed), blocks.max(axis=2))
        assert_right(passed, rows)
        assert_right(passed.first(N_VOCAB - 100), rows[:, :-100])


def test_the_logits_of_a_vocabulary_are_those_of_whole_rows_in_other_blocks(model):
    every = np.arange(N_VOCAB, dtype=np.int32)
    for batch in batches():
        right = model.forward(batch).rows().copy()
        for wanted in (every[1100:], every[np.arange(N_VOCAB) // 32 % 5 != 2], every[40:50]):
            passed = model.forward(attrs.evolve(batch, vocabulary=wanted))
            rows = passed.rows()
            assert np.array_equal(rows[:, wanted], right[:, wanted])
            assert np.array_equal(rows[rows > -np.inf], right[rows > -np.inf])
            assert np.array_equal(passed.argmax(), rows.argmax(axis=1))


def test_rows_and_their_largest_logits_do_not_depend_on_the_number_of_threads():
    found = []
    for n_threads in (1, 2, 7):
        model = load("gemma2-dense", n_threads=n_threads)
        passes = [model.forward(run_of(some_tokens(n))) for n in (1, 6)]
        found.append(np.hstack([passes[-1].rows(), largest_of(passes[-1])]))
        model.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("token", [0, 2 * BLOCK - 1, N_VOCAB - 1])
def test_an_odd_logit_is_noticed(odd, token):
    bias = np.zeros(N_VOCAB)
    bias[token] = odd
    model = load("qwen2-dense", bias=bias)
    passed = model.forward(run_of(some_tokens(3)))
    rows = passed.rows()
    assert np.array_equal(np.isfinite(rows).sum(axis=1), [N_VOCAB - 1] * 3)
    assert_right(passed, rows)
    model.close()
