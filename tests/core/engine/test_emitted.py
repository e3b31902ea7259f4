"""An answer goes on after tokens that were emitted before, as if all came from one request."""

import pytest
from oracles.models import tiny_model
from support import vocabularies
from support.toys import toy_engine

from augury import Engine
from augury.errors import OptionError
from augury.registry import Registry
from augury.text.tokenizer import load_tokenizer

PROMPT = [3, 5, 8, 13, 21]
WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "seed": 7, "repeat_penalty": 1.2, "xtc_probability": 0.3, "min_tokens": 9},
    "shifted": {"temperature": 0.9, "seed": 8, "context_shift": True, "ignore_eos": True},
}


def output(result):
    return [(piece.token, piece.text, piece.logprob) for piece in result.pieces], result.finish_reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["llama-dense", "deltanet-dense"])
def test_the_rest_is_that_of_the_whole_answer(model, way):
    how = {"max_tokens": 70 if way == "shifted" else 20, "logprobs": 0, **WAYS[way]}
    with Engine.load(tiny_model(model), backend="reference", n_ctx=32, spec_type="prediction") as engine:
        whole = engine.generate(PROMPT, **how)
        tokens, (pieces, reason) = whole.tokens, output(whole)
        assert (reason, whole.stats.n_shifts > 0) == ("length", way == "shifted")
        for n in {1, len(tokens) // 2, len(tokens) - 1}:
            rest = engine.generate(PROMPT, emitted=list(tokens[:n]), cache_prompt=n % 2 == 0, **how)
            assert output(rest) == (pieces[n:], "length")
            assert rest.stats.n_emitted == rest.stats.n_rounds + rest.stats.n_accepted == len(tokens) - n


def test_stops_constraints_and_characters_reach_over_the_seam():
    letters, ends = [*"abcdefghijklm"], ["<|im_end|>", "<s>", "Ġ"]
    types, ids = [1] * 13 + [3, 3, 1], {"eos_token_id": 13, "bos_token_id": 14, "merges": []}
    tokenizer = load_tokenizer(vocabularies.tiny(tokens=letters + ends, token_type=types, **ids))
    with toy_engine(tokenizer=tokenizer, registry=Registry.discover()) as engine:
        plain = engine.generate([1, 2], seed=1, ignore_eos=True, max_tokens=8)
        for how in ({"stop": plain.text[3:6]}, {"regex": "[a-d]{3}[e-h]{9}", "temperature": 0.5}):
            whole = engine.generate([1, 2], seed=1, ignore_eos=True, max_tokens=8, **how)
            for n in range(1, len(whole.tokens)):
                rest = engine.generate([1, 2], seed=1, ignore_eos=True, max_tokens=8, emitted=list(whole.tokens[:n]), **how)
                assert (rest.tokens, rest.finish_reason) == (whole.tokens[n:], whole.finish_reason)
                assert "".join(piece.text for piece in whole.pieces[:n]) + rest.text == whole.text


@pytest.mark.parametrize(
    ("emitted", "how", "told"),
    [
        ([1, 2, 3], {"max_tokens": 3}, "the answer ends by length after 3 of them"),
        ([1] * 40, {}, "the answer ends by context after 15 of them"),
        ([1], {"receipt": True}, "leave one of the two out"),
        ([999], {}, "emitted holds token 999"),
    ],
)
def test_tokens_after_which_nothing_can_follow_are_refused(emitted, how, told):
    with (
        Engine.load(tiny_model("llama-dense"), backend="reference", n_ctx=19) as engine,
        pytest.raises(OptionError, match=told),
    ):
        engine.generate(PROMPT, emitted=emitted, **how)
