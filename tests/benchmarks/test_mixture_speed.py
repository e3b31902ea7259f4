"""What a mixture of experts costs beside a dense model with as many weights as one of its tokens uses, in turns.

In docs/benchmarks.md a pass of one token takes at most 1.3 of the dense model's; a prompt is read at 0.7 of its speed or more.
"""

from time import perf_counter

import numpy as np
import pytest
from oracles.passes import run_of
from oracles.shapes import write_qwen3, write_qwen3moe

from augury import Registry
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

pytestmark = pytest.mark.bench

REGISTRY = Registry.discover()
SHAPES = {"mixture": write_qwen3moe, "dense": write_qwen3}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    loaded = {}
    for name, write in SHAPES.items():
        path = tmp_path_factory.mktemp("shapes") / f"{name}.gguf"
        write(path)
        file = ModelFile.open(path)
        backend = make_backend(REGISTRY, "numba-cpu:keep_weights=false")
        loaded[name] = backend.load(file, plan_of(file, REGISTRY), ModelOptions(n_ctx=1024), Progress())
        file.close()
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.mark.parametrize(("n", "rounds", "limit"), [(1, 60, 1.3), (8, 40, 1.3), (512, 6, 1 / 0.7)])
def test_a_mixture_beside_a_dense_model(benchmark, models, n, rounds, limit):
    tokens = np.random.default_rng(n).integers(0, 30_000, 4096)
    seconds = {name: [] for name in models}

    def round_of_all():
        i = len(seconds["dense"])
        batch = run_of(tokens[i * n % 2048 :][:n], start=256 if n < 512 else 0, rows=[n - 1])  # others' experts each time
        for name in [*models, *reversed(models)]:
            start = perf_counter()
            models[name].forward(batch)
            seconds[name].append(perf_counter() - start)

    benchmark.pedantic(round_of_all, rounds=rounds, warmup_rounds=2)
    taken = {name: np.array(each).reshape(-1, 2).sum(axis=1) / 2 for name, each in seconds.items()}
    benchmark.extra_info["ms"] = {name: round(1e3 * float(np.median(each)), 2) for name, each in taken.items()}
    ratio = float(np.median(taken["mixture"] / taken["dense"]))
    benchmark.extra_info["mixture / dense"] = round(ratio, 3)
    assert ratio < limit
