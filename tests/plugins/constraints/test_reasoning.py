"""The budget of reasoning: when its end is due, and that everything else is left as it is."""

import pytest
from support import vocabularies

from augury.constraint import ConstraintSession
from augury.engine.shared import Shared
from augury.errors import OptionError
from augury.plugins.constraints.reasoning import ReasoningBudget, ReasoningBudgetOptions

LONGER = " It is blue, and so is the sea."


def made(**values):
    tokenizer = vocabularies.tokenizer("smollm")
    session = ConstraintSession(tokenizer.n_vocab, tokenizer, tokenizer.eog, Shared().get)
    return ReasoningBudget(ReasoningBudgetOptions(**values), session)


def written(text, **values):
    """What an output comes to that would rather be this text; the text is cut where the end of reasoning is due."""
    constraint = made(**values)
    tokenizer, tokens = constraint.session.tokenizer, []
    for token in tokenizer.encode(text, add_special=False):
        while due := list(constraint.forced(1)):
            assert constraint.allowed().nonzero()[0].tolist() == due
            assert constraint.n_allowed([due[0] + 1]) == 0
            tokens += due
            constraint.accept(due[0])
        assert constraint.allowed().all()
        tokens.append(token)
        constraint.accept(token)
    return tokenizer.decode(tokens, skip_special=False)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(("tokens", "expected"), [(0, "</think> The sky"), (2, " The sky</think>"), (99, " The sky")])
def test_reasoning_ends_after_its_tokens(is_open, tokens, expected):
    begin = "" if is_open else "<think>"
    found = written(f"{begin} The sky{LONGER}", tokens=tokens, is_open=is_open)
    assert found.startswith(begin + expected)
    assert found.replace("</think>", "") == f"{begin} The sky{LONGER}"
    assert found.count("</think>") == (tokens < 99)


@pytest.mark.parametrize("text", ["\n<think>Hm.</think> The sky" + LONGER, "No <think>" + LONGER, LONGER + "<think>" + LONGER])
def test_what_is_no_reasoning_or_ends_by_itself_is_left_alone(text):
    assert written(text, tokens=6) == text


def test_no_character_is_cut_in_two():
    assert written("\U0001f40b\U0001f40b", tokens=1, is_open=True) == "\U0001f40b</think>\U0001f40b"


def test_what_follows_keeps_to_a_grammar():
    grammar = r'root ::= [^<]* "</think>" "yes"'
    constraint = made(tokens=2, is_open=True, grammar=grammar)
    tokenizer = constraint.session.tokenizer
    for token in tokenizer.encode(LONGER, add_special=False)[:2]:
        assert constraint.n_allowed([token]) == 1
        constraint.accept(token)
    found = []
    while not constraint.is_complete:
        (token,) = constraint.allowed().nonzero()[0].tolist()
        assert [*constraint.forced(1)] == [token]
        assert constraint.n_allowed([token + 1]) == 0
        constraint.accept(token)
        found.append(token)
    assert tokenizer.decode(found, skip_special=False) == "</think>yes"
    with pytest.raises(OptionError, match="grammar"):
        made(grammar="root :: yes")


@pytest.mark.parametrize("values", [{"closing": ""}, {"opening": "x" * 101}])
def test_tags_are_short_texts(values):
    with pytest.raises(OptionError, match="expected 1 to 100"):
        made(**values)
