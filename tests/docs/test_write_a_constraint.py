"""The page on constraints: its example keeps the contracts, and does in an engine what the page says."""

import re
from pathlib import Path

import pytest

from augury import Constraint
from augury.errors import OptionError
from augury.registry import Registry
from augury.testing.drafter.engines import engine_with
from augury.testing.toys import registry_with_toys

PAGE = (Path(__file__).parents[2] / "docs/write-a-constraint.md").read_text()


def shown():
    """The names that the page's examples define; the last of them proves the first."""
    names = {}
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(example, names)
    return names


def registry_with_one_of():
    registry = registry_with_toys()
    registry.register(type("Module", (), {"augury_constraints": staticmethod(shown()["augury_constraints"])}), name="one-of")
    return registry


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_answer_is_one_of_the_texts(temperature):
    with engine_with(registry=registry_with_one_of()) as engine:
        prompts, texts = [[1], [200, 5], [7] * 9], "then|the end|in there"
        results = engine.generate(prompts, one_of=texts.split("|"), temperature=temperature, seed=3)
    assert {result.text for result in results} <= set(texts.split("|"))
    assert {result.finish_reason for result in results} == {"stop"}


def test_it_is_refused_without_a_tokenizer():
    session = type("Session", (), {"tokenizer": None})
    with pytest.raises(OptionError, match="one-of needs texts"):
        shown()["OneOf"](shown()["OneOfOptions"](), session)


def test_every_method_is_named():
    assert Registry().constraints == {}
    public = {name for name in vars(Constraint) if not name.startswith("_")} | {"__init__"}
    assert not [name for name in public if f"`{name}" not in PAGE]
