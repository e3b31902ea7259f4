"""Logits of a vocabulary alone, in the simulator: to the bit those among all, of as many rows of the matrix as are wanted."""

import functools

import attrs
import numpy as np
import pytest
from cuda_simulator.device import SimulatedDevice
from oracles.cuda_products import random_matrix
from oracles.models import tiny_file
from oracles.passes import joined, run_of
from support.head_rig import REGISTRY

from augury.backends.numba_cuda import NumbaCuda, NumbaCudaOptions
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS
from augury.backends.numba_cuda.narrow_output import NarrowOutput
from augury.backends.numba_cuda.repack import repack
from augury.backends.numba_cuda.weights import Matrix
from augury.errors import OptionError
from augury.files.tensor_type import TensorType
from augury.interfaces import Model, Progress
from augury.loader import plan_of
from augury.types import ModelOptions

N_VOCAB = 128
FEW = np.array([0, 1, 2, 3, 9, 70, 126], np.int32)


def on_device(device, array):
    at = device.allocate(array.nbytes, "weights")
    device.write(at, array)
    return at


def read(device, at, n):
    array = np.empty(n, np.uint32)
    device.read(at, array)
    return array


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_are_copied_are_stored_as_those_of_a_matrix_of_their_own(name):
    device, n_rows, n_cols, kind = SimulatedDevice(), 160, 512, TensorType[name]
    data, _ = random_matrix(np.random.default_rng(1), kind, n_rows, n_cols)
    rows = data.reshape(n_rows, -1)
    words = repack(kind, rows.reshape(-1), n_rows, n_cols)
    bias = np.random.default_rng(2).standard_normal(n_rows, np.float32)
    matrix = Matrix(FORMATS[name], on_device(device, words), n_rows, n_cols, 1.0, on_device(device, bias))
    narrow = NarrowOutput.of(device, matrix, np.arange(8, dtype=np.int32))
    others, column = narrow.matrices[1]
    for vocabulary in ([0, 5, 159], [99, 140, 141, 158], [*range(0, 64, 4)]):
        assert narrow.follow(np.array(vocabulary, np.int32))
        assert {*vocabulary} <= {*narrow.tokens.tolist()}
        assert len({*narrow.tokens.tolist()}) == len(narrow.tokens) == column + others.n_rows
        chosen = narrow.tokens[column:]
        right = repack(kind, rows[chosen].reshape(-1), len(chosen), n_cols)
        assert np.array_equal(read(device, others.words, len(right)), right)
        assert np.array_equal(read(device, others.bias, len(chosen)), bias[chosen].view(np.uint32))
    assert not narrow.follow(np.arange(160, dtype=np.int32)), "more than there is room for"


def test_a_vocabulary_that_saves_little_has_all_logits_and_so_have_tokens_of_a_tile_that_is_not_full():
    device = SimulatedDevice()
    matrix = Matrix(FORMATS["F32"], device.allocate(4 * 132 * 256, "weights"), 130, 256, 1.0, None)
    assert NarrowOutput.of(device, matrix, np.arange(60, dtype=np.int32)) is None
    narrow = NarrowOutput.of(device, matrix, np.arange(8, dtype=np.int32))
    assert narrow.follow(np.array([127], np.int32))
    assert not narrow.follow(np.array([129], np.int32))


@functools.cache
def loaded():
    file = tiny_file("qwen2-dense")
    plan, options = plan_of(file, REGISTRY), ModelOptions(n_slots=2, n_ctx=64, threads=1)
    plan = attrs.evolve(plan, layers=plan.layers[:1])
    return NumbaCuda(NumbaCudaOptions()).load(file, plan, options, Progress())


@pytest.mark.parametrize("n", [1, 5])
def test_logits_of_a_vocabulary_are_those_among_all_and_no_others_are_computed(n, monkeypatch):
    model = loaded()
    batch = attrs.evolve(run_of(range(n)), rows=np.int32([n - 1]))
    right = model.forward(batch).rows().copy()
    n_fetched = 0
    read = type(model._device).read

    def counted(device, source, array):
        nonlocal n_fetched
        n_fetched += array.nbytes
        read(device, source, array)

    monkeypatch.setattr(type(model._device), "read", counted)
    for wanted in (np.arange(8, dtype=np.int32), FEW, FEW):
        passed = model.forward(attrs.evolve(batch, vocabulary=wanted))
        best, (ids, values) = passed.argmax(), passed.top_k(np.int32([0]), 5)
        n_fetched = 0
        rows = passed.rows()
        n_there = int((rows > -np.inf).sum())
        assert np.array_equal(rows[:, wanted], right[:, wanted])
        assert np.array_equal(rows[rows > -np.inf], right[rows > -np.inf])
        assert n_fetched == 4 * n_there == 4 * TILE_ROWS * (2 + 16)
        assert np.array_equal(best, rows.argmax(axis=1))
        assert np.array_equal(values[0], -np.sort(-rows[0])[:5])
        assert np.array_equal(rows[0, ids[0]], values[0])
    assert np.array_equal(model.forward(batch).rows(), right)


def test_a_chain_among_a_vocabulary_is_its_passes_one_by_one():
    model = loaded()
    batch = attrs.evolve(joined(run_of([5, 6, 7]), run_of([9], slot=1)), rows=np.int32([2, 3]))
    narrow = attrs.evolve(batch, vocabulary=FEW)
    rows, found = Model.forward_chain(model, narrow, 3).rows(), model.forward_chain(narrow, 3)
    assert (rows > -np.inf).sum() == 6 * TILE_ROWS * (2 + 16)
    assert np.array_equal(found.rows(), rows)
    assert np.array_equal(found.argmax(), rows.argmax(axis=1))


def test_a_vocabulary_that_the_model_cannot_have_is_refused():
    for wrong in ([N_VOCAB], [3, 3], [-1, 2], []):
        with pytest.raises(OptionError, match="which rise from 0 to 127"):
            loaded().forward(attrs.evolve(run_of([1]), vocabulary=np.array(wrong, np.int32)))
