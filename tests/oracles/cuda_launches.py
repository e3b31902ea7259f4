"""The launches of models' passes, found out without weights or a device: of kernels for GPUs, or for their simulator."""

from __future__ import annotations

import re

from cuda_simulator.device import CountingDevice
from gpu.models import LARGE, MIDDLE, MIXTURE, Q4_K_M, random_model
from oracles.drafts import draft_file, target_of
from oracles.models import ORACLES, tiny_file

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.lowering import PASS_SIZES, Lowering, size_of
from augury.backends.numba_cuda.weights import Weights
from augury.files.gguf import ModelFile
from augury.files.tensor_type import TensorType
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.types import ModelOptions

REGISTRY = Registry.discover()
MIXED = {"attn_v": TensorType.Q6_K, "ffn_down": TensorType.Q6_K}  # as in half of the layers of Q4_K_M
_ROUTER = re.compile("ffn_gate_inp|exp_probs|shexp_gate")  # floats in every file


class Counted(Weights):
    """Weights of types that a test chooses, of which nothing is read."""

    def __init__(self, file, device, kinds):
        super().__init__(file, device, 1, 1, Progress())
        self._kinds, self._nowhere = kinds, device.allocate(1, "")

    def _type(self, part):
        if _ROUTER.search(part.weight):
            return TensorType.F32
        return next((kind for name, kind in self._kinds.items() if name in part.weight), TensorType.Q4_K)

    def constant(self, key, make):
        return self._nowhere


def placed(file, device, kinds, n_ctx=64, n_slots=1, weights=Counted):
    """The lowering of a model on a device that nothing is computed on."""
    are_few = re.compile(r"(?<!gate_inp)\.scale$")  # files that have such tensors
    tensors = {key: tensor for key, tensor in file.tensors.items() if not are_few.search(key)}
    target, file = file.target, ModelFile(file.path, (file.path,), file.n_bytes, file.metadata, tensors)
    if target is not None:
        file.borrow_from(target)
    lowering = Lowering(plan_of(file, REGISTRY), ModelOptions(n_ctx=n_ctx, n_slots=n_slots, threads=1))
    lowering.place(device, weights(file, device, kinds))
    return lowering


def launches():
    """Of passes of any number of tokens through some tiny models, those of 1.5 and 8 billion weights, a mixture, and a head."""
    files = [(tiny_file(name), 64) for name in ORACLES[::7]]
    head = ModelFile.open(draft_file("dflash2-qwen3"))
    head.borrow_from(tiny_file(target_of("dflash2-qwen3")))
    files.append((head, 64))
    files += [(random_model(shape, Q4_K_M, is_hollow=True), 32768) for shape in (MIDDLE, LARGE, MIXTURE)]
    for file, n_ctx in files:
        lowering = placed(file, CountingDevice(), MIXED, n_ctx)
        n_layers = min(2, len(lowering.plan.layers))
        for n in PASS_SIZES:
            steps = lowering.steps(size_of(n, n_ctx - 1), Parts((0, n_layers))).steps
            yield from (step for step in [*steps, *lowering.moving(lowering.inputs, n)] if isinstance(step, Launch))
