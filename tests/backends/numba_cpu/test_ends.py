"""What x begins as, in passes whose threads each have an x of their own."""

import attrs
import numpy as np
import pytest
from oracles.models import altered, tiny_file

from augury import Registry
from augury.backends.numba.lowering import Parts
from augury.backends.numba_cpu import NumbaCpu, NumbaCpuOptions
from augury.blocks import Embedding, Linear
from augury.interfaces import Progress
from augury.loader import plan_of
from augury.lowering import InitStreams, LookUp, Multiply
from augury.types import ModelOptions


@attrs.frozen
class Wide(Embedding):
    """x = up(W[token])."""

    def tensors(self):
        return (*super().tensors(), Linear("up", self.n_embd, self.n_embd))

    def lower(self, build):
        x = build.add(LookUp, Linear(self.weight, self.n_embd, self.n_vocab))
        build.add(InitStreams, build.add(Multiply, x, (Linear("up", self.n_embd, self.n_embd),), "up"))


def with_up(plan):
    return attrs.evolve(plan, embedding=Wide("token_embd.weight", 128, 256))


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("llama-dense", lambda plan: plan, [("embedding", False)]),
        ("bloom-dense", lambda plan: plan, [("embedding", False), ("norm", False)]),
        ("gpt2-dense", lambda plan: plan, [("embedding", False), ("embedding", True), ("adding rows", True)]),
        (
            "llama-dense",
            with_up,
            [("embedding", True), ("quantising activations", False), ("up", True), ("copying rows", True)],
        ),
    ],
)
def test_threads_wait_before_anyone_writes_rows_that_all_read(name, change, expected):
    """The next product may be written where rows of positions, or what x was made of, were."""
    file = altered(tiny_file(name), arrays={"up": np.eye(256, dtype=np.float32)})
    plan = change(plan_of(file, Registry.discover()))
    model = NumbaCpu(NumbaCpuOptions()).load(file, plan, ModelOptions(n_slots=1, n_ctx=16, threads=2), Progress())
    program = model._lowering.program(1, Parts((0, len(plan.layers))))
    waits = [bool(program.records[start + 1]) for start in program.starts]
    found = [(work.name.split(" (")[0], each) for work, each in zip(program.works, waits, strict=True)]
    model.close()
    assert found[: len(expected)] == expected
