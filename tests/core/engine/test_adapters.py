"""Adapters of requests: nobody's states are another's, drafts change nothing, and slots, files and receipts name them."""

import pytest
from oracles import adapters
from oracles.drafts import draft_file
from oracles.models import tiny_model

from augury.engine.adapters import Adapters
from augury.engine.engine import Engine
from augury.errors import OptionError, UnsupportedError

NAME, PROMPT = "llama-dense", [*range(1, 9)] * 4
FIRST, BOTH, NEITHER = ([{"id": i, "scale": scale} for i, scale in enumerate(some)] for some in ((1, 0), (2.0, -1.0), (0, 0)))


def load(*numbers, model=NAME, **how):
    lora = [adapters.adapter(model, number) for number in numbers]
    how = {"backend": "reference", "spec_type": "ngram-simple:n=1,m=4", "spec_fixed": True, "n_ctx": 96, "lora": lora} | how
    return Engine.load(tiny_model(model), **how)


def ask(engine, **how):
    found = engine.generate(PROMPT, max_tokens=16, temperature=0, logprobs=0, **how)
    return found.tokens, found.logprobs, found.stats


@pytest.fixture(scope="module")
def engine():
    with load(0, 1, slots=2, cache_ram=64) as engine:
        yield engine


def alone(engine, lora):
    return ask(engine, lora=lora, speculative=False, cache_prompt=False)[:2]


def test_each_request_has_its_adapters_whatever_was_reused_drafted_or_asked_beside_it(engine):
    plain = {name: alone(engine, lora) for name, lora in (("first", FIRST), ("both", BOTH), ("neither", NEITHER))}
    assert len({tokens for tokens, _ in plain.values()}) == 3
    given = {"first": None, "both": BOTH, "neither": []}
    engine.scale_adapters(FIRST)
    for _ in range(2):  # in the second turn slots and the prompt cache hold texts of the same tokens
        runs = {
            name: engine.submit(PROMPT, max_tokens=16, temperature=0, logprobs=0, lora=lora) for name, lora in given.items()
        }
        found = {name: run.result() for name, run in runs.items()}
        assert {name: (each.tokens, each.logprobs) for name, each in found.items()} == plain
    assert sum(each.stats.n_drafted for each in found.values()) > 0
    assert all(each.stats.n_reused == len(PROMPT) - 1 for each in found.values())


def test_without_an_adapter_a_text_is_that_of_a_model_that_has_none(engine):
    with load() as other:
        assert ask(other)[:2] == ask(engine, lora=[])[:2]
        with pytest.raises(OptionError, match="adapter 0, there are none; load some with --lora"):
            other.generate(PROMPT, lora=FIRST)


def test_a_prompt_cache_of_files_keeps_texts_of_each_adapter_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    how = {"cache_ram": 64, "cache_disk": 64}
    with load(0, **how) as engine:
        right = ask(engine)
    with load(**how) as engine:
        assert ask(engine)[2].n_reused == 0
    with load(0, **how) as engine:
        *again, stats = ask(engine)
        assert (*again, stats.n_reused) == (*right[:2], len(PROMPT) - 1)
        assert ask(engine, lora=[{"id": 0, "scale": 0.5}])[2].n_reused == 0


def test_a_saved_slot_goes_on_with_its_adapters_alone(engine, tmp_path):
    whole = engine.generate(PROMPT, max_tokens=16, temperature=0, lora=BOTH).tokens
    engine.generate(PROMPT, max_tokens=8, temperature=0, lora=BOTH, slot=0)
    saved = engine.save_slot(0, tmp_path / "slot")
    with load(0, 1, lora={adapters.adapter(NAME, number): 0.0 for number in (0, 1)}) as other:
        loaded = other.load_slot(0, tmp_path / "slot")
        assert loaded.params == saved.params
        found = other.generate(loaded.tokens, max_tokens=8, **loaded.params)
        assert (found.tokens, found.stats.n_reused > 0) == (whole[8:], True)
        other.load_slot(0, tmp_path / "slot")
        assert other.generate(loaded.tokens, max_tokens=1).stats.n_reused == 0


def test_a_receipt_names_adapters_by_their_numbers_and_scales(engine):
    engine.scale_adapters(BOTH)
    receipt = engine.generate(PROMPT, max_tokens=4, receipt=True).receipt
    assert (receipt.settings["lora"], receipt.params["lora"]) == ([each.digest for each in engine.adapters.loaded], BOTH)
    assert engine.verify(receipt).is_equal
    with load(1, 0) as other, pytest.raises(UnsupportedError, match="written with lora"):
        other.verify(receipt)


@pytest.mark.parametrize(
    "how",
    [
        {"spec_type": "draft-simple", "draft_model": tiny_model(NAME)},
        {"spec_type": "draft-eagle3", "draft_model": draft_file("eagle3-llama")},
    ],
)
def test_draft_models_and_heads_draft_for_a_model_with_an_adapter(engine, how):
    with load(0, 1, **how) as drafting:
        tokens, logprobs, stats = ask(drafting, lora=BOTH)
    assert ((tokens, logprobs), stats.n_drafted > 0) == (alone(engine, BOTH), True)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ([{"id": 0}], 'expected a list of objects such as {"id": 0, "scale": 1.0}'),
        ([{"id": "0", "scale": 1}], "expected a list of objects"),
        ([{"id": 0, "scale": float("nan")}], "expected a list of objects"),
        ([{"id": 0, "scale": 1e39}], "expected a list of objects"),
        ([{"id": 0, "scale": 10**400}], "expected a list of objects"),
        ([{"id": -1, "scale": 1}], "names adapter -1, there are 0 to 1"),
        ([{"id": 2, "scale": 1}], "names adapter 2, there are 0 to 1"),
        ("x", "expected a list of objects"),
    ],
)
def test_scales_of_no_adapter_are_refused(engine, lora, message):
    with pytest.raises(OptionError, match=message):
        engine.generate(PROMPT, lora=lora)


@pytest.mark.parametrize("lora", [[3], [("a", "b")], [("a", 1.0, 2)], [None], [("a", float("nan"))], [("a", -1e39)]])
def test_adapters_are_paths_or_pairs_of_path_and_scale(lora):
    with pytest.raises(OptionError, match="expected the path of an adapter, or a pair of path and finite scale"):
        Adapters.open(lora, 1, "llama")
