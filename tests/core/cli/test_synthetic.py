"""Synthetic acceptance on the command line: whatever shows its figures says so."""

import io
import json

import pytest
from support.commands import REPEATING, here, run

MARK = "acceptance is synthetic (0.5, 0.25 by position)"
PROMPT = ("--prompt-tokens", REPEATING)


@pytest.fixture
def augury(capsys):
    words = [*here(), "-c", 128, "-n", 40, "--temp", 0, "--seed", 1, "--spec-fixed", "--spec-type", "ngram-simple:n=2,m=4"]

    def augury(command, *more, synthetic=("--spec-synth-rates", "0.5,0.25")):
        return run(capsys, *command.split(), *words, *synthetic, *more)

    return augury


def test_run_warns_and_marks_its_figures(augury):
    code, _, err = augury("run", *PROMPT, "--stats")
    assert code == 0
    lines = err.splitlines()
    assert lines[0] == f"augury: {MARK}: the text is not the model's, only its speed is meaningful"
    assert MARK in lines[1:]
    assert ", synthetic)" in lines[-1]
    _, _, err = augury("run", *PROMPT, "--stats", synthetic=())
    assert "synthetic" not in err


def test_json_has_the_rates(augury):
    assert json.loads(augury("run", *PROMPT, "--json")[1])["synthetic"] == [0.5, 0.25]
    assert json.loads(augury("run", *PROMPT, "--json", synthetic=("--spec-synth-len", "4"))[1])["synthetic"] == [0.8]
    assert "synthetic" not in json.loads(augury("run", *PROMPT, "--json", synthetic=())[1])


def test_chat_warns(augury, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("/exit\n"))
    assert MARK in augury("chat", "--ignore-eos")[2]


@pytest.mark.parametrize("flags", ["suffix --spec-suffix-corpus", "ngram-cache --lookup-cache-dynamic"])
def test_no_file_learns_a_text_that_is_not_the_models(augury, tmp_path, flags):
    kept = tmp_path / "kept"
    words = ("--spec-type", *flags.split(), kept)
    assert augury("run", *PROMPT, *words)[0] == 0
    assert not kept.exists()
    assert augury("run", *PROMPT, *words, synthetic=())[0] == 0
    assert kept.exists()


def test_bench_marks_tables_and_finds_no_fault_with_the_texts(augury):
    code, out, err = augury("bench drafters", *PROMPT, "--turns", "1")
    assert code == 0
    assert MARK in err
    assert "changed" not in err
    line = out.splitlines()[1]
    assert line.startswith("ngram-simple:n=2,m=4 (synthetic)")
    assert line.split()[-1] == "synthetic"


def test_bench_marks_json_and_pages(augury, tmp_path):
    page = tmp_path / "page.html"
    words = ("--spec-synth-rates", "1,0.5")
    prompt = (*PROMPT, "--temp", "1", "--top-k", "3")  # which the model continues otherwise
    code, out, err = augury("bench drafters", *prompt, "--turns", "1", "--json", "--html", page, synthetic=words)
    told = json.loads(out)
    assert code == 0
    assert told["runs"][0]["synthetic"] == told["runs"][0]["categories"]["all"]["synthetic"] == [1.0, 0.5]
    assert told["machine"]["acceptance"] == "synthetic: 1, 0.5"
    assert told["runs"][0]["identical"] is False
    assert "changed the output" not in err
    html = page.read_text(encoding="utf-8")
    assert "Acceptance is synthetic" in html
    assert "changed the output" not in html
    assert "differs from plain" not in html


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--spec-synth-rates", "high"), "--spec-synth-rates is 'high'"),
        (("--spec-synth-rates", "2"), "spec_synth_rates is (2.0,)"),
        (("--spec-synth-len", "-1"), "spec_synth_len is -1.0"),
        (("--spec-synth-len", "1", "--spec-synth-rates", "0.5"), "give one of them"),
        (("--spec-synth-len", "1", "--spec-verify", "rejection"), "takes the place"),
    ],
)
def test_what_makes_no_sense_is_refused(augury, words, expected):
    code, out, err = augury("run", *PROMPT, synthetic=words)
    assert (code, out) == (2, "")
    assert expected in err
