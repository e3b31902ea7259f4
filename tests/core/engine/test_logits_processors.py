"""A request's own logits processors: what they are given, what they may return, and who learns of their failures."""

import numpy as np
import pytest
from support.toys import ScriptedDrafter, toy_engine

from augury.errors import OptionError
from augury.testing.toy_model import ToyModel

GREEDY = {"temperature": 0.0, "max_tokens": 9}


def worst(history, ids, logits):
    return ids, -logits


def test_they_are_given_the_text_all_tokens_and_the_model_s_logits_in_their_order():
    seen = []

    def first(history, ids, logits):
        seen.append((history.tolist(), ids.tolist(), logits.copy()))
        assert not history.flags.writeable
        return ids[::-1], logits[::-1] + 1

    def second(history, ids, logits):
        assert np.array_equal(logits[::-1], seen[-1][2] + 1)
        assert ids.tolist() == [*range(15, -1, -1)]
        return ids, logits

    with toy_engine() as engine:
        result = engine.generate([1, 2], max_tokens=3, logits_processors=[first, second])
    assert [history for history, _, _ in seen] == [[1, 2, *result.tokens[:i]] for i in range(3)]
    model = ToyModel()
    for history, ids, logits in seen:
        assert ids == [*range(16)]
        assert np.array_equal(logits, model.logits(np.array(history)).astype(np.float32))


def test_what_they_return_decides_and_logprobs_stay_the_model_s_own():
    with toy_engine(drafter=ScriptedDrafter) as engine:
        result = engine.generate([1, 2], logits_processors=[worst], logprobs=1, **GREEDY)
    assert list(result.tokens) == ToyModel().plain([1, 2], 9, np.argmin)
    assert all(piece.logprob < piece.top_logprobs[0].logprob for piece in result.pieces)


def test_bias_and_forbidden_tokens_count_after_them():
    def lift(history, ids, logits):
        logits[:] = 0
        logits[7] = 50
        return ids, logits

    with toy_engine() as engine:
        result = engine.generate([1], logits_processors=[lift], logit_bias={7: -np.inf, 3: 1.0}, **GREEDY)
    assert set(result.tokens) == {3}


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            lambda history, ids, logits: None,
            r"logits_processors\[1\] failed: TypeError: .*; it is to return ids and logits, \(m,\) each",
        ),
        (lambda history, ids, logits: (ids, logits[:-1]), r"\[1\] failed: ValueError"),
        (lambda history, ids, logits: ([99], [1.0]), r"\[1\] failed: IndexError"),
        (lambda history, ids, logits: (ids, logits * np.nan), r"\[1\] leaves no token with a finite logit, or one with NaN"),
        (lambda history, ids, logits: ([], []), r"\[1\] leaves no token"),
        (lambda history, ids, logits: 1 / 0, r"\[1\] failed: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("drafter", [None, ScriptedDrafter])
def test_one_that_fails_ends_its_own_request_alone(drafter, made, told):
    def late(history, ids, logits):
        return made(history, ids, logits) if len(history) > 4 else (ids, logits)

    with toy_engine(slots=2, drafter=drafter) as engine:
        plain = engine.generate([4, 5], **GREEDY)
        broken = engine.submit([1, 2], logits_processors=[worst, late], **GREEDY)
        other = engine.submit([4, 5], **GREEDY)
        with pytest.raises(OptionError, match=told):
            broken.result()
        assert [piece.token for piece in broken._channel.tokens] == ToyModel().plain([1, 2], 3, np.argmin)
        assert other.result().tokens == plain.tokens


@pytest.mark.parametrize("given", [worst, ["top_k"], {"worst": worst}])
def test_what_is_no_list_of_callables_is_refused(given):
    with toy_engine() as engine, pytest.raises(OptionError, match="expected a list of callables"):
        engine.submit([1], logits_processors=given)
