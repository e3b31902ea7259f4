"""Starts as processes of their own, with a cache folder of their own."""

import json
from pathlib import Path

import pytest

from augury.cli.command_line import main
from augury.errors import AuguryError
from augury.plugins.bench.commands import servers
from augury.plugins.bench.commands.servers import measure_startup

MODEL = str(Path(__file__).parents[2] / "data" / "models" / "llama-dense-q4_k.gguf")


def test_starts_are_timed_cold_first(capsys, monkeypatch):
    folders = []

    def watched(command, *, env, **rest):
        folder = Path(env["XDG_CACHE_HOME"])
        folders.append((folder, list(folder.iterdir())))
        (folder / "compiled").touch()
        return popen(command, env=env, **rest)

    popen = servers.subprocess.Popen
    monkeypatch.setattr(servers.subprocess, "Popen", watched)
    assert main(["bench", "startup", "-m", MODEL, "--backend", "reference", "--turns", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cold_s"] > 0
    assert len(told["warm_starts_s"]) == 2
    assert min(told["warm_starts_s"]) <= told["warm_s"] <= max(told["warm_starts_s"])
    assert len({folder for folder, _ in folders}) == 1
    assert [len(inside) for _, inside in folders] == [0, 1, 1]
    assert not folders[0][0].exists()


def test_both_starts_are_printed_in_seconds(capsys, monkeypatch):
    monkeypatch.setattr(servers, "measure_startup", lambda _words, _n: [9.5, 2.0, 1.0, 4.0])
    assert main(["bench", "startup", "-m", MODEL]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "cold start to the first token: 9.50 s",
        "warm start to the first token: 2.00 s (median of 3, 1.00 to 4.00)",
    ]


def test_a_start_that_fails_is_an_error_with_its_reason():
    with pytest.raises(AuguryError, match=r"code 1 before its first token.*no-such-model"):
        measure_startup(["run", "-m", "no-such-model", "--prompt-tokens", "1"], 1)
