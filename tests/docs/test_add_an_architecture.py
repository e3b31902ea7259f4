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
from augury.types import ModelOptions

PAGE = Path(__file__).parents[2] / "docs" / "add-an-architecture.md"


def documented_plugin():
    (source,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    module = types.ModuleType("augury_oracular")
    exec(compile(source, str(PAGE), "exec"), module.__dict__)
    return module


def oracular_file():
    """The tiny qwen3 model, renamed: it has the tensors that the example asks for."""
    qwen3 = tiny_file("qwen3-dense")
    renamed = {key.replace("qwen3.", "oracular."): value for key, value in qwen3.metadata.items()}
    return altered(qwen3, metadata=renamed | {"general.architecture": "oracular", "oracular.attention.sliding_window": 16})


def test_the_documented_architecture_registers_and_computes():
    registry = Registry()
    registry.register(documented_plugin(), name="architecture-oracular")
    file = oracular_file()

    plan = registry.architectures["oracular"].plan(file)
    model = Reference(NoOptions()).load(file, plan, ModelOptions(n_ctx=32), Progress())
    logits = model.forward(run_of(range(32))).rows()

    assert [attention.window for attention in plan.attentions] == [16, None]
    assert logits.shape == (32, 128)
    assert np.isfinite(logits).all()
    assert nmse(logits[1:], logits[:-1]) > 0.1
