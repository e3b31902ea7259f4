from types import SimpleNamespace

import numpy as np
import pytest
from oracles.models import tiny_model
from support.toys import as_history, drafted
from support.vocabularies import tiny

from augury import Engine
from augury.drafters.prediction import Prediction, PredictionOptions
from augury.errors import OptionError, UnsupportedError

PROMPT = [90, 91, 92]


def drafter_of(prediction, *, n_match=2):
    drafter = Prediction(
        PredictionOptions(n_match=n_match), SimpleNamespace(prediction=None if prediction is None else as_history(prediction))
    )
    drafter.begin(as_history([*PROMPT, 1]), 0)
    return drafter


@pytest.mark.parametrize(
    ("answer", "draft"),
    [
        ([1], [2, 3, 4, 5, 6, 7]),
        ([1, 2, 3], [4, 5, 6, 7]),
        ([1, 2, 50], []),  # it differs: a token that is not in the text
        ([1, 2, 50, 4], []),  # one token that is
        ([1, 2, 50, 4, 5], [6, 7]),
        ([50], []),  # from the first token on
        ([50, 1, 2], [3, 4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7], []),  # it is through
        ([1, 2, 3, 4, 5, 6, 7, 8], []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 2, 3], [4, 5, 6, 7]),  # back to a place before
    ],
)
@pytest.mark.parametrize("step", [1, 2, 100])
def test_the_draft_is_what_comes_next_in_the_predicted_text(answer, draft, step):
    drafter = drafter_of([1, 2, 3, 4, 5, 6, 7])
    for n in range(1, len(answer), step):
        drafted(drafter, PROMPT + answer[:n])
    assert drafted(drafter, PROMPT + answer) == draft
    assert drafted(drafter, PROMPT + answer, limit=1) == draft[:1]


def test_of_several_places_it_goes_on_from_the_next_one_after_the_difference():
    text = [1, 7, 8, 10, 2, 3, 7, 8, 11, 4, 7, 8, 12]
    drafter = drafter_of(text)
    assert drafted(drafter, [*PROMPT, 1, 7, 8, 10, 2, 50, 7, 8]) == [11, 4, 7, 8, 12]
    assert drafted(drafter_of(text, n_match=1), [*PROMPT, 1, 7, 8, 10, 2, 50, 7]) == [8, 11, 4, 7, 8, 12]


def test_nothing_is_drafted_without_a_prediction_and_none_is_kept():
    assert drafted(drafter_of(None), [*PROMPT, 1]) == []
    assert drafted(drafter_of([]), [*PROMPT, 1]) == []
    drafter = drafter_of([1, 2, 3])
    drafter.end()
    drafter.session.prediction = None
    drafter.begin(as_history([*PROMPT, 1]), 0)
    assert drafted(drafter, [*PROMPT, 1]) == []


@pytest.fixture(scope="module")
def engine():
    with Engine.load(tiny_model("llama-dense"), backend="numba-cpu", threads=1, n_ctx=160, slots=2, spec_fixed=True) as engine:
        yield engine


@pytest.mark.parametrize("way", [{"temperature": 0.0}, {"temperature": 0.7, "seed": 7}])
def test_a_request_with_a_prediction_has_the_drafter_and_the_same_answer(engine, way):
    params = {"max_tokens": 80, "ignore_eos": True, "logprobs": 1, **way}
    plain = engine.generate(PROMPT, speculative=False, **params)
    edited = [*plain.tokens[:20], 7, 7, 7, *plain.tokens[25:]]
    exact, resembling = (
        engine.generate(PROMPT, prediction=plain.tokens, **params),
        engine.submit(PROMPT, prediction=np.array(edited), **params).result(),
    )
    for result in (exact, resembling):
        assert [piece.logprob for piece in result.pieces] == [piece.logprob for piece in plain.pieces]
        assert result.tokens == plain.tokens
        assert result.stats.effective["type"] == "prediction;suffix;recycle"
    exact, resembling = exact.stats.drafters["prediction"], resembling.stats.drafters["prediction"]
    assert exact.drafted == exact.accepted > 70
    assert resembling.accepted > 50
    assert resembling.drafted > resembling.accepted


def test_other_requests_do_without_the_drafter(engine):
    assert engine.config["spec_type"] == "suffix;recycle"
    stats = engine.generate(PROMPT, max_tokens=4).stats
    assert list(stats.drafters) == ["suffix", "recycle"]
    assert stats.effective["type"] == "suffix;recycle"


@pytest.mark.parametrize(
    ("wish", "used"),
    [
        ("suffix", ["prediction", "suffix"]),
        ("suffix;prediction", ["suffix", "prediction"]),
        ("none", []),
        ("prediction", ["prediction"]),
    ],
)
def test_a_request_that_chooses_its_drafters_need_not_name_it(engine, wish, used):
    stats = engine.generate(PROMPT, max_tokens=4, prediction=[1, 2], speculative={"type": wish}).stats
    assert list(stats.drafters) == used
    assert stats.effective["type"] == (";".join(used) or "none")


def test_options_of_the_drafter_are_per_request(engine):
    wish = {"type": "prediction", "prediction": {"n_match": 5}}
    effective = engine.generate(PROMPT, max_tokens=4, prediction=[1, 2], speculative=wish).stats.effective
    assert effective["prediction"] == {"n_match": 5}


def test_texts_are_tokenized_without_what_begins_a_prompt():
    from augury.engine.request import make_request
    from augury.registry import Registry
    from augury.speculation.config import Speculation
    from augury.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny(tokens=["<s>", *"abcdefg"], token_type=None, merges=[], bos_token_id=0, eos_token_id=None))
    how = {"speculation": Speculation(), "n_vocab": 8, "registry": Registry(), "tokenizer": tokenizer}
    request = make_request(np.array([1], np.int32), {"prediction": "bad"}, **how)
    assert request.prediction.tolist() == [2, 1, 4]


@pytest.mark.parametrize(
    ("prediction", "told"),
    [
        ("text", "no tokenizer"),
        ([128], "prediction holds token 128"),
        ([[1], [2, 3]], "expected a text or a list of token ids"),
        (0.5, "expected a text or a list of token ids"),
    ],
)
def test_what_is_no_prediction_is_an_error(engine, prediction, told):
    with pytest.raises((OptionError, UnsupportedError), match=told):
        engine.submit(PROMPT, prediction=prediction)
