"""The page on the server: its examples run, one after the other, and it names every endpoint and ignored field."""

import json
import re
import subprocess
from pathlib import Path

from support.servers import serving

from augury.cli.command_line import make_parser
from augury.plugins.server.config import models_of
from augury.plugins.server.foreign_fields import IGNORED, NEUTRAL
from augury.registry import Registry
from augury.testing.tiny_model import write_tiny_model

PAGE = (Path(__file__).parents[3] / "docs/server.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
SEVERAL = re.search(r"^## Several models\n.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[0]


def blocks(language, text):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_commands(text, server):
    """In order: a slot that is saved is one that answered."""
    script = 'curl() { command curl --fail-with-body --silent --show-error "$@"; }\n'
    script += "".join(block for block in blocks("sh", text) if "curl" in block).replace(ADDRESS, server.url)
    ended = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_commands_succeed(server):
    run_commands(PAGE.replace(SEVERAL, ""), server)


def test_the_commands_for_several_models_succeed(tmp_path, monkeypatch):
    (config,) = blocks("toml", SEVERAL)
    (folder := tmp_path / "models").mkdir()
    for name in ("smollm2", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"):
        write_tiny_model(path := folder / f"{name}.gguf")
        config = config.replace(f'"{name}"', f'"{path}"')
    (tmp_path / "models.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    found = {}
    for words in re.findall(r"^\$ augury (serve .*)$", SEVERAL, re.MULTILINE):
        args = make_parser(Registry.discover(), words.split()).parse_args(words.replace("~", str(tmp_path)).split())
        found[words.split()[1]] = [model.names for model in models_of(args.run.args[0], args)[1]]
    assert found.pop("--manage-models")
    assert found == {
        "-m": [("smollm2",), ("qwen2.5-coder-1.5b",)],
        "--models-dir": [("qwen2.5-coder-0.5b",), ("qwen2.5-coder-1.5b",), ("smollm2",)],
        "--config": [("small", "tiny", "test"), ("coder",)],
    }
    with serving("--config", "models.toml", "--backend", "reference", is_loaded=False) as server:
        run_commands(SEVERAL, server)


def test_the_tokens_that_it_shows_are_those_of_the_text_above(client):
    content, tokens = (re.search(rf"/{path} .*-d '(.*)'$", PAGE, re.MULTILINE)[1] for path in ("tokenize", "detokenize"))
    text, ids = json.loads(content)["content"], json.loads(tokens)["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"] == text
    assert client.post("/tokenize", json={"content": text}).json()["tokens"] == ids


def test_the_python_examples_run_on_a_server_without_flags(capsys):
    names = {}
    with serving("-m", "smollm2", "-t", 1, "-c", 512) as server:
        for example in blocks("python", PAGE):
            exec(example.replace(ADDRESS, server.url), names)
        names["client"].close()
    assert capsys.readouterr().out.count("\n") >= 6  # answers are sampled, and may have lines of their own


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
