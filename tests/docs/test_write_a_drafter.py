import re
import struct
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from augury import Registry, hookspecs
from augury.options import options_of

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/write-a-drafter.md").read_text()
MODEL = ROOT / "tests/data/models/llama-dense-q4_k.gguf"
# the model's vocabulary is of a kind that exists in tests alone; without one it takes token ids
TEST_TOKENIZER, NO_TOKENIZER = (b"tokenizer.ggml.model" + struct.pack("<IQ", 8, 4) + kind for kind in (b"test", b"none"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The guide's package, as pip would have installed it."""
    drafter, _ = blocks("python")
    (pyproject,) = blocks("toml")
    project = tomllib.loads(pyproject)
    (module,) = project["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{module}.py").write_text(drafter)
    facts = tmp_path / "my_drafter-0.1.dist-info"
    facts.mkdir()
    name, version = project["project"]["name"], project["project"]["version"]
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    entries = project["project"]["entry-points"]["augury"]
    (facts / "entry_points.txt").write_text("[augury]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("AUGURY_PLUGINS", raising=False)
    yield module
    sys.modules.pop(module, None)


@pytest.mark.usefixtures("installed")
def test_the_package_is_found_by_its_entry_point():
    drafter = Registry.discover().drafters["my-drafter"]
    assert list(options_of(drafter.options_class)) == ["length"]


@pytest.mark.usefixtures("installed")
def test_the_drafter_follows_the_trail_and_keeps_to_the_limit():
    drafter_class = Registry.discover().drafters["my-drafter"]
    drafter = drafter_class(drafter_class.options_class(), None)
    history = np.array([1, 2, 3, 1, 2, 4, 1], np.int32)
    drafter.begin(history, 0)
    assert drafter.draft(history[:5], 8).tokens.tolist() == [3, 1, 2, 3]
    assert drafter.draft(history, 3).tokens.tolist() == [2, 4, 1]


@pytest.mark.usefixtures("installed")
def test_the_guides_comparison_runs_and_finds_the_output_of_plain_decoding(tmp_path):
    model = tmp_path / "tiny.gguf"
    data = MODEL.read_bytes()
    assert data.count(TEST_TOKENIZER) == 1
    model.write_bytes(data.replace(TEST_TOKENIZER, NO_TOKENIZER))
    _, check = blocks("python")
    names = {}
    exec(check, names)
    prompt = [5, 6, 7] * 8
    rate, length = names["compare"](model, prompt, backend="reference", n_ctx=128, cache_type_k="f32", cache_type_v="f32")
    assert 0 <= rate <= 1
    assert 1 <= length <= 5


def test_the_guide_names_every_method_of_a_drafter():
    from augury import Drafter

    methods = {name for name, value in vars(Drafter).items() if callable(value) or isinstance(value, classmethod)}
    assert all(name in GUIDE for name in methods)
    assert hasattr(hookspecs, "augury_drafters")
