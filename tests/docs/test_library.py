"""The page on the library: its code runs."""

import re
from functools import partial
from pathlib import Path

from oracles.adapters import adapter
from oracles.models import tiny_model
from support.toys import toy_engine

from augury import Engine
from augury.testing.tiny_model import write_tiny_model

PAGE = (Path(__file__).parents[2] / "docs/library.md").read_text()


def test_the_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"model": tiny_model("llama-dense"), "poems": adapter("llama-dense", 0), "law": adapter("llama-dense", 1)}
    for name, path in files.items():
        Path(f"{name}.gguf").symlink_to(path)
    write_tiny_model(Path("smollm2.gguf"))
    small = {"backend": "reference", "n_ctx": 256, "override_kv": {"tokenizer.chat_template": "{{ messages[0].content }}"}}
    monkeypatch.setattr(Engine, "load", partial(Engine.load, **small))
    first, *others = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(first.replace('"smollm2"', '"smollm2.gguf"'), {})
    assert capsys.readouterr().out.count("\n") >= 2
    with toy_engine() as engine:
        for example in others:
            exec(example, {"engine": engine})
    assert len(capsys.readouterr().out.splitlines()) == 18
