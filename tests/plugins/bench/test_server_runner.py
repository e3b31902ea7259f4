"""The peer's side of a comparison, against a server that answers what a real one would."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from augury.cli.command_line import main
from augury.errors import AuguryError
from augury.plugins.bench.server_runner import ServerRunner
from augury.plugins.bench.timing import Measurement

FAKE = Path(__file__).with_name("fake_server.py")
MODEL = Path(__file__).parents[2] / "data" / "models" / "llama-dense-q4_k.gguf"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that starts the fake server."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def asked(tmp_path):
    return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def runner(path):
    return ServerRunner(path, ["-m", MODEL], np.arange(10, 74), 100)


def test_each_kind_is_timed_by_the_servers_own_clock(program):
    with runner(program) as server:
        server.prepare(0)
        assert server.seconds(Measurement("curve", 4, 0)) == 8
        assert server.seconds(Measurement("prefill", 6, 0)) == 12
        assert server.seconds(Measurement("decode", 3, 0)) == 15
        server.prepare(20)
        assert server.seconds(Measurement("curve", 4, 20)) == 8
        assert server.seconds(Measurement("curve", 4, 20)) == 8
        assert server.seconds(Measurement("decode", 3, 20)) == 15


def test_the_server_holds_the_depth_and_nothing_after_it(program, asked):
    with runner(program) as server:
        server.prepare(5)
        for _ in range(2):
            server.seconds(Measurement("curve", 2, 5))
    fill, first, second = asked()
    assert fill["prompt"] == list(range(10, 15))
    assert first["prompt"][:5] == second["prompt"][:5] == fill["prompt"]
    assert len({15, first["prompt"][5], second["prompt"][5]}) == 3
    assert {body["temperature"] for body in (fill, first, second)} == {0}


def test_more_words_reach_the_server(program, tmp_path):
    path = tmp_path / "told"
    program.write_text(program.read_text().replace("exec", f'echo "$@" > {path}\nexec'))
    with ServerRunner(program, ["-m", MODEL, "--spec-type", "ngram-simple"], np.arange(10, 74), 100):
        assert path.read_text().split()[-2:] == ["--spec-type", "ngram-simple"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("ends", "unknown model architecture"),
        ("dies", "out of memory"),
        ("miscounts", "prompt_n 3, expected 2"),
        ("slow to start", "prompt_ms is 0"),
        ("says nothing", "without timings"),
    ],
)
def test_a_faulty_server_is_an_error_that_says_why(program, monkeypatch, fault, expected):
    monkeypatch.setenv("FAKE", fault)
    with pytest.raises(AuguryError, match=expected), runner(program) as server:
        server.seconds(Measurement("curve", 2, 0))


def test_a_program_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(AuguryError, match="absent is not a program"):
        runner(tmp_path / "absent")


def test_a_program_of_another_machine_is_an_error(tmp_path):
    path = tmp_path / "llama-server"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(AuguryError, match="cannot be run"), runner(path):
        pass


def words(what, program, *more):
    return ["bench", what, "-m", str(MODEL), "--backend", "reference", "--vs", str(program), *more]


def test_the_command_tells_ratios(program, monkeypatch, capsys):
    monkeypatch.setattr("augury.plugins.bench.timing._TURN_S", 0)
    assert main(words("passes", program, "--curve", "1,2", "-n", "2", "-d", "0,3", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["n"], row["depth"]) for row in told["curve"]] == [(1, 0), (2, 0), (1, 3), (2, 3)]
    assert told["vs"]["peer"] == str(program)
    assert told["vs"]["pairs"] == 7
    rows = told["vs"]["ratios"]
    assert [(row["kind"], row["n"], row["depth"]) for row in rows[-2:]] == [("decode", 2, 0), ("decode", 2, 3)]
    for row in rows:
        assert row["peer_tok_s"] == pytest.approx(0.2 if row["kind"] == "decode" else 0.5)
        assert row["interval"][0] <= row["ratio"] <= row["interval"][1]
        assert all(trip > 0 for trip in row["round_trip_ns"])
        assert len(row["pairs_ms"]) == 7
        assert row["ratio"] == pytest.approx(sorted(theirs / ours for ours, theirs in row["pairs_ms"])[3])
    assert told["machine"]["model"] == MODEL.stem


def test_the_command_prints_a_table_with_what_differs(program, monkeypatch, capsys):
    monkeypatch.setattr("augury.plugins.bench.timing._TURN_S", 0)
    assert main(words("passes", program, "--curve", "2")) == 0
    head, row, *notes = capsys.readouterr().out.splitlines()
    assert "peer's tok/s" in head
    assert row.split()[:3] == ["pass", "2", "0"]
    assert "the peer those of the last" in notes[-1]


def test_the_flags_of_another_engine_reach_it(program, monkeypatch, tmp_path):
    monkeypatch.setattr("augury.plugins.bench.timing._TURN_S", 0)
    program.write_text(program.read_text().replace("exec", f'echo "$@" > {tmp_path / "told"}\nexec'))
    assert main(words("passes", f"{shlex.quote(str(program))} -fa off", "--curve", "2")) == 0
    assert (tmp_path / "told").read_text().split()[-2:] == ["-fa", "off"]
