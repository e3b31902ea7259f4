"""Receipts: a text is checked by computing it once more, and every change is found."""

import copy
import json
import shutil

import numpy as np
import pytest
from oracles.drafts import draft_file, target_of
from oracles.models import tiny_model
from support.commands import here, run

from augury import Engine
from augury.engine.receipts import drafting_to_verify
from augury.errors import ModelFileError, OptionError, UnsupportedError
from augury.receipt import Receipt
from augury.registry import Registry

MODEL = "llama-dense"
PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
HOW = {"backend": "numba-cpu", "threads": 1, "n_ctx": 96}


def written(params=None, *, n=1, **how):
    with Engine.load(tiny_model(MODEL), **{**HOW, **how}) as engine:
        asked = {"max_tokens": 40, "ignore_eos": True, "receipt": True, **(params or {})}
        results = engine.generate(PROMPT, n=n, **asked)
    return [json.loads(json.dumps(result.receipt.as_json())) for result in results]


@pytest.fixture(scope="module")
def checker():
    with Engine.load(tiny_model(MODEL), **HOW, **drafting_to_verify(Registry.discover())) as engine:
        yield engine


@pytest.fixture(scope="module")
def receipt():
    return written({"temperature": 0.9, "seed": 7, "repeat_penalty": 1.2, "logit_bias": {5: 1.5}})[0]


def test_a_text_is_the_same_when_it_is_computed_once_more(checker, receipt):
    found = checker.verify(receipt)
    assert (found.is_equal, found.n_equal, found.reason) == (True, 40, "")
    assert checker.config["spec_type"] == "prediction"
    assert receipt["params"]["logit_bias"] == {"5": 1.5}
    assert checker.verify(Receipt.from_json(receipt)) == found


@pytest.mark.parametrize(
    "how", [{"spec_type": "none"}, {"spec_type": "recycle", "draft_max": 3}, {"slots": 3}, {"threads": 2}, {"max_queue": 9}]
)
def test_drafters_slots_and_threads_at_writing_do_not_matter(receipt, how):
    assert written({"temperature": 0.9, "seed": 7, "repeat_penalty": 1.2, "logit_bias": {5: 1.5}}, **how)[0] == receipt


def changes():
    def token(found):
        found["tokens"][12] = (found["tokens"][12] + 1) % 100

    def prompt(found):
        found["prompt"][0] = 9

    yield token, "token 12 is"
    yield prompt, "token"
    yield lambda found: found["params"].update(seed=8), "token"
    yield lambda found: found["params"].update(repeat_penalty=1.3), ""
    yield lambda found: found["params"].update(max_tokens=41), "token 40 is"
    yield lambda found: found["params"].update(prediction=[1]), "a field of the receipt was changed"
    yield lambda found: found["tokens"].pop(), "token 39 is"
    yield lambda found: found["tokens"].append(3), "token 40 is the end, not 3"
    yield lambda found: found.update(finish_reason="stop"), "the text ends by length, not by stop"
    yield lambda found: found.update(digest="0" * 64), "not all log-probabilities, or a field"
    yield lambda found: found["model"].update(name="other"), "not all log-probabilities, or a field"


@pytest.mark.parametrize(("change", "told"), list(changes()))
def test_every_change_of_a_receipt_is_found(checker, receipt, change, told):
    changed = copy.deepcopy(receipt)
    change(changed)
    found = checker.verify(changed)
    assert not found.is_equal
    assert told in found.reason


def test_a_changed_seed_is_found_where_nothing_is_drawn(checker):
    greedy = written({"temperature": 0.0})[0]
    assert checker.verify(greedy).is_equal
    greedy["params"]["seed"] += 1
    assert "the tokens are the same" in checker.verify(greedy).reason


def test_several_answers_have_the_seeds_that_made_them(checker):
    receipts = written({"temperature": 1.0}, n=3, slots=3)
    assert len({each["params"]["seed"] for each in receipts}) == 3
    assert [checker.verify(each).is_equal for each in receipts] == [True] * 3


def test_a_text_that_was_cancelled_is_checked_as_far_as_it_goes(checker):
    with Engine.load(tiny_model(MODEL), **HOW, spec_type="none") as engine:
        running = engine.submit(PROMPT, receipt=True, ignore_eos=True, temperature=0.7)
        next(iter(running))
        running.cancel()
        result = running.result()
    assert result.finish_reason == "cancelled"
    assert checker.verify(result.receipt).is_equal


def test_log_probabilities_are_told_only_to_who_asks_for_them(checker):
    result = checker.generate(PROMPT, max_tokens=3, receipt=True)
    assert [piece.logprob for piece in result.pieces] == [None] * 3
    assert checker.generate(PROMPT, max_tokens=3).receipt is None


def test_other_weights_are_named(checker, receipt, tmp_path):
    data = bytearray(tiny_model(MODEL).read_bytes())
    data[-5] ^= 1
    (tmp_path / "changed.gguf").write_bytes(data)
    with (
        Engine.load(tmp_path / "changed.gguf", **HOW, spec_type="none") as engine,
        pytest.raises(UnsupportedError, match=r"with other weights than .*changed\.gguf"),
    ):
        engine.verify(receipt)


def test_a_file_of_drafting_layers_does_not_belong_to_the_model():
    assistant, how = "mtp-gemma4-e", {"backend": "reference", "threads": 1, "n_ctx": 64}
    model, told = tiny_model(target_of(assistant)), []
    for draft in (None, draft_file(assistant)):
        with Engine.load(model, draft_model=draft, **how) as engine:
            told.append(engine.generate([3, 4, 5], max_tokens=4, temperature=0.0, seed=1, receipt=True).receipt)
    assert told[0] == told[1]
    assert len(told[0].model["sha256"]) == 1


@pytest.mark.parametrize(
    ("part", "key", "value", "told"),
    [
        ("made_with", "isa", "avx9", "isa avx9, not .*; AUGURY_CPU_ISA=avx9 chooses it"),
        ("made_with", "augury", "99.0", "augury 99.0, not"),
        ("made_with", "backend", "other", "backend other, not numba-cpu"),
        ("settings", "cache_type_k", "q8_0", "cache_type_k q8_0, not f16"),
        ("settings", "override_kv", {"a": 1}, "override_kv"),
    ],
)
def test_what_cannot_be_checked_here_is_named(checker, receipt, part, key, value, told):
    changed = copy.deepcopy(receipt)
    changed[part][key] = value
    with pytest.raises(UnsupportedError, match=told):
        checker.verify(changed)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (5, "this is no receipt"),
        ({"a": 1}, "this is no receipt"),
        ({"augury_receipt": 9}, "of version 9, expected 1"),
        ({"augury_receipt": 1, "prompt": "x"}, "made_with of this receipt is None, expected a value of type dict"),
    ],
)
def test_what_is_no_receipt_is_refused(checker, found, told):
    with pytest.raises(OptionError, match=told):
        checker.verify(found)


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"receipt": 1}, "receipt is 1, expected true or false"),
        ({"receipt": True, "logits_processors": [lambda *_: None]}, "cannot hold logits_processors"),
    ],
)
def test_what_a_receipt_cannot_hold_is_refused(checker, params, told):
    with pytest.raises(OptionError, match=told):
        checker.generate(PROMPT, max_tokens=1, **params)


def test_drafts_that_change_the_text_have_no_receipt():
    with (
        Engine.load(tiny_model(MODEL), **HOW, spec_type="recycle", spec_verify="rejection") as engine,
        pytest.raises(OptionError, match="a receipt is of tokens that depend on no drafts"),
    ):
        engine.generate(PROMPT, max_tokens=1, receipt=True)


def test_a_file_that_was_changed_since_it_was_loaded_has_no_receipt(tmp_path):
    shutil.copy(tiny_model(MODEL), tmp_path / "model.gguf")
    with Engine.load(tmp_path / "model.gguf", **HOW, spec_type="none") as engine:
        (tmp_path / "model.gguf").touch()
        with pytest.raises(ModelFileError, match="was changed since it was loaded"):
            engine.generate(PROMPT, max_tokens=1, receipt=True)


def test_the_digest_is_over_each_bit_of_the_log_probabilities(receipt):
    found = Receipt.from_json(receipt)
    values = np.linspace(-3, 0, 40)
    assert found.digest_with(values.tolist()) == found.digest_with(values.tolist())
    assert found.digest_with(values.tolist()) != found.digest_with(np.nextafter(values, 1).tolist())


def test_the_command_checks_what_run_has_written(capsys, tmp_path):
    file = tmp_path / "receipts.jsonl"
    words = [*here(MODEL), "-c", 64, "-n", 8, "--prompt-tokens", "1,2,3", "--prompt-tokens", "4,5,6", "-s", 3]
    assert run(capsys, "run", *words, "--receipt", file)[0] == 0
    code, out, _ = run(capsys, "verify", file, "-t", 1)
    assert code == 0
    assert [line.split(" (")[0] for line in out.splitlines()] == [f"{file}:{i}: equal" for i in (1, 2)]
    lines = file.read_text().splitlines()
    changed = json.loads(lines[1])
    changed["tokens"][2] += 1
    file.write_text(f"{lines[0]}\n\n{json.dumps(changed)}\n")
    code, out, _ = run(capsys, "verify", file, "-t", 1, "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, [(each["line"], each["is_equal"]) for each in told], told[1]["n_equal"]) == (1, [(1, True), (3, False)], 2)
    for key, value, expected in (
        ("extra", 1, "with extra 1, not None"),
        ("placement", {"a": 1}, "expected devices and shares"),
    ):
        changed["settings"] = {**json.loads(lines[0])["settings"], key: value}
        file.write_text(json.dumps(changed))
        code, _, err = run(capsys, "verify", file, "-t", 1)
        assert (code, expected in err) == (1, True)
    for text, expected in (("", "empty, expected"), ("\n{", f"{file}:2: not JSON"), ("{}", "this is no receipt")):
        file.write_text(text)
        code, _, err = run(capsys, "verify", file)
        assert (code, expected in err) == (1, True)


def test_receipts_take_the_place_of_earlier_ones_alone(capsys, tmp_path):
    file, words = tmp_path / "receipts.jsonl", [*here(MODEL), "-c", 64, "-n", 2, "--prompt-tokens", "1,2,3"]
    for text in ("", None):  # none, and those of the run before
        if text is not None:
            file.write_text(text)
        assert run(capsys, "run", *words, "--receipt", file)[0] == 0
    file.write_text("a model, or prompts")
    code, _, err = run(capsys, "run", *words, "--receipt", file)
    assert (code, file.read_text()) == (2, "a model, or prompts")
    assert f"--receipt: {file} exists and is no file of receipts; it is left as it is, name another file" in err
