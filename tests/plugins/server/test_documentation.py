"""The page on the server: its examples run, one after the other, and it names every endpoint and ignored field."""

import json
import re
import subprocess
from pathlib import Path

from augury.cli.command_line import make_parser
from augury.plugins.server.foreign_fields import IGNORED, NEUTRAL
from augury.registry import Registry

PAGE = (Path(__file__).parents[3] / "docs/server.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
COMMANDS = [block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "curl" in block]


def test_the_commands_succeed(server):
    """In order: a slot that is saved is one that answered."""
    script = 'curl() { command curl --fail-with-body --silent --show-error "$@"; }\n' + "".join(COMMANDS).replace(
        ADDRESS, server.url
    )
    ended = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_python_examples_run(server, capsys):
    names = {}
    try:
        for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            exec(example.replace(ADDRESS, server.url), names)
    finally:
        names["client"].close()
    assert capsys.readouterr().out.count("\n") == 6


def test_the_commands_of_the_unit_and_the_container_are_known():
    unit = re.search(r"^ExecStart=\S+/augury (.+)$", PAGE, re.MULTILINE)[1].split()
    entry, more = (json.loads(re.search(rf"^{name} (.+)$", PAGE, re.MULTILINE)[1]) for name in ("ENTRYPOINT", "CMD"))
    for words in (unit, [*entry[1:], *more]):
        assert make_parser(Registry.discover(), words).parse_args(words).command == "serve"


def test_every_endpoint_is_named(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert [path for path in paths if path.split("/{")[0] not in PAGE] == []


def test_every_ignored_field_is_named():
    assert [field for field in IGNORED if f"`{field}`" not in PAGE] == []


def test_every_field_that_is_not_done_is_named():
    assert [field for field in NEUTRAL if f"`{field}`" not in PAGE] == []


def test_every_counter_is_named(client):
    client.post("/completion", json={"prompt": "one two one two one two", "n_predict": 12})
    names = {line.split("{")[0].split()[0] for line in client.get("/metrics").text.splitlines() if line[0] != "#"}
    names = {re.sub("_seconds_(bucket|sum|count)$", "_seconds", name) for name in names}
    assert {"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"} < names
    assert [name for name in names if f"`{name}`" not in PAGE] == []
