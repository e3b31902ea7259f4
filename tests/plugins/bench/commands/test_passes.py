"""`augury bench passes` on a tiny model."""

import functools
import json

import pytest
from oracles.models import tiny_model
from support.commands import here, run

from augury.plugins.bench.timing import Timing


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.timing._MAX_ROUNDS", 2)


@pytest.fixture
def bench(capsys):
    return functools.partial(run, capsys, "bench", "passes", *here())


def test_json_is_one_object_of_figures_by_kind(bench):
    code, out, _ = bench("--curve", "1,2", "-p", 6, "-n", 3, "-d", "0,4", "--json")
    assert code == 0
    assert out.count("\n") == 1
    told = json.loads(out)
    assert set(told) == {"model", "threads", "machine", "curve", "prefill", "decode"}
    assert (told["model"], told["threads"]) == (str(tiny_model("llama-dense")), 1)
    assert [(row["n"], row["depth"]) for row in told["curve"]] == [(1, 0), (2, 0), (1, 4), (2, 4)]
    assert [(row["n"], row["depth"]) for row in told["prefill"]] == [(6, 0), (6, 4)]
    assert [(row["n"], row["depth"]) for row in told["decode"]] == [(3, 0), (3, 4)]
    for row in told["curve"] + told["prefill"] + told["decode"]:
        assert row["tok_s"] == pytest.approx(row["n"] * 1e3 / row["ms"])
        assert row["spread_ms"][0] <= row["ms"] <= row["spread_ms"][1]


@pytest.mark.parametrize(
    ("words", "measures"),
    [
        (["-p", "6,3", "-n", 0, "-r", 3], [("prefill", 6), ("prefill", 3)]),
        (["-p", 0, "-n", 4, "-r", 1], [("decode", 4)]),
        (["-n", 0, "-r", 1], [("prefill", 512)]),
        (["-p", 3, "-p", 6, "-r", 1], [("prefill", 3), ("prefill", 6), ("decode", 128)]),
        (["--curve", 2, "-n", 4, "-r", 1], [("curve", 2), ("decode", 4)]),
    ],
)
def test_counts_are_those_of_llama_bench(bench, words, measures, monkeypatch):
    asked = []

    def script(_, found, *, progress, n_repetitions):
        asked.extend([*found, n_repetitions])
        return [Timing(measure, (1.0,)) for measure in found]

    monkeypatch.setattr("augury.plugins.bench.commands.passes.sweep", script)
    assert bench(*words)[0] == 0
    assert [(measure.kind, measure.n) for measure in asked[:-1]] == measures
    assert asked[-1] == words[-1]


def test_the_table_sets_passes_against_a_single_token(bench):
    head, single, four = bench("--curve", "1,4", "-d", 2)[1].splitlines()
    assert head.split()[:5] == ["measure", "n", "depth", "ms", "quartiles"]
    assert single.split()[:3] == ["pass", "1", "2"]
    assert single.split()[-1] == "1.00x"
    assert four.split()[-1].endswith("x")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--curve", "1,x"], "--curve is '1,x'"),
        (["--curve", "0"], "--curve is '0'"),
        (["--curve", "1", "-d", "-4"], "-d"),
        (["-p", "0", "-n", "0"], "nothing to time"),
        (["--curve", "1", "--vs", "x", "-r", "3"], "-r is 3, expected at least 7 with --vs"),
        (["--curve", "1", "--vs", ""], "--vs is '', expected the path of a llama-server"),
        (["--curve", "1", "--vs", "x '"], "expected the path of a llama-server"),
        (["-p", "4", "--spec-type", "ngram-simple"], "augury bench passes has no flag --spec-type"),
        (["-p", "words", "--curve", "2"], "-p is 'words'"),
    ],
)
def test_what_makes_no_sense_is_refused(bench, words, expected):
    code, _, err = bench(*words)
    assert code == 2
    assert expected in err


def test_on_a_terminal_one_sees_how_far_a_slot_is_filled(bench, monkeypatch):
    words = ("--curve", 1, "-d", 600)
    assert bench(*words)[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, out, err = bench(*words)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "fill the slot" in err
    assert "time passes" in err


def test_a_depth_that_no_memory_holds_is_refused_before_any_work(bench):
    code, out, err = bench("--curve", 1, "-d", 10**15)
    assert (code, out) == (1, "")
    assert "ask for a smaller context" in err
