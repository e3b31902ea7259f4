"""The page on other plugins than drafters: its examples are whole plugins, and work."""

import re
import types
from pathlib import Path

import numpy as np
from oracles.models import altered, nmse, tiny_file
from oracles.passes import run_of

from augury.backends.reference import Reference
from augury.interfaces import Progress
from augury.options import NoOptions
from augury.registry import Registry
from augury.testing import check_architecture, check_source
from augury.types import ModelOptions

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
ARCHITECTURE, SOURCE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


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
