"""The comparisons that users run with pytest, run as they run them."""

import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
from oracles.models import tiny_model
from support.commands import PYTEST

import augury.plugins.bench

REPEATING = [1, 2, 3, 4] * 4


@pytest.fixture
def compared(tmp_path):
    # a copy: an editable install may have the folder under another name than augury, which pytest would import it by
    (tmp_path / "bench").mkdir()
    shutil.copy(Path(augury.plugins.bench.__file__).with_name("test_drafters.py"), tmp_path / "bench")
    workload = tmp_path / "work.jsonl"
    lines = [{"id": "a", "category": "copying", "tokens": REPEATING}, {"id": "b", "category": "other", "tokens": [5, 6]}]
    workload.write_text("\n".join(map(json.dumps, lines)))

    def run(*words):
        command = [*PYTEST, "-p", "no:augury-testing", tmp_path / "bench", "--rootdir", tmp_path]
        command += [] if "no:benchmark" in words else ["--benchmark-json", tmp_path / "out.json"]
        command += ["--augury-model", tiny_model("llama-dense"), "--augury-backend", "reference"]
        command += ["--augury-tokens", "12", "--augury-workload", workload, *words]
        ended = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            # benchmarks are off within a worker of pytest-xdist, and this one is not
            env={name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"} | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        path = tmp_path / "out.json"
        has_run = path.is_file() and path.stat().st_size
        return ended.returncode, ended.stdout + ended.stderr, json.loads(path.read_text())["benchmarks"] if has_run else []

    return run


def test_drafters_are_compared_on_every_prompt_cold_and_warm(compared):
    drafters = ["--augury-drafter", "ngram-simple:n=2,m=4", "--augury-drafter", "ngram-map-k"]
    code, out, benchmarks = compared(*drafters, "--augury-pairs", "2", "--augury-warm")
    assert code == 0, out
    infos = [benchmark["extra_info"] for benchmark in benchmarks]
    assert {(info["spec_type"], info["item"], info["state"]) for info in infos} == {
        (spec, item, state) for spec in ("ngram-simple:n=2,m=4", "ngram-map-k") for item in "ab" for state in ("cold", "warm")
    }
    for info in infos:
        assert info["identical"] is True
        assert len(info["pairs"]) + info["stalled"] == 2
        ratios = [drafted / plain for plain, drafted in info["pairs"]]
        assert info["speedup"] == pytest.approx(statistics.median(ratios or [0.0]))
        assert info["tokens"] == 24
        assert info["mean_accepted_length"] == info["tokens"] / info["rounds"]
        assert sum(info["accepted_by_position"]) == info["accepted"]
        assert {"cpu", "cores", "threads", "backend", "isa", "model", "workload"} <= set(info["machine"])
        assert info["machine"]["isa"] == "generic"
    assert {benchmark["stats"]["rounds"] for benchmark in benchmarks} == {2}
    assert "copying, cold" in {benchmark["group"] for benchmark in benchmarks}
    assert "augury: drafters against plain decoding" in out
    assert "ngram-simple:n=2,m=4 (warm)" in out


def test_without_a_drafter_there_is_nothing_to_compare(compared):
    code, out, _ = compared()
    assert "name each with --augury-drafter" in out
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED


def test_without_pytest_benchmark_it_says_how_to_get_it(compared):
    code, out, _ = compared("--augury-drafter", "ngram-simple", "-p", "no:benchmark")
    assert code != 0
    assert "need pytest-benchmark; install augury with it" in out


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--augury-workload", "absent.jsonl"], "absent.jsonl"),
        (["--augury-pairs", "0"], "--augury-pairs is 0"),
        (["--augury-drafter", "no-such-drafter"], "--augury-drafter: there is no drafter 'no-such-drafter'"),
        (["--augury-drafter", "ngram-map-k:x=1"], "ngram-map-k: there is no option 'x'"),
    ],
)
def test_what_cannot_be_run_says_why(compared, words, expected):
    code, out, _ = compared("--augury-drafter", "ngram-simple", *words)
    assert code != 0
    assert expected in out


CHEAT = '''
from augury.engine.engine import Engine

submit = Engine.submit


def cheat(self, prompt=None, **params):
    """Emits another text where there is a drafter."""
    changed = prompt if params["speculative"] else [*prompt[:-1], prompt[-1] + 1]
    return submit(self, changed, **params)


Engine.submit = cheat
'''


def test_a_changed_output_fails(compared, tmp_path, monkeypatch):
    (tmp_path / "cheat.py").write_text(CHEAT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    code, out, _ = compared("--augury-drafter", "ngram-simple", "--augury-pairs", "1", "-p", "cheat")
    assert code == 1
    assert "changed the output of a" in out


def test_synthetic_acceptance_is_marked_and_no_fault(compared):
    words = ["--augury-drafter", "ngram-simple:n=2,m=4", "--augury-fixed", "--augury-synth-len", "1", "--augury-pairs", "1"]
    code, out, benchmarks = compared(*words)
    assert code == 0, out
    assert "ngram-simple:n=2,m=4 (synthetic)" in out
    assert {tuple(benchmark["extra_info"]["synthetic"]) for benchmark in benchmarks} == {(0.5,)}
