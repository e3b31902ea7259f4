"""How many launches a layer takes, by family: ten at most, but for what docs/cuda.md names."""

import re
from pathlib import Path

import numpy as np
from oracles.models import tiny_file

from augury import Registry
from augury.backends.numba_cuda.device import SimulatedDevice
from augury.backends.numba_cuda.lowering import Lowering, Parts, size_of
from augury.backends.numba_cuda.weights import Weights
from augury.files.gguf import ModelFile, TensorType
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
DOCS = (Path(__file__).parents[3] / "docs/cuda.md").read_text()
MIXED = {"attn_v": TensorType.Q6_K, "ffn_down": TensorType.Q6_K}  # as in half of the layers of Q4_K_M
ROUTER = re.compile("ffn_gate_inp|exp_probs|shexp_gate")  # floats in every file


class Counted(Weights):
    """Weights of types that a test chooses, of which nothing is read."""

    def __init__(self, file, device, kinds):
        super().__init__(file, device, 1, 1, Progress())
        self._kinds, self._nowhere = kinds, device.allocate(1, "").at(0)

    def _type(self, part):
        if ROUTER.search(part.weight):
            return TensorType.F32
        return next((kind for name, kind in self._kinds.items() if name in part.weight), TensorType.Q4_K)

    def _hold(self, key, make):
        return self._nowhere


def n_launches(name, kinds):
    """What each kind of layer of a family takes for one token."""
    file = tiny_file(name)
    tensors = {key: tensor for key, tensor in file.tensors.items() if not key.endswith(".scale")}  # which few files have
    file = ModelFile(file.path, (file.path,), file.n_bytes, file.metadata, tensors)
    plan = plan_of(file, REGISTRY)
    lowering, device = Lowering(plan, ModelOptions(n_ctx=64, n_slots=1, threads=1)), SimulatedDevice()
    lowering.place(device, Counted(file, device, kinds))
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
