"""The page on sources, backends and memory managers: its examples are whole plugins, and work."""

import re
import types
from pathlib import Path

import numpy as np
import pytest

from augury.engine.context import EngineContext
from augury.options import NoOptions
from augury.plugins.memory.contiguous import Contiguous
from augury.testing import ToyModel, check_backend, check_memory_manager, check_source

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
SOURCE, PASS, MEMORY, BACKEND = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def plugin_of(source):
    module = types.ModuleType("augury_documented")
    exec(compile(source, str(PAGE), "exec"), vars(module))
    return module


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
