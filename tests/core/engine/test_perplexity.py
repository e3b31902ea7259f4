"""Perplexity: its windows, its figures, and the command."""

import json

import numpy as np
import pytest
from support.commands import run
from support.toys import toy_engine
from support.vocabularies import tokenizer

from augury.engine.loop import CHUNK
from augury.engine.perplexity import Perplexity, windows_of
from augury.errors import CapacityError, OptionError

TEXT = [i * 7 % 16 for i in range(1000)]


def predicted(logits, tokens):
    """-log p of each token, from the logits (t, V) before it."""
    logits = logits.astype(np.float64)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(tokens)), tokens]


@pytest.mark.parametrize("slots", [1, 3])
def test_perplexity_is_that_of_the_second_half_of_each_window(slots):
    with toy_engine(slots=slots, n_ctx=64) as engine:
        told = []
        found = engine.perplexity(TEXT, window=48, n_windows=7, progress=lambda *how: told.append(how))
        lost = []
        for start in range(0, 7 * 48, 48):
            window = TEXT[start : start + 48]
            lost.append(predicted(engine.evaluate(window)[24:47], window[25:]))
    lost = np.concatenate(lost)
    assert found.value == pytest.approx(np.exp(lost.mean()), rel=1e-12)
    # the estimate of llama-perplexity: sqrt((mean of squares - square of mean) / (n - 1)), times the value
    assert found.error == pytest.approx(
        found.value * np.sqrt((np.mean(lost**2) - lost.mean() ** 2) / (len(lost) - 1)), rel=1e-9
    )
    assert (found.n_tokens, found.n_windows) == (7 * 23, 7)
    assert [done for _, done, _ in told] == ([1, 2, 3, 4, 5, 6, 7] if slots == 1 else [3, 6, 7])
    assert told[-1] == ("windows", 7, 7)


def test_log_probabilities_are_those_of_scores_wherever_they_begin():
    texts = [TEXT[:5], TEXT[: CHUNK + 50], TEXT[3:4], TEXT[40:90]]
    with toy_engine(slots=3, n_ctx=CHUNK + 64) as engine:
        scored = [np.array([each.logprob for each in text], float) for text in engine.score(texts)]
        for first in (1, 4, 5, CHUNK + 7):
            for found, expected in zip(engine.logprobs(texts, first=first), scored, strict=True):
                assert np.array_equal(found, expected[first:])
        assert np.array_equal(engine.logprobs(texts[3], first=2), scored[3][2:])
        with pytest.raises(OptionError, match="first is 0"):
            engine.logprobs(texts, first=0)


def test_windows_are_equal_and_the_rest_is_left_out():
    tokens = np.arange(11, dtype=np.int32)
    assert windows_of(tokens, 4, None, None).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows_of(tokens, 4, 1, 99).tolist() == [[99, 1, 2, 3]]
    assert windows_of(tokens, 5, 9, 99).tolist() == [[99, 1, 2, 3, 4], [99, 6, 7, 8, 9]]
    for window, told in ((12, "the text has 11 tokens, expected at least 12"), (3, "window is 3"), (4.5, "window is 4.5")):
        with pytest.raises(OptionError, match=told):
            windows_of(tokens, window, None, None)
    with pytest.raises(OptionError, match="n_windows is 0"):
        windows_of(tokens, 4, 0, None)


def test_a_single_token_has_no_error_to_tell():
    assert Perplexity.of([np.log([0.25])]) == Perplexity(pytest.approx(4.0), np.inf, 1, 1)


def test_a_text_begins_with_bos_where_the_model_wants_it(monkeypatch):
    spm = tokenizer("llama-spm")
    with toy_engine(n_ctx=8, tokenizer=spm) as engine:
        engine._n_vocab = 32000  # of the tokenizer: no pass is made
        seen = []
        monkeypatch.setattr(engine, "logprobs", lambda texts, first: seen.extend(texts) or [np.zeros(8 - first)] * len(texts))
        engine.perplexity("the sea is wide and the sea is deep " * 9, window=8)
        with pytest.raises(OptionError, match="expected at least 8, a window"):
            engine.perplexity("sea", window=8)
    assert len(seen) > 2
    assert {window[0] for window in seen} == {spm.bos}


def test_a_window_fits_into_the_context():
    with toy_engine(n_ctx=16) as engine, pytest.raises(CapacityError, match="16"):
        engine.perplexity(TEXT, window=32)


def test_the_command_prints_the_figure_and_a_json_object(capsys, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("The sea is wide, and the sea is deep. " * 20)
    words = ["perplexity", "smollm2", "-t", 1, "-c", 64, "--chunks", 2, "-f", file]
    code, out, err = run(capsys, *words, "--json")
    told = json.loads(out)
    assert (code, told["window"], told["n_windows"], told["n_tokens"]) == (0, 64, 2, 62)
    assert 1 < told["value"] < 20
    figure = f"{told['value']:.4f} ± {told['error']:.4f}"
    assert run(capsys, *words)[1] == f"perplexity {figure}\n"
    code, _, err = run(capsys, *words, "-c", 4096)
    assert (code, "expected at least 4096, a window; give a longer text" in err) == (2, True)
    assert "--spec-type" not in run(capsys, "perplexity", "--help-all")[1]
