"""`augury bench drafters`: plain decoding against drafters."""

import functools
import io
import json
import math
import shlex

import pytest
from oracles.drafts import HEADS, agreeing, copying_head
from oracles.models import tiny_model
from support.commands import REPEATING, here, run
from support.damage import disk_is_full

NGRAM = ["--spec-type", "ngram-simple"]


@pytest.fixture
def bench(capsys, monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs._STALL", math.inf)  # real times, perhaps of a busy machine
    words = ["bench", "drafters", *here(backend="numba-cpu"), "-c", 128, "-n", 40, "--spec-fixed", "--turns", 2]
    return functools.partial(run, capsys, *words)


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "work.jsonl"
    lines = [{"id": "a", "category": "copying", "tokens": [1, 2, 3, 4] * 4}, {"id": "b", "category": "other", "tokens": [5, 6]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_drafters_are_set_against_plain_decoding(bench):
    drafters = ["--spec-type", "ngram-simple:n=2,m=4", "--against", "draft-model", "-md", tiny_model("llama-dense")]
    code, out, _ = bench("--prompt-tokens", REPEATING, *drafters, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["model"], told["turns"], told["n_prompts"]) == ("llama-dense", 2, 1)
    assert [each["spec_type"].split(":")[0] for each in told["runs"]] == ["ngram-simple", "draft-model"]
    for each in told["runs"]:
        assert each["identical"] is True
        assert each["state"] == "cold"
        assert each["plain_per_second"] > 0
        assert each["tokens"] == 80
        assert min(each["interval"]) <= each["speedup"] <= max(each["interval"])
    assert told["runs"][1]["acceptance_rate"] == 1.0


def test_the_default_drafter_is_compared_beside_others(bench):
    told = json.loads(bench("--prompt-tokens", REPEATING, "--against", "suffix", "--json")[1])
    assert [each["spec_type"] for each in told["runs"]] == ["suffix;recycle", "suffix"]


def test_repeated_drafters_are_told_to_be_a_chain_and_how_they_are_compared(bench):
    _, out, err = bench("--prompt-tokens", REPEATING, "--spec-type", "suffix", "--spec-type", "ngram-simple:n=2;recycle")
    assert out.splitlines()[1].startswith("suffix;ngram-simple:n=2;recycle ")
    advice = "--spec-type suffix --against 'ngram-simple:n=2;recycle'"
    assert f"augury bench drafters: repeated --spec-type flags are one chain; {advice} compares its parts" in err
    _, out, err = bench("--prompt-tokens", REPEATING, *shlex.split(advice))
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["suffix", "ngram-simple:n=2;recycle"]
    assert "chain" not in err


def test_the_table_shows_categories_where_there_are_several(bench, workload):
    code, out, _ = bench("--prompt-tokens", REPEATING, *NGRAM)
    head, line = out.splitlines()
    assert code == 0
    assert head.split()[:2] == ["drafter", "plain"]
    assert line.split()[-1] == "yes"
    _, out, _ = bench("--workload", workload, *NGRAM, "--warm")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["drafter", "category"],
        ["ngram-simple", "copying"],
        ["ngram-simple", "other"],
        ["ngram-simple", "(warm)"],
        ["ngram-simple", "(warm)"],
    ]


def test_a_file_of_prompts_may_name_categories_too(bench, workload):
    told = json.loads(bench("-f", workload, "--json")[1])
    assert list(told["runs"][0]["categories"]) == ["copying", "other"]
    assert sum(each["tokens"] for each in told["runs"][0]["categories"].values()) == told["runs"][0]["tokens"] == 160


def test_prompts_of_several_files_are_told_apart(bench, workload):
    told = json.loads(bench("--workload", workload, "-f", workload, "--prompt-tokens", "7,8", *NGRAM, "--json")[1])
    assert told["n_prompts"] == 5
    assert list(told["runs"][0]["categories"]) == ["copying", "other", "all"]
    assert len(told["runs"][0]["categories"]["copying"]["pairs"]) == 4


def test_it_shows_how_many_pairs_have_run(bench, workload, monkeypatch):
    monkeypatch.setattr("augury.cli.progress._LINE_EVERY_S", 0.0)
    _, _, err = bench("--workload", workload, *NGRAM, "--warm")
    lines = [line for line in err.splitlines() if line.startswith("pairs: ")]
    assert lines == [f"pairs: {n} of 8" for n in range(8)]


def test_auto_takes_a_draft_model_too(bench):
    told = json.loads(bench("--prompt-tokens", REPEATING, "--spec-type", "auto", "-md", tiny_model("llama-dense"), "--json")[1])
    (run,) = told["runs"]
    assert "draft-model" in run["spec_type"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [*HEADS, "draft-mtp"])
def test_heads_are_named_by_llama_cpp_s_flags(bench, kind):
    words = ["-mtp", "-m", agreeing("mtp-deepseek2")] if kind == "draft-mtp" else ["-md", copying_head("llama-dense", kind)]
    words += [] if kind == "draft-mtp" else ["--spec-type", kind]
    limits = ["--spec-draft-n-max", 3, "--spec-draft-p-min", 0.05, "-n", 24, "--turns", 1]
    code, out, _ = bench("--prompt-tokens", REPEATING, *words, *limits, "--json")
    (run,) = json.loads(out)["runs"]
    assert code == 0
    assert (run["spec_type"].split(":")[0], run["identical"]) == (kind, True)
    assert run["acceptance_rate"] > 0


def test_without_prompts_it_takes_standard_input_or_its_own_workload(bench, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = bench()
    assert code == 1
    assert "no tokenizer" in err  # the tiny model's file has none, which a workload of texts needs
    monkeypatch.setattr("sys.stdin", io.StringIO("a text"))
    assert "no tokenizer" in bench()[2]


def test_a_page_is_written(bench, workload, tmp_path):
    code, _, _ = bench("--workload", workload, *NGRAM, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert code == 0
    assert "copying" in text
    assert "llama-dense" in text
    assert bench("--workload", workload, *NGRAM, "--html", tmp_path / "page.html")[0] == 0  # in its place


def test_a_page_that_cannot_be_written_is_named_after_the_figures(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", disk_is_full)
    code, out, err = bench("--prompt-tokens", REPEATING, *NGRAM, "--html", tmp_path / "page.html")
    assert code == 1
    assert "ngram-simple" in out
    assert err.endswith(f"augury: {tmp_path / 'page.html'}: No space left on device\n")
    assert not list(tmp_path.iterdir())


def test_rejection_may_change_what_is_drawn_and_nothing_else(bench):
    words = ["--spec-type", "draft-model", "-md", tiny_model("llama-dense"), "--spec-verify", "rejection"]
    code, out, err = bench("--prompt-tokens", REPEATING, *words, "--temp", "1", "--seed", "3")
    assert code == 0
    assert "changed the output" not in err
    assert out.rstrip().endswith("no (rejection)")
    code, out, _ = bench("--prompt-tokens", REPEATING, *words)
    assert (code, out.split()[-1]) == (0, "yes")


def test_a_changed_output_is_an_error(bench, monkeypatch):
    from augury.engine.engine import Engine

    submit = Engine.submit

    def cheat(self, prompt=None, **params):
        return submit(self, prompt if params["speculative"] else [*prompt, 1], **params)

    monkeypatch.setattr(Engine, "submit", cheat)
    code, out, err = bench("--prompt-tokens", REPEATING, *NGRAM)
    assert code == 1
    assert out.split()[-1] == "NO"
    assert "changed the output" in err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--workload", "absent.jsonl"], 1, "absent.jsonl"),
        (["--turns", "0"], 2, "--turns is '0'"),
        (["-r", "few"], 2, "-r is 'few', expected a whole number"),
        (["-n", "0"], 2, "-n is 0, but prompts are answered here"),
        (["--html", "absent/x.html"], 1, "no folder absent"),
        (["--html", "."], 1, ". is not a file"),
        (["--html", __file__], 2, "exists and is no page of augury; it is left as it is"),
        (["--spec-type", "suffix", "-md", "x.gguf"], 2, "no drafter compared takes one"),
        (["--curve", "1"], 2, "augury bench drafters has no flag --curve"),
        (["--spec-ngram-mod-n-max", "3"], 2, "--spec-ngram-mod-n-max is given, but ngram-mod is not in use"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(bench, words, code, expected):
    found, out, err = bench("--prompt-tokens", "1", *words)
    assert (found, out) == (code, "")
    assert expected in err
