"""The commands of the page on several machines run, with a node on the loopback, and write what one machine writes."""

import re
import shlex
from pathlib import Path

from support.commands import run
from support.nodes import node_on_thread

from augury.testing.tiny_model import write_tiny_model

PAGE = (Path(__file__).parents[2] / "docs/machines.md").read_text()


def test_layers_and_a_draft_model_on_another_machine_change_no_text(tmp_path, capsys):
    write_tiny_model(model := tmp_path / "tiny.gguf")
    given = ["-t", 1, "-c", 128, "-n", 12, "--temp", 0, "--ignore-eos", "--spec-fixed"]
    code, expected, _ = run(capsys, "run", "-m", model, "-p", "def fib(n):", *given)
    assert code == 0
    (address,) = set(re.findall(r"^augury node --listen (\S+)$", PAGE, re.MULTILINE))
    commands = re.findall(r"^augury (run .*node:.*)$", PAGE, re.MULTILINE)
    with node_on_thread() as node:
        for command in commands:
            words = shlex.split(re.sub(r"\bqwen\S+", str(model), command.replace(address, node.address)))
            code, out, err = run(capsys, *words, *given)
            assert (code, out) == (0, expected), err
    assert len(commands) == 2
