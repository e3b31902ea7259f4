"""Blocks: which operations are computed together, and which values are copied, with no record more than that."""

import pytest
from oracles.models import tiny_file

from augury import Registry
from augury.backends.numba_cpu.block import BlockEmitter
from augury.loader import plan_of
from augury.types import ModelOptions

RECURRENT = "Convolve Decay Recur Gate Multiply Add"
COMPUTED = {  # by model, layer and block
    ("llama-dense", 0, "FeedForward"): "Normalize MultiplyActivated Multiply Add",
    ("qwen2moe-moe-2-of-8", 0, "MixtureOfExperts"): (
        "Normalize Multiply MultiplyActivated Multiply Route FeedExpertsAndAdd Add"
    ),
    ("mamba2-dense", 0, "Mamba2"): f"Normalize Multiply {RECURRENT}",
    (
        "jamba-dense",
        1,
        "Mamba",
    ): (  # after the norms of three products, a copy of rows that lie elsewhere than a recurrence reads them
        "Normalize Multiply Convolve Multiply Normalize Normalize Normalize Multiply Decay Normalize Recur Gate Multiply Add"
    ),
}


@pytest.mark.parametrize(("name", "layer", "kind"), COMPUTED)
def test_what_kernels_compute_together(name, layer, kind):
    plan = plan_of(tiny_file(name), Registry.discover())
    (block,) = (each for each in plan.layers[layer].blocks if type(each).__name__ == kind)
    emitter = BlockEmitter(block, ModelOptions(n_ctx=64), plan.n_seen(block), [])
    operations = [type(each.operation).__name__ for each in (*emitter._early, *emitter._emitters)]
    assert " ".join(operations) == COMPUTED[name, layer, kind]
