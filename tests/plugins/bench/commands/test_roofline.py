"""`augury bench roofline` on a tiny model."""

import json

import numpy as np
import pytest
from oracles.models import tiny_file, tiny_model
from oracles.passes import run_of
from support.commands import here, run

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.plugins.bench.commands import roofline
from augury.plugins.bench.commands.roofline import measure_roofline
from augury.plugins.bench.timing import ModelRunner
from augury.profile import KernelTime, Limits, Profiled
from augury.testing.toy_model import ToyModel
from augury.types import ModelOptions

NAME = "llama-dense-q4_k"


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr(roofline, "_N_WINDOWS", 1)


@pytest.fixture
def bench(capsys):
    return lambda *words, backend="numba-cpu": run(capsys, "bench", "roofline", *here(NAME, backend), *words)


@pytest.fixture(scope="module")
def steps():
    """The steps of a pass of one token, by name."""
    file = tiny_file(NAME)
    model = NumbaCpu(NumbaCpuOptions()).load(file, Llama.plans(file)["main"], ModelOptions(threads=1, n_ctx=16), Progress())
    names = [step.name for step in model.profile(run_of([0]))]
    model.close()
    return names


def test_json_has_every_kernel_and_figures_that_fit_each_other(bench, steps):
    code, out, _ = bench("--curve", "1,8", "-d", "0,4", "--json")
    assert code == 0
    assert out.count("\n") == 1
    told = json.loads(out)
    assert set(told) == {"model", "threads", "round_trip_ns", "rooflines"}
    assert (told["model"], told["threads"], len(told["round_trip_ns"])) == (str(tiny_model(NAME)), 1, 2)
    assert [(each["n"], each["depth"]) for each in told["rooflines"]] == [(1, 0), (8, 0), (1, 4), (8, 4)]
    # the embedding's matrix is looked up, not read; of Q4_K and Q5_0 nothing is padded
    matrices = [each for each in tiny_file(NAME).tensors.values() if len(each.shape) == 2 and each.name != "token_embd.weight"]
    for found in told["rooflines"]:
        kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
        assert {name: kernel["n_steps"] for name, kernel in kernels.items()} == {name: steps.count(name) for name in steps}
        assert all(kernel["seconds"] >= 0 for kernel in kernels.values())
        assert (
            sum(kernel["seconds"] for kernel in kernels.values()) > 0 < found["seconds"]
        )  # of two passes: neither bounds the other
        attention = kernels.pop("attention")
        assert sum(kernel["n_bytes"] for kernel in kernels.values()) == sum(each.data.nbytes for each in matrices)
        n_weights = sum(int(np.prod(each.shape)) for each in matrices)
        assert sum(kernel["n_multiply_adds"] for kernel in kernels.values()) == found["n"] * n_weights
        assert attention["n_bytes"] % (found["n"] + found["depth"]) == 0 < attention["n_bytes"]
        assert min(found["limits"].values()) > 1e8


def test_the_table_has_a_line_for_each_kernel_between_the_limits(bench, steps):
    single, eight, trips = bench("-d", 3)[1].split("\n\n")
    for n, lines in ((1, single.splitlines()), (8, eight.splitlines())):
        assert lines[0].startswith(f"pass of {n} after 3 tokens, 1 thread: ")
        assert lines[1].split()[:2] == ["kernel", "steps"]
        names = [line[: lines[1].index("steps")].strip() for line in lines[2:]]
        assert names == [*dict.fromkeys(steps), "(around the kernels)", "all", "limit"]
    assert trips.startswith("core-to-core round trip before and after: ")


def test_a_backend_that_tells_nothing_is_named(bench):
    code, _, err = bench(backend="reference")
    assert code == 1
    assert "backend reference cannot profile its kernels" in err


def test_a_pass_that_is_computed_in_parts_is_refused(bench):
    code, _, err = bench("--curve", 600)
    assert code == 1
    assert "600 tokens" in err


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
