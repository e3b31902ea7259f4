"""`augury batch --ray`: whoever answers a line, and whoever dies meanwhile, the rows are those of one engine."""

import json
import os
import random
import time

import pytest
from support.commands import here, run
from support.servers import settled

from augury.plugins.ray import cluster
from augury.plugins.server.batch import rows

N_KILLS = int(os.environ.get("KILLS", "2"))  # in mid-work

FLAGS = [*here(), "-c", "64", "-n", "24", "-np", "2"]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def prompts(path, n):
    path.write_text("".join(f"{json.dumps({'id': f'p{i}', 'tokens': [i % 60 + 1, 3]})}\n" for i in range(n)))
    return path


@pytest.mark.ray
def test_rows_are_those_of_one_engine_whoever_is_killed(capsys, tmp_path, nodes, monkeypatch):
    source, out, alone = prompts(tmp_path / "in.jsonl", 40 + 12 * N_KILLS), tmp_path / "out.jsonl", tmp_path / "alone.jsonl"
    assert run(capsys, "batch", source, alone, *FLAGS, "--ordered")[0] == 0
    killed, rng, add = [], random.Random(5), rows.RowFile.add

    def add_and_kill(own, *row):
        add(own, *row)
        if len(own.ids) == 6 * (len(killed) + 1) and len(killed) < N_KILLS:
            end = time.monotonic() + 60
            while not (there := nodes.workers("ray::Actor")) and time.monotonic() < end:
                time.sleep(0.05)
            killed.append(there if not killed else [rng.choice(there)])  # at first all, or it may be one that loads yet
            for pid in killed[-1]:
                nodes.kill(pid)

    monkeypatch.setattr(rows.RowFile, "add", add_and_kill)
    code, _, err = run(capsys, "batch", source, out, *FLAGS, "--ordered", "--ray", nodes.address)
    assert (code, len(killed)) == (0, N_KILLS)
    assert out.read_bytes() == alone.read_bytes()
    assert "died; what it had is answered by the next that is free" in err
    *_, last = err.splitlines()
    shares = [int(part.rpartition(" ")[2].rstrip("%")) for part in last.split(" | ")[-1].split(", ")]
    assert 99 <= sum(shares) <= 101


@pytest.mark.ray
def test_a_model_that_no_worker_can_load_is_the_end(capsys, tmp_path, nodes):
    source, flags = prompts(tmp_path / "in.jsonl", 3), ["-m", tmp_path / "none.gguf", "-t", 1]
    code, _, err = run(capsys, "batch", source, tmp_path / "out.jsonl", *flags, "--ray", nodes.address)
    assert (code, err.count("none.gguf")) == (1, 3)
    assert "vm/1 cannot be used: " in err or "/1 cannot be used: " in err
    assert settled(lambda: len(nodes.workers("ray::Actor")), 0) == 0, "who is left out leaves the cores to others"


@pytest.mark.ray
def test_a_cluster_that_is_started_here_looks_seldom_where_nothing_else_is_set(monkeypatch):
    found = {"RAY_enable_metrics_collection": "1"}
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr(os, "environ", found)
    cluster.join("auto")
    assert len(found) == 1
    cluster.join("local")
    assert (found["RAY_enable_metrics_collection"], found["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"]) == ("1", "1")


def test_without_the_extra_ray_is_what_is_to_be_installed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("augury.extras.find_spec", lambda _: None)
    code, _, err = run(capsys, "batch", prompts(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl", "--ray", "local", *FLAGS)
    assert code == 1
    assert "--ray needs ray, not installed here; install the extra: pip install " in err
