"""The page on the library: its code runs."""

import re
from pathlib import Path

from oracles.adapters import adapter
from oracles.models import tiny_model
from support.toys import toy_engine

PAGE = (Path(__file__).parents[2] / "docs/library.md").read_text()


def test_the_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"model": tiny_model("llama-dense"), "poems": adapter("llama-dense", 0), "law": adapter("llama-dense", 1)}
    for name, path in files.items():
        Path(f"{name}.gguf").symlink_to(path)
    with toy_engine() as engine:
        for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            exec(example, {"engine": engine})
    assert len(capsys.readouterr().out.splitlines()) == 18
