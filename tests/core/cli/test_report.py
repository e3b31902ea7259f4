"""What is in force, in brief, and only where somebody reads it."""

import json
import re

import pytest
from oracles.models import tiny_model
from support.commands import here, run

from augury.cli.report import drafting_lines, run_line
from augury.drafters.ngram_simple import NgramSimple
from augury.types import DrafterStats, Summary, Timings

DRAFTER = f"draft-model:model={tiny_model('llama-dense-q4_0')}"


@pytest.fixture
def told(capsys, monkeypatch):
    def lines(*words):
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        code, _, err = run(capsys, "run", *here(), "-c", 64, "--prompt-tokens", "1,2", "-n", 1, *words)
        assert code == 0
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", err)  # the bars', which vanish
        return [line for line in plain.splitlines() if line.startswith(("llama-dense", "drafts:"))]

    return lines


def test_a_terminal_is_told_what_is_in_force(told):
    model, drafts = told("-np", 2, "-ctk", "q8_0")
    assert model == "llama-dense on reference (generic), 1 thread, 2 slots of 64 tokens, KV cache q8_0/f16"
    assert drafts == "drafts: suffix;recycle, up to 16 tokens, where they pay"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--spec-type", "none"], "none, each token takes a pass"),
        (["--draft-max", 0], "none, each token takes a pass"),
        (["--spec-type", "lookup;suffix", "--draft-max", 8], "ngram-cache;suffix, up to 8 tokens, where they pay"),
        (
            ["--spec-type", "ngram-simple:n=3", "--spec-fixed", "--draft-min", 2],
            "ngram-simple:n=3, 2 to 16 tokens, in every round",
        ),
        (
            ["--spec-type", DRAFTER, "--spec-verify", "rejection"],
            f"{DRAFTER}, up to 16 tokens, where they pay, verified by rejection",
        ),
    ],
)
def test_who_drafts_is_said_as_it_is_in_effect(told, words, expected):
    assert told(*words)[1] == f"drafts: {expected}"


def test_what_is_not_a_terminal_gets_the_last_line_alone(capsys):
    _, _, err = run(capsys, "run", *here(), "--prompt-tokens", "1,2", "-n", 1)
    *others, last = err.splitlines()
    assert not [line for line in others if line.startswith(("llama-dense", "drafts:"))]
    assert last.split(" | ")[1] == "generated 1 tokens", "there is no speed of a first token"


@pytest.mark.parametrize(
    ("n", "told"), [(1, "generated 3 tokens, 4.0 tok/s"), (2, "generated 6 tokens, 4.0 tok/s per sequence")]
)
def test_the_speed_of_several_requests_is_that_of_each(n, told):
    timings = Timings(prompt_s=0.5, predict_s=0.5, n_prompt=0, n_predicted=2)
    assert run_line([Summary(n_emitted=3, timings=timings)] * n) == f"prompt 0 tokens | {told}"


@pytest.mark.parametrize("n", [0, 1])
def test_a_token_that_two_drafters_proposed_is_said_to_count_for_both(n):
    told = drafting_lines(Summary(drafters={"a": DrafterStats(drafted=3), "b": DrafterStats(drafted=n)}))
    assert ("a token that several drafters proposed counts for each of them:" in told) == bool(n)


def test_a_drafter_that_failed_is_a_line_of_the_statistics(capsys, monkeypatch):
    def failing(drafter, history, limit):
        raise LookupError("where am I?")

    monkeypatch.setattr(NgramSimple, "draft", failing)
    words = ["run", *here(), "-c", 64, "--prompt-tokens", "1,2", "-n", 4, "--spec-fixed", "--spec-type", "ngram-simple"]
    code, _, err = run(capsys, *words, "--stats", "-vv")
    assert code == 0
    assert err.count("plugin=ngram-simple method=draft") == 1
    assert 'raise LookupError("where am I?")' in err
    assert "  left out because it failed in draft: LookupError: where am I?" in err.splitlines()
    _, out, _ = run(capsys, *words, "--json")
    assert json.loads(out)["draft"]["drafters"]["ngram-simple"]["failed"] == "draft: LookupError: where am I?"
