"""`augury tune`: what it tries, shows and prints, on a tiny model and with invented times."""

import functools
import json
import math
import shlex

import pytest
from oracles.drafts import HEADS, copying_head, draft_file, parted
from oracles.models import tiny_model
from support.commands import here, run
from support.pairs import pair

from augury.plugins.bench.paired_runs import PairedRuns

MODEL = str(tiny_model("llama-dense"))


@pytest.fixture
def tune(capsys, monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs._STALL", math.inf)  # real times, perhaps of a busy machine
    words = ["tune", *here(), "-c", 128, "-n", 12, "--prompt-tokens", "1,2,1,2,1,2,1,2", "--turns", 1]
    return functools.partial(run, capsys, *words)


@pytest.fixture
def engines(monkeypatch):
    """Engines are not run: each has the speed that its drafter and length are given here."""
    speedups, loaded = {}, []

    def runs(load, params, prompt):
        class Fake:
            def __init__(self):
                self.config = {"model": "m", "backend": "b", "threads": 1, "isa": "i"}

            def pair(self, index):
                args, spec_type, draft_model, _ = load()
                loaded.append((";".join(spec_type), args.draft_max, draft_model))
                return pair(3.0, 3.0 / speedups.get(loaded[-1][:2], 1.0), name=prompt.id, category=prompt.category)

            def close(self):
                pass

        return Fake()

    monkeypatch.setattr("augury.cli.load_engine", lambda *arguments: arguments)
    monkeypatch.setattr("augury.plugins.bench.commands.tune.PairedRuns", runs)
    return speedups, loaded


def test_the_option_line_stands_alone_on_standard_output(tune):
    code, out, err = tune()
    assert code == 0
    (line,) = out.splitlines()
    assert line.startswith("--spec-type ")
    assert err.count("no tokenizer") == 1  # a warning that every load would give
    table = [row.split()[:3] for row in err.splitlines() if row.split()[-1:] == ["all"]]
    assert [row for row in table if row[1] == "16"] == [
        ["suffix", "16", "1"],
        ["suffix;recycle", "16", "1"],
        ["ngram-simple:n=3", "16", "1"],
        ["ngram-mod:preset=short", "16", "1"],
    ]


def test_the_line_can_be_used(tune, capsys, engines):
    engines[0].update({("suffix;recycle;draft-model", 16): 1.5, ("suffix;recycle;draft-model", 32): 1.7})
    code, out, _ = tune("-md", MODEL, "--draft-min", "2")
    assert code == 0
    assert out == f"--spec-type suffix,recycle,draft-model -md {shlex.quote(MODEL)} --draft-max 32 --draft-min 2\n"
    words = [*here(), "--prompt-tokens", "1,2", "-n", 4, "-c", 64, "--json", *shlex.split(out)]
    code, out, _ = run(capsys, "run", *words)
    assert code == 0
    assert ";draft-model:model=" in json.loads(out)["spec_type"]


def test_what_is_tried_follows_from_what_is_given(tune, engines):
    speedups, loaded = engines
    speedups["self-spec:mode=layers,layers=1", 4] = 2.0
    _, out, _ = tune("-md", "small.gguf", "--layers", "1", "--against", "ngram-cache", "--draft-max", "4", "--spec-fixed")
    assert list(dict.fromkeys(loaded)) == [
        ("suffix", 4, None),
        ("suffix;recycle", 4, None),
        ("ngram-simple:n=3", 4, None),
        ("ngram-mod:preset=short", 4, None),
        ("draft-model", 4, "small.gguf"),
        ("suffix;recycle;draft-model", 4, "small.gguf"),
        ("self-spec:mode=layers,layers=1", 4, None),
        ("ngram-cache", 4, None),
        ("self-spec:mode=layers,layers=1", 2, None),
        ("self-spec:mode=layers,layers=1", 8, None),
    ]
    assert out == "--spec-type self-spec:mode=layers,layers=1 --draft-max 4 --spec-fixed\n"


@pytest.mark.parametrize("kind", HEADS)
def test_the_file_says_which_drafter_a_draft_model_is_for(tune, engines, kind):
    head = str(copying_head("llama-dense", kind))
    tune("-md", head, "--draft-max", "4", "--spec-fixed")
    tried = list(dict.fromkeys((spec_type, model) for spec_type, _, model in engines[1]))
    assert tried[4:6] == [(kind, head), (f"suffix;recycle;{kind}", head)]


def test_layers_for_further_tokens_are_tried_wherever_they_are(tune, engines):
    model, layers = parted(draft_file("mtp-qwen35"))
    for words, given in (
        (["-m", draft_file("mtp-qwen35")], None),
        (["-m", model, "-md", layers], str(layers)),
    ):
        engines[1].clear()
        tune(*words, "--draft-max", "4", "--spec-fixed")
        tried = list(dict.fromkeys((spec_type, path) for spec_type, _, path in engines[1]))
        assert tried[4:6] == [("draft-mtp", given), ("suffix;recycle;draft-mtp", given)]


def test_options_of_drafters_are_named_in_the_line(tune, engines):
    engines[0]["ngram-simple:n=3,m=7", 16] = 2.0
    _, out, _ = tune("--spec-ngram-simple-m", "7")
    assert out == "--spec-type ngram-simple:n=3,m=7 --draft-max 16\n"


def test_a_corpus_is_tried_and_named_in_the_line(tune, engines):
    engines[0]["suffix:corpus=answers", 16] = 2.0
    _, out, _ = tune("--spec-suffix-corpus", "answers")
    assert ("suffix:corpus=answers;recycle", 16, None) in engines[1]
    assert out == "--spec-type suffix:corpus=answers --draft-max 16\n"


def test_json_has_the_line_and_what_was_measured(tune, engines):
    engines[0]["suffix", 16] = 2.0
    code, out, _ = tune("--json")
    told = json.loads(out)
    assert code == 0
    assert told["options"] == "--spec-type suffix --draft-max 16" == shlex.join(told["arguments"])
    assert (told["candidates"][0]["spec_type"], told["candidates"][0]["draft_max"]) == (["suffix"], 16)
    assert told["candidates"][0]["tuned_speedup"] == pytest.approx(2.0)
    assert told["candidates"][0]["by_category"] == pytest.approx({"all": 2.0})
    assert told["machine"]["max_tokens"] == 12


def test_where_nothing_pays_it_says_none(tune, engines):
    assert tune()[1] == "--spec-type none\n"


def test_a_changed_output_is_an_error(tune, engines, monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs.Pair.is_identical", property(lambda _: False))
    code, out, err = tune()
    assert (code, out) == (1, "")
    assert "changed the output" in err


def test_engines_are_closed_where_one_fails(tune, monkeypatch):
    closed, close = [], PairedRuns.close

    def watched(runs):
        closed.append(runs)
        close(runs)

    monkeypatch.setattr(PairedRuns, "close", watched)
    code, out, err = tune("-m", "absent.gguf")
    assert (code, out) == (1, "")
    assert "absent.gguf" in err
    assert closed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--turns", "0"], "--turns is '0', expected a whole number of at least 1"),
        (["--draft-max", "0"], "--draft-max is 0"),
        (["--spec-type", "suffix"], "--against"),
        (["--spec-synth-len", "2"], "synthetic"),
        (["--layers", "few"], "--layers is 'few'"),
        (["--layers", "0,2"], "--layers is '0,2', expected whole numbers of at least 1"),
        (["--against", "sufix"], "suffix"),
        (["--spec-ngram-cache-n-min", "3"], "ngram-cache"),
        (["--workload", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(tune, words, expected):
    code, out, err = tune(*words)
    assert code != 0
    assert out == ""
    assert expected in err
