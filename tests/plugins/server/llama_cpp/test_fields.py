"""llama.cpp's fields, without a server: what each is to the engine, and what is refused."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from augury.engine.request import make_request
from augury.errors import OptionError, UnsupportedError
from augury.plugins.server.conversation import PromptObject, prompt_tokens
from augury.plugins.server.embeddings import normalized
from augury.plugins.server.llama_cpp.completion import CompletionRequest, InfillRequest, infill_tokens, stop_type
from augury.registry import Registry
from augury.sampling import SAMPLERS
from augury.speculation.config import Speculation
from augury.types import Result, Summary, tokens_array

NOTHING = {"echo": True, "id": "me"}


class Words:
    """A tokenizer of words: a word's token is its length, and 1 begins a text."""

    add_bos, bos = True, 1

    def __init__(self, **more_fim):
        self.fim = {"pre": 90, "suf": 91, "mid": 92} | more_fim

    def encode(self, text, *, add_special=True, parse_special=False, n_most=None):
        assert parse_special or not add_special
        return [1] * add_special + [len(word) for word in text.split()]

    def decode(self, tokens, *, continues=False, skip_special=True):
        return "".join("x" * token + " " for token in tokens)


def params(**fields):
    body = CompletionRequest.model_validate({"prompt": "a"} | fields)
    (found,) = body.answers(Words(), [[7]], "me")
    assert (found.pop("prompt"), found.pop("n")) == ([7], 1)
    rest = {name: value for name, value in found.items() if name not in ("grammar", "json_schema")}
    make_request(
        tokens_array([7]), rest, speculation=Speculation(), n_vocab=100, n_slots=9, registry=Registry(), tokenizer=Words()
    )
    return {name: value for name, value in found.items() if name not in NOTHING}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_k": 3, "top_p": 1, "min_p": None}, {"temperature": 0.5, "top_k": 3, "top_p": 1}),
        ({"temperature": -1, "top_k": -1}, {"temperature": 0.0, "top_k": -1}),
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": 5.0, "logit_bias": [[5.0, 1]]}, {"max_tokens": 5, "logit_bias": {5: 1.0}}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"n_predict": -1}, {"max_tokens": None}),
        ({"n_predict": 0}, {"max_tokens": 1}),
        ({"seed": 3}, {"seed": 3}),
        ({"seed": -1}, {"seed": -1}),
        ({"n_probs": 3}, {"logprobs": 3}),
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"id_slot": 2}, {"slot": 2}),
        ({"id_slot": -1}, {}),
        ({"stop": ["a", ""]}, {"stop": ["a"]}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"ignore_eos": True, "cache_prompt": False}, {"ignore_eos": True, "cache_prompt": False}),
        ({"logit_bias": [[5, 1], [6, False]]}, {"logit_bias": {5: 1.0, 6: -math.inf}}),
        ({"logit_bias": {"5": -2.5}}, {"logit_bias": {5: -2.5}}),
        ({"logit_bias": [["two words", 2]]}, {"logit_bias": {3: 2.0, 5: 2.0}}),
        ({"samplers": ["adaptive_p", "dry", "top_k"]}, {"samplers": ["dry", "top_k"]}),
        ({"samplers": "edskypmxt"}, {"samplers": list(SAMPLERS)}),
        (
            {"n_keep": -1, "n_discard": 3, "post_sampling_probs": True},
            {"n_keep": -1, "n_discard": 3, "post_sampling_probs": True},
        ),
        ({"t_max_prompt_ms": 500, "n_indent": 4, "return_progress": True, "sse_ping_interval": -1}, {}),
        ({"dry_multiplier": 0.8, "dry_sequence_breakers": ["a"]}, {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a"]}),
        ({"speculative.n_max": 4, "speculative.type": "none"}, {"speculative": {"n_max": 4, "type": "none"}}),
        ({"grammar": "root ::= a", "json_schema": {}}, {"grammar": "root ::= a", "json_schema": {}}),
        ({"grammar": ""}, {}),
        ({"adaptive_target": -1.0, "adaptive_decay": 0.9, "lora": [], "verbose": True}, {"lora": []}),
        ({"skip_special_tokens": True, "spaces_between_special_tokens": False, "use_beam_search": False}, {}),
        ({"best_of": 1, "repetition_penalty": 1.0, "echo": False}, {}),
    ],
)
def test_a_field_is_what_it_is_to_the_engine(fields, found):
    assert params(**fields) == found


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"skip_special_tokens": False}, "skip_special_tokens is false, .*; leave it out"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1, .*; send 'repeat_penalty'"),
        ({"n_indent": -1}, "greater than or equal to 0"),
        ({"min_keep": "x"}, "min_keep is 'x'"),
        ({"adaptive_target": "x"}, "adaptive_target is 'x'"),
        ({"temprature": 1}, "temprature\n.*Extra inputs"),
        ({"n_predict": -3}, "greater than or equal to -2"),
        ({"speculative": True, "speculative.n_max": 3}, "speculative.n_max is given as well"),
        ({"logit_bias": [[5]]}, "at least 2 items"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(fields, told):
    with pytest.raises(ValidationError, match=told):
        params(**fields)


@pytest.mark.parametrize("bias", [[[5, True]], [[5, 10**400]], [["a", "b"]], [[True, 1]], {"5": True}])
def test_a_bias_is_a_number_or_false(bias):
    with pytest.raises(OptionError, match="expected a token or text, and a number, or false"):
        params(logit_bias=bias)


def test_every_prompt_has_as_many_answers():
    asked = CompletionRequest(prompt="a", n_cmpl=2, seed=3).answers(None, [[7], [8]], "me")
    assert [(each["prompt"], each["n"], each["seed"]) for each in asked] == [([7], 2, 3), ([8], 2, 3)]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("one two", [[1, 3, 3]]),
        ([12, 34], [[12, 34]]),
        ([12, "one", 34], [[12, 3, 34]]),
        (["one", 5, "two"], [[1, 3, 5, 3]]),
        (["one", "three"], [[1, 3], [1, 5]]),
        ([[12, "one"], "two", [13], PromptObject(prompt_string="one")], [[12, 3], [1, 3], [13], [1, 3]]),
        (PromptObject(prompt_string="one"), [[1, 3]]),
    ],
)
def test_a_prompt_has_many_shapes(prompt, tokens):
    assert prompt_tokens(prompt, Words(), 64) == tokens
    assert CompletionRequest(prompt=prompt).prompt == prompt


def test_prompts_that_are_none_are_refused():
    with pytest.raises(OptionError, match="empty list"):
        prompt_tokens([], Words(), 64)
    with pytest.raises(OptionError, match="tokens beside whole prompts"):
        prompt_tokens([1, [2]], Words(), 64)
    with pytest.raises(UnsupportedError, match="no tokenizer"):
        prompt_tokens("one", None, 64)


@pytest.mark.parametrize(
    ("tokens", "text", "reason", "found"),
    [
        ([3], "xxx ", "stop", ("eos", "")),
        ([3], "x", "stop", ("word", "xx")),
        ([3], "xxx ", "length", ("limit", "")),
        ([3], "", "context", ("limit", "")),
        ([3], "", "cancelled", ("limit", "")),
    ],
)
def test_why_an_answer_ended(tokens, text, reason, found):
    assert stop_type(Result(tuple(tokens), text, reason, Summary()), Words(), ["y", "xx"]) == found
    assert stop_type(Result(tuple(tokens), text, reason, Summary()), None, [])[1] == ""


def test_a_gap_is_filled_between_its_tokens_and_what_does_not_fit_is_left_out():
    def tokens(n_ctx=99, words=Words(), **fields):  # noqa: B008 - nobody changes it
        body = InfillRequest.model_validate({"input_prefix": "a bb ccc", "input_suffix": "dddd eeeee"} | fields)
        return infill_tokens(body, words, n_ctx)

    assert tokens() == [1, 90, 1, 2, 3, 91, 4, 5, 92]
    assert tokens(prompt="ffffff") == [1, 90, 1, 2, 3, 6, 91, 4, 5, 92]
    extra = {"input_extra": [{"filename": "f", "text": "xx yy"}]}
    assert tokens(**extra) == [3, 7, 3, 2, 2, 1, 90, 1, 2, 3, 91, 4, 5, 92]
    assert tokens(words=Words(rep=93, sep=94), **extra) == [93, 9, 94, 1, 2, 2, 94, 8, 1, 90, 1, 2, 3, 91, 4, 5, 92]
    assert tokens(n_ctx=10, **extra) == [2, 1, 90, 1, 2, 3, 91, 4, 5, 92]
    assert tokens(n_ctx=8) == [1, 90, 1, 2, 3, 91, 4, 92]
    assert tokens(n_ctx=6) == [1, 90, 2, 3, 91, 92]


@pytest.mark.parametrize(
    ("p", "expected"),
    [(-1, [3, -4]), (0, [24570, -32760]), (1, [3 / 7, -4 / 7]), (2, [0.6, -0.8]), (3, None), (2000, [0.75, -1])],
)
def test_embeddings_are_scaled_as_llama_cpp_does(p, expected):
    found = normalized(np.array([3, -4], np.float32), p)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array([3, -4]) / 91 ** (1 / 3) if expected is None else expected, rtol=1e-6)
    assert not normalized(np.zeros(2, np.float32), p).any()
