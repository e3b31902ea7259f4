"""Rooflines of a model whose times are made up."""

import numpy as np
import pytest

from augury.plugins.bench import roofline
from augury.plugins.bench.model_runner import ModelRunner
from augury.plugins.bench.roofline import measure_roofline
from augury.profile import KernelTime, Limits, Profiled
from augury.testing.toy_model import ToyModel


class Profiling(ToyModel):
    """Says of every pass that it took longer than the one before."""

    def __init__(self):
        super().__init__(n_vocab=16, n_ctx=32)
        self.profiled = []
        self.n_limits = 0

    def profile(self, batch):
        self.forward(batch)
        self.profiled.append(batch)
        k, n = len(self.profiled), len(batch.tokens)
        return [
            KernelTime("norm", 1e-9 * k, 0, 0),
            KernelTime("product", 1e-9, 64, 100 * n),
            KernelTime("norm", 2e-9 * k, 8, 0),
        ]

    def limits(self):
        self.n_limits += 1
        return Limits(10.0 * self.n_limits, 3.0 / self.n_limits)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(roofline, "_N_WINDOWS", 3)
    return Profiling()


def test_medians_are_summed_by_name_in_the_order_of_the_pass(model):
    found = measure_roofline(model, ModelRunner(model), n=4, depth=6, repetitions=1)

    # pass 1 warms up; the others are numbers 2, 3 and 4
    assert found.kernels == (
        KernelTime("norm", pytest.approx(3e-9 + 6e-9), 8, 0, n_steps=2),
        KernelTime("product", 1e-9, 64, 400, n_steps=1),
    )
    assert found.limits == Limits(20.0, 1.5)
    assert (found.n, found.depth) == (4, 6)
    assert found.seconds >= sum(kernel.seconds for kernel in found.kernels)


def test_passes_stand_behind_what_the_slot_holds_and_want_all_logits(model):
    measure_roofline(model, ModelRunner(model), n=4, depth=6, repetitions=2)

    assert len(model.profiled) == 1 + 3 * 2
    for batch in model.profiled:
        assert batch.positions.tolist() == [6, 7, 8, 9]
        assert np.array_equal(batch.rows, np.arange(4))


def test_a_model_says_that_it_can_be_profiled_by_having_the_methods(model):
    assert isinstance(model, Profiled)
    assert not isinstance(ToyModel(), Profiled)
