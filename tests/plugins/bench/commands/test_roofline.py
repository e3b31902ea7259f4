"""`augury bench --roofline` on a tiny model."""

import json

import numpy as np
import pytest
from commands import here, run
from oracles.models import tiny_file, tiny_model
from oracles.passes import run_of

from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.interfaces import Progress
from augury.plugins.architectures.llama import Llama
from augury.plugins.bench import roofline
from augury.types import ModelOptions

NAME = "llama-dense-q4_k"


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr(roofline, "_N_WINDOWS", 1)


@pytest.fixture
def bench(capsys):
    return lambda *words, backend="numba-cpu": run(capsys, "bench", *here(NAME, backend), "--roofline", *words)


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


@pytest.mark.parametrize(
    "words", [["--startup"], ["--vs", "x"], ["--html", "x.html"], ["--compare", "x"], ["-p", "8"], ["-n", 8]]
)
def test_what_measures_something_else_is_refused_beside_it(bench, words):
    code, _, err = bench(*words)
    assert code == 2
    assert "--roofline profiles passes alone" in err


def test_a_pass_that_is_computed_in_parts_is_refused(bench):
    code, _, err = bench("--curve", 600)
    assert code == 1
    assert "600 tokens" in err
