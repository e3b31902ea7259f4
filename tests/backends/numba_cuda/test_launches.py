"""Launches: how many a layer takes, by family, ten at most but for what docs/cuda.md names; and whether a driver takes them."""

import re
from pathlib import Path

import numpy as np
import pytest
from cuda_simulator.device import CountingDevice
from oracles.cuda_launches import MIXED, REGISTRY, launches, placed
from oracles.models import ORACLES, tiny_file

from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda.aot import all_kernels
from augury.backends.numba_cuda.device import ELEMENTS, Launch, Pointer
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.lowering import size_of
from augury.loader import plan_of

DOCS = (Path(__file__).parents[3] / "docs/cuda.md").read_text()


def n_launches(name, kinds):
    """What each kind of layer of a family takes for one token."""
    lowering = placed(tiny_file(name), CountingDevice(), kinds)
    plan = lowering.plan
    ends = [len(lowering.steps(size_of(1, 0), Parts((0, i))).steps) for i in range(len(plan.layers) + 1)]
    blocks = [", ".join(type(each).__name__ for each in layer.blocks) for layer in plan.layers]
    return dict(zip(blocks, np.diff(ends).tolist(), strict=True))


def test_layers_take_as_many_launches_as_the_documentation_says():
    table = re.findall(r"^\| `(\S+)` \| ([\w, ]+?) \| (\d+) \| (\d+) \| (.*?) ?\|$", DOCS, re.MULTILINE)
    assert len(table) > 10
    told = {(name, layer): (int(one), int(mixed)) for name, layer, one, mixed, _ in table}
    families = dict.fromkeys(name for name, _ in told)
    counts = {name: [n_launches(name, kinds) for kinds in ({}, MIXED)] for name in families}
    assert told == {(name, layer): tuple(each[layer] for each in counts[name]) for name, layer in told}
    assert [(name, layer) for name, layer, one, mixed, why in table if (max(int(one), int(mixed)) > 10) != bool(why)] == []


def test_every_kernel_that_is_launched_is_compiled_ahead():
    launched, seen = set(), set()
    for name in ORACLES:
        plan = plan_of(tiny_file(name), REGISTRY)
        kinds = {type(each) for each in (*plan.blocks(), *plan.connections)}
        if kinds - seen:  # the first model with some of them
            seen |= kinds
            lowering = placed(tiny_file(name), CountingDevice(), {})
            steps = lowering.steps(size_of(1, 0), Parts((0, len(lowering.plan.layers)))).steps
            launched |= {each.kernel.name for each in steps if isinstance(each, Launch)}
    assert {"read_streams", "mix_streams", "pool", "find_ngrams"} <= {name.rpartition("_")[0] or name for name in launched}
    assert launched <= {each.name for each in all_kernels()}


def problems(launch):
    """What a driver would refuse of a launch, or take for something else."""
    if not all(0 < n < 1 << bits for n, bits in zip(launch.grid, (31, 16, 16), strict=True)):
        yield f"a grid of {launch.grid} blocks"
    if launch.n_threads not in range(WARP, 1025, WARP):
        yield f"{launch.n_threads} threads"
    for i, (letter, given) in enumerate(zip(launch.kernel.parameters, launch.arguments, strict=True)):
        if isinstance(given, Pointer):
            is_right = letter in ELEMENTS and given.offset % np.dtype(ELEMENTS[letter]).itemsize == 0
        else:
            is_right = letter == "r" or (letter == "i" and given in range(-(1 << 31), 1 << 31))
        if not is_right:
            yield f"argument {i}, {letter}: {given}"


@pytest.mark.sample(0)
def test_a_driver_takes_launches_of_large_models_too():
    found = {f"{launch.kernel.name}: {problem}" for launch in launches() for problem in problems(launch)}
    assert found == set()
