"""What rollback costs on models with a state per sequence: passes of 8 beside passes of certain tokens, in turns.

A verify pass takes in what was accepted of the one before it, computes a certain token and seven drafted ones, and keeps these
aside. In docs/benchmarks.md it takes at most 1.03 of a pass of eight certain tokens, a round after a rejection at most 1.03 of
one after all were accepted. Beside it, what it would take to restore a copy of the state and replay four accepted tokens.
"""

from time import perf_counter

import attrs
import numpy as np
import pytest
from oracles.passes import run_of
from oracles.shapes import write_lfm2, write_qwen35

from augury import Registry
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.loader import make_backend, plan_of
from augury.types import ModelOptions

pytestmark = pytest.mark.bench

REGISTRY = Registry.discover()
SHAPES = {"Qwen3.5-0.8B": write_qwen35, "LFM2-1.2B": write_lfm2}
START, N, N_REPLAYED, ROUNDS = 256, 8, 4, 60


@pytest.fixture(scope="module", params=[(name, threads) for name in SHAPES for threads in (None, 1)], ids=str)
def model(request, tmp_path_factory):
    name, threads = request.param
    path = tmp_path_factory.mktemp("shapes") / "model.gguf"
    SHAPES[name](path)
    file = ModelFile.open(path)
    options = ModelOptions(n_ctx=1024, draft_max=16, threads=threads)
    loaded = make_backend(REGISTRY, "numba-cpu:keep_weights=false").load(file, plan_of(file, REGISTRY), options, Progress())
    file.close()
    yield loaded
    loaded.close()


def ways():
    """A pass by what is done in it.

    All tokens certain; drafted ones after all of the last pass were accepted; after none was; after a copy was restored, with
    accepted tokens replayed in front.
    """
    certain = run_of(np.arange(N) + 7, start=START)
    drafted = attrs.evolve(certain, is_drafted=np.arange(N) > 0)
    accepted = np.array([(0, START + i, START + i) for i in range(1, N)], np.int32)
    replay = run_of(np.arange(N_REPLAYED + N) + 7, start=START - N_REPLAYED, rows=range(N_REPLAYED, N_REPLAYED + N))
    restored = attrs.evolve(replay, restores=np.array([0], np.int32), saves=np.array([[0, 0]], np.int32))
    return {
        "certain": certain,
        "accepted": attrs.evolve(drafted, accepted=accepted),
        "rejected": drafted,
        "restored": restored,
    }


def test_a_verify_pass_beside_certain_tokens(benchmark, model):
    prompt = run_of(np.arange(START) % 1000, rows=[])
    model.forward(attrs.evolve(prompt, saves=np.array([[0, START - N_REPLAYED]], np.int32)))
    batches = ways()
    model.forward(batches["rejected"])
    seconds = {name: [] for name in batches}

    def round_of_all():
        for name in [*batches, *reversed(batches)]:
            start = perf_counter()
            model.forward(batches[name])
            seconds[name].append(perf_counter() - start)

    benchmark.pedantic(round_of_all, rounds=ROUNDS, warmup_rounds=2)
    taken = {name: np.array(each).reshape(-1, 2).sum(axis=1) / 2 for name, each in seconds.items()}
    benchmark.extra_info["ms"] = {name: round(1e3 * float(np.median(each)), 2) for name, each in taken.items()}
    ratios = {"verify / certain": ("accepted", "certain"), "rejected / accepted": ("rejected", "accepted")}
    ratios |= {"restored / rejected": ("restored", "rejected")}
    for told, (one, other) in ratios.items():
        benchmark.extra_info[told] = round(float(np.median(taken[one] / taken[other])), 3)


def test_the_steps_of_a_verify_pass(benchmark, model):
    """The least time of every step: on a busy machine it says something where a pass's time does not, by one thread."""
    batches = {name: batch for name, batch in ways().items() if name != "restored"}
    for name in ("certain", "rejected"):
        model.forward(batches[name])
    seconds = {name: [] for name in batches}

    def round_of_all():
        for name, batch in batches.items():
            steps = model.profile(batch)
            seconds[name].append([step.seconds for step in steps])
        return [step.name for step in steps]

    names = np.array(benchmark.pedantic(round_of_all, rounds=ROUNDS, warmup_rounds=2))
    least = {name: 1e3 * np.min(each, axis=0) for name, each in seconds.items()}
    benchmark.extra_info["ms"] = {name: round(float(each.sum()), 2) for name, each in least.items()}
    benchmark.extra_info["verify / certain"] = round(float(least["accepted"].sum() / least["certain"].sum()), 3)
    benchmark.extra_info["rejected / accepted"] = round(float(least["rejected"].sum() / least["accepted"].sum()), 3)
    for step in ("convolution", "recurrence", "keeping drafted tokens aside"):
        benchmark.extra_info[step] = {name: round(float(each[names == step].sum()), 2) for name, each in least.items()}
