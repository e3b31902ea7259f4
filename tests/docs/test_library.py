"""The page on the library: its code runs."""

import re
from pathlib import Path

from support.toys import toy_engine

PAGE = (Path(__file__).parents[2] / "docs/library.md").read_text()


def test_the_examples_run(capsys):
    with toy_engine() as engine:
        for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            exec(example, {"engine": engine})
    assert len(capsys.readouterr().out.splitlines()) == 18
