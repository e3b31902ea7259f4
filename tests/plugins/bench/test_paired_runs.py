"""Plain and drafted runs beside each other, on a tiny model."""

import math
from types import SimpleNamespace

import pytest
from oracles.models import tiny_model
from support.pairs import result

from augury.cli.prompts import Prompt
from augury.drafters.ngram_simple import NgramSimple
from augury.engine.engine import Engine
from augury.errors import PluginError
from augury.plugins.bench.page import _rounds
from augury.plugins.bench.pair_stats import PairStats
from augury.plugins.bench.paired_runs import PairedRuns

PROMPT = Prompt(tokens=(1, 2, 3, 4) * 4)
PARAMS = {"temperature": 0, "max_tokens": 48}


class Loads:
    """Loads engines, and remembers what was asked of them."""

    def __init__(self):
        self.asked = []  # per engine: the speculation of each request

    def __call__(self):
        engine = Engine.load(
            tiny_model("llama-dense"),
            spec_type="ngram-simple:n=2,m=4",
            backend="reference",
            threads=1,
            n_ctx=128,
            spec_fixed=True,
        )
        asked, submit = [], engine.submit

        def watched(**params):
            asked.append(params["speculative"].get("type", "drafter"))
            return submit(**params)

        engine.submit = watched
        self.asked.append(asked)
        return engine


@pytest.fixture
def loads():
    return Loads()


@pytest.fixture
def runs(loads, monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs._STALL", math.inf)  # real times, perhaps of a busy machine
    runs = PairedRuns(loads, PARAMS, PROMPT)
    yield runs
    runs.close()


def test_both_emit_the_same_tokens_and_only_the_drafter_drafts(runs):
    pair = runs.pair(0)
    assert pair.is_identical
    assert pair.plain.stats.n_drafted == 0
    assert pair.drafted.stats.n_drafted > 0
    assert len(pair.plain.tokens) == 48


def test_a_drafter_that_fails_has_no_figures(runs, monkeypatch):
    monkeypatch.setattr(NgramSimple, "draft", lambda drafter, history, limit: None)
    with pytest.raises(PluginError, match="ngram-simple failed in draft: PluginError: returned a NoneType"):
        runs.pair(0)


def test_a_page_reads_the_rounds_of_a_run_from_it(runs):
    drafted = runs.pair(0).drafted
    rounds = _rounds(drafted)
    assert len(rounds) == drafted.stats.n_rounds - 1  # the prompt's drafts nothing
    assert sum(n_drafted for n_drafted, _ in rounds) == drafted.stats.n_drafted
    assert sum(n_accepted for _, n_accepted in rounds) == drafted.stats.n_accepted > 0


def test_every_pair_begins_with_a_fresh_engine_and_who_begins_changes(runs, loads):
    for index in range(3):
        runs.pair(index)
    assert loads.asked == [["none", "none", "drafter"], ["none", "drafter", "none"], ["none", "none", "drafter"]]


def test_warm_pairs_keep_their_engine_whose_drafter_has_seen_the_prompt(runs, loads):
    for index in range(2):
        runs.pair(index, is_warm=True)
    assert loads.asked == [["none", "drafter", "none", "drafter", "drafter", "none"]]


@pytest.mark.parametrize(("slow", "n_repeated", "is_stalled"), [(0, 0, False), (2, 2, False), (9, 3, True)])
def test_a_plain_run_that_stalled_is_repeated(monkeypatch, slow, n_repeated, is_stalled):
    runs = PairedRuns(None, PARAMS, PROMPT)
    drafted = result(1.0, rounds=((0, 0), (3, 0), (3, 0), (3, 0)))
    times = [49.0] * slow + [1.0] * 9
    monkeypatch.setattr(runs, "_prepare", lambda **_: None)
    monkeypatch.setattr(runs, "_plain", lambda: result(times.pop(0)))
    monkeypatch.setattr(runs, "_drafted", lambda: drafted)
    pair = runs.pair(0)
    assert (pair.n_repeated, pair.is_stalled) == (n_repeated, is_stalled)
    assert pair.plain.stats.timings.predict_s == (49.0 if is_stalled else 1.0)


def test_the_model_goes_by_its_own_name(runs):
    runs.pair(0)
    assert runs.config["model"] == "llama-dense"
    assert runs.config["spec_type"] == "ngram-simple:n=2,m=4"


def test_a_corpus_is_read_and_learns_nothing_of_what_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs._STALL", math.inf)
    path = tmp_path / "corpus"

    def load():
        spec = {"spec_type": "suffix", "spec_options": {"suffix": {"corpus": str(path)}}, "spec_fixed": True}
        return Engine.load(tiny_model("llama-dense"), backend="reference", threads=1, n_ctx=128, **spec)

    def rounds():
        runs = PairedRuns(load, PARAMS, Prompt(tokens=(3, 1, 4)))
        return [runs.pair(index).drafted.stats.n_rounds for index in range(2)]

    first, second = rounds()
    assert first == second
    assert not path.exists()
    with load() as engine:
        engine.generate([3, 1, 4], **PARAMS)
    before = path.read_bytes()
    assert max(rounds()) < first
    assert path.read_bytes() == before


def test_a_planned_pair_tells_how_true_its_chances_were(monkeypatch):
    monkeypatch.setattr("augury.plugins.bench.paired_runs._STALL", math.inf)

    def load():
        return Engine.load(tiny_model("llama-dense"), spec_type="suffix", backend="reference", threads=1, n_ctx=128)

    runs = PairedRuns(load, PARAMS, PROMPT)
    for pair in (runs.pair(0), runs.pair(1)):
        reliability = PairStats.of([pair]).reliability
        together, alone = reliability.steps["together"], reliability.steps["suffix"]
        assert together == alone
        assert sum(each.n for each in together) >= sum(each.n_right for each in together) > 0
        n = sum(tally.n for _, tally in reliability.buckets.values())
        assert n == sum(each.n for each in together)
        assert reliability.as_json()["buckets"]["suffix"]


class Talker:
    """An engine that answers with a number, and remembers what it was asked."""

    def __init__(self):
        self.asked, self.config, self.info = [], {}, SimpleNamespace(name="talker")

    def submit(self, **params):
        self.asked.append(
            (params["speculative"], params.get("max_tokens"), [each.get("content") for each in params["messages"]])
        )
        return SimpleNamespace(result=lambda: SimpleNamespace(text=f"answer {len(self.asked)}"))

    def watch_trials(self, observer):
        pass

    def close(self):
        pass


def test_answers_that_a_conversation_leaves_open_are_written_once_and_plainly():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}]
    engines = [Talker(), Talker()]
    waiting = list(engines)
    runs = PairedRuns(lambda: waiting.pop(0), PARAMS, Prompt(messages=chat))
    for _ in engines:
        runs._prepare(is_warm=False)
    (answer, warm_up), (again,) = (each.asked for each in engines)
    assert answer == ({"type": "none"}, 48, ["a"])
    assert warm_up == again == ({"type": "none"}, 8, ["a", "answer 1", "b"])
    assert runs._plain().text == "answer 2"
