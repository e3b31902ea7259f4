"""What a notebook shows of results and engines."""

import pytest
from support.toys import ScriptedDrafter, toy_engine
from support.vocabularies import tokenizer

from augury.errors import OptionError, UnsupportedError
from augury.types import Result, Summary, Token


def test_a_result_is_its_text_with_each_drafter_s_tokens_in_a_colour():
    pieces = (Token(1, "a<b"), Token(2, " c", drafter="suffix"), Token(3, "&", drafter="recycle"))
    shown = Result((1, 2, 3), "a<b c&", "length", Summary(n_accepted=2), pieces)._repr_mimebundle_()["text/html"]
    assert shown.startswith(
        '<pre style="white-space: pre-wrap">a&lt;b<span style="color: #2e7d32"> c</span><span style="color: #'
    )
    assert shown.count("#2e7d32") == 2  # the token and the legend
    assert "&amp;</span></pre><small>3 tokens, 2 of them drafted, length: <span" in shown


def test_a_notebook_is_given_the_text_of_a_result_and_the_slots_of_an_engine():
    with toy_engine(slots=2, drafter=ScriptedDrafter) as engine:
        result = engine.generate([1, 2], max_tokens=3, temperature=0, logprobs=0)
        shown, slots = result._repr_mimebundle_(include=None, exclude=None), engine._repr_mimebundle_()["text/html"]
    assert shown["text/plain"] == repr(result)
    assert all(f"{token} " in shown["text/html"] for token in result.tokens)
    assert result.logprobs == tuple(piece.logprob for piece in result.pieces)
    assert slots.count("<td>idle</td>") == 2
    assert slots.startswith("<code>Engine(")


def test_an_engine_has_its_tokenizer_s_methods():
    spm = tokenizer("llama-spm")
    with toy_engine(tokenizer=spm) as engine:
        tokens = engine.tokenize("the sea")
        assert tokens == spm.encode("the sea")
        assert engine.detokenize(tokens) == "the sea"
        assert engine.detokenize([]) == ""
        assert (engine.tokenize(""), len(engine.tokenize("sea " * 999)) > 999) == (engine.tokenize("the sea")[:1], True)
        with pytest.raises(OptionError, match="text is 5, expected a str"):
            engine.tokenize(5)
    with toy_engine() as engine, pytest.raises(UnsupportedError, match="no tokenizer"):
        engine.detokenize([1])
