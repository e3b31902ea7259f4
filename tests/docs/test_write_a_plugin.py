"""The page on other plugins than drafters: its examples are whole plugins, and work."""

import re
import types
from pathlib import Path

import numpy as np
import pytest
from oracles.models import altered, nmse, tiny_file
from oracles.passes import run_of

from augury.backends.reference import Reference
from augury.engine.context import EngineContext
from augury.interfaces import Progress
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.registry import Registry
from augury.testing import ToyModel, check_architecture, check_backend, check_memory_manager, check_source
from augury.types import ModelOptions

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
ARCHITECTURE, SOURCE, PASS, MEMORY, BACKEND = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def plugin_of(source):
    module = types.ModuleType("augury_documented")
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return module


def oracular_file():
    """The tiny qwen3 model, renamed: it has the tensors that the example asks for."""
    qwen3 = tiny_file("qwen3-dense")
    renamed = {key.replace("qwen3.", "oracular."): value for key, value in qwen3.metadata.items()}
    return altered(qwen3, metadata=renamed | {"general.architecture": "oracular", "oracular.attention.sliding_window": 16})


def test_the_documented_architecture_registers_and_computes():
    registry = Registry()
    registry.register(plugin_of(ARCHITECTURE), name="architecture-oracular")
    file = oracular_file()

    check_architecture("oracular", file, registry=registry)
    plan = registry.architectures["oracular"].plans(file)["main"]
    model = Reference(NoOptions()).load(file, plan, ModelOptions(n_ctx=32), Progress())
    logits = model.forward(run_of(range(32))).rows()

    assert [layer.mixer.window for layer in plan.layers] == [16, None]
    assert logits.shape == (32, 128)
    assert np.isfinite(logits).all()
    assert nmse(logits[1:], logits[:-1]) > 0.1


def test_the_documented_source_keeps_the_contracts_of_sources(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    module = plugin_of(SOURCE)
    module.SHELF = tmp_path
    (source,) = module.augury_sources()
    check_source(source, "lan:tiny", "lan:no-such-model")


@pytest.mark.parametrize(("off", "n_passes"), [(0, 5), (1, 9)])
def test_the_documented_passes_continue_as_plain_decoding_does(off, n_passes):
    model = ToyModel()
    context = EngineContext(model, Contiguous(NoOptions(), model.state_spec, model))
    prompt = np.array([1, 2, 3], np.int32)
    found = plugin_of(PASS).continue_greedily(context, prompt, 9, lambda tokens: (model.plain(tokens, 1)[0] + off) % 16)
    assert found == model.plain([1, 2, 3], 9)
    assert len(model.batches) == n_passes


def test_the_documented_memory_manager_keeps_its_contracts():
    (manager,) = plugin_of(MEMORY).augury_memory_managers()
    check_memory_manager(manager)


def test_the_documented_backend_keeps_its_contracts_and_a_journal():
    module = plugin_of(BACKEND)
    (backend,) = module.augury_backends()
    check_backend(backend)
    assert module.PASSES
