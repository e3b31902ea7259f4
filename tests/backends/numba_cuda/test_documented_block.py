"""The block of the page on architectures, which runs on all backends, in the simulator."""

import re
import sys
import types
from pathlib import Path

import attrs
import numpy as np
import pytest
from oracles.models import altered, nmse
from oracles.passes import run_of

from augury.blocks import Linear
from augury.errors import UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Progress
from augury.registry import Registry
from augury.types import ModelOptions

PAGE = Path(__file__).parents[3] / "docs" / "write-an-architecture.md"
_, TIDAL, ENDS, SOFT, GPU, _, TINY = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
REGISTRY = Registry.discover()


def module_of(source, name="augury_documented"):
    module = types.ModuleType(name)
    exec(source, vars(module))
    return module


@pytest.fixture
def tidal(tmp_path, monkeypatch):
    """The file that the page writes, and its plan of the layer with the block alone."""
    monkeypatch.chdir(tmp_path)
    exec(TINY, {})
    file = ModelFile.open(tmp_path / "tiny.gguf")
    plan = module_of(TIDAL).Tidal.plans(file)["main"]
    return file, attrs.evolve(plan, layers=plan.layers[1:2])


def rows_of(backend, file, plan):
    kind = REGISTRY.backends[backend]
    model = kind(kind.options_class()).load(file, plan, ModelOptions(n_ctx=32, threads=1), Progress())
    return model.forward(run_of([3, 1, 4, 1, 5])).rows()


def test_the_block_is_computed_as_the_reference_does(tidal):
    file, plan = tidal
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-6


def test_the_embedding_and_the_output_are_computed_as_the_reference_does(tidal):
    file, plan = tidal
    module, rng = module_of(ENDS), np.random.default_rng(8)
    n_vocab, n_embd = plan.embedding.n_vocab, plan.embedding.n_embd
    shapes = {"narrow": (n_vocab, 32), "up": (n_embd, 32), "hidden": (96, n_embd), "deep": (n_vocab, 96)}
    arrays = {name: (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32) for name, shape in shapes.items()}
    up, hidden, deep = (Linear(name, *shapes[name][::-1]) for name in ("up", "hidden", "deep"))
    embedding = module.NarrowEmbedding("narrow", n_vocab, n_embd, up=up)
    plan = attrs.evolve(plan, embedding=embedding, output=module.DeepOutput(plan.output.norm, deep, hidden=hidden))
    file = altered(file, arrays=arrays)
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-6


def soft_plan(plan, module):
    plain = plan.layers[0].feed_forward
    soft = module.SoftFeedForward(plain.norm, plain.up, plain.down)
    return attrs.evolve(plan, layers=(attrs.evolve(plan.layers[0], feed_forward=soft),))


def test_an_operation_that_has_no_kernel_for_it_is_refused_by_name(tidal):
    file, plan = tidal
    with pytest.raises(UnsupportedError, match="SoftFeedForward has the operation Soften, which backend numba-cuda does not"):
        rows_of("numba-cuda", file, soft_plan(plan, module_of(SOFT)))


def test_an_operation_is_computed_by_the_kernels_of_its_package(tidal, monkeypatch):
    (file, plan), module = tidal, module_of(SOFT)
    monkeypatch.setitem(sys.modules, "augury_soft_gpu", module_of(GPU, "augury_soft_gpu"))
    monkeypatch.setattr(module.Soften, "kernels", {**module.Soften.kernels, "numba-cuda": "augury_soft_gpu:SoftenEmitter"})
    plan = soft_plan(plan, module)
    assert nmse(rows_of("numba-cuda", file, plan), rows_of("reference", file, plan)) < 1e-6
    assert re.fullmatch("soften_[0-9a-f]{24}", sys.modules["augury_soft_gpu"].soften.name)
