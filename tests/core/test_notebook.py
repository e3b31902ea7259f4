"""What a notebook shows of results and engines."""

import sys
from types import SimpleNamespace

import pytest
from support.toys import ScriptedDrafter, toy_engine
from support.vocabularies import tokenizer

from augury.errors import OptionError, UnsupportedError
from augury.interfaces import Progress
from augury.notebook import NotebookProgress, shown_progress
from augury.types import Result, Summary, Token


def test_a_result_is_its_text_with_each_drafter_s_tokens_in_a_colour():
    pieces = (Token(1, "a<b"), Token(2, " c", drafter="suffix"), Token(3, "&", drafter="recycle"))
    shown = Result((1, 2, 3), "a<b c&", "length", Summary(n_accepted=2), pieces)._repr_mimebundle_()["text/html"]
    assert shown.startswith(
        '<pre style="white-space: pre-wrap">a&lt;b<span style="color: #2e7d32"> c</span><span style="color: #'
    )
    assert shown.count("#2e7d32") == 2  # the token and the legend
    assert "&amp;</span></pre><small>3 tokens, 2 of them drafted, length: <span" in shown


def test_a_result_is_shown_by_its_first_tokens_and_its_text_without_statistics():
    shown = repr(Result(tuple(range(100)), "one two", "length", Summary(n_accepted=2)))
    assert shown.startswith("Result(tokens=(0, 1, 2, 3, 4, 5, ...), text='one two', finish_reason='length', prompt=None")
    assert len(shown) < 130


def test_a_notebook_is_given_the_text_of_a_result_and_the_slots_of_an_engine():
    with toy_engine(slots=2, drafter=ScriptedDrafter) as engine:
        result = engine.generate([1, 2], max_tokens=3, temperature=0, logprobs=0)
        shown, slots = result._repr_mimebundle_(include=None, exclude=None), engine._repr_mimebundle_()["text/html"]
    assert shown["text/plain"] == repr(result)
    assert all(f"{token} " in shown["text/html"] for token in result.tokens)
    assert result.logprobs == tuple(piece.logprob for piece in result.pieces)
    assert slots.count("<td>idle</td>") == 2
    assert slots.startswith("<code>Engine(")


@pytest.fixture
def cell(monkeypatch):
    """What a notebook's cell displays, one text of HTML for each display, and the time there."""
    shown, time = [], [0.0]

    def display(html, *, display_id):
        shown.append(html)
        n = len(shown) - 1
        return SimpleNamespace(update=lambda html: shown.__setitem__(n, html))

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    monkeypatch.setattr("augury.notebook.monotonic", lambda: time.__setitem__(0, time[0] + 0.3) or time[0])
    return shown


def test_a_task_that_takes_long_has_a_bar_in_a_notebook_until_it_is_done(cell):
    show = shown_progress()
    for done in range(3):
        show("loading <b>", done, 4)
    assert cell == ['loading &lt;b&gt; <progress value="2" max="4"></progress> 50%']
    show("loading <b>", 3, 4)
    assert "75%" in cell[0]
    for done in range(3):
        show("downloading", done, 0)
    assert cell[1] == "downloading <progress></progress> 2"
    show("loading <b>", 4, 4)
    assert cell[0] == ""
    show("short", 0, 1)
    show("short", 1, 1)
    assert len(cell) == 2


def test_several_answers_and_windows_have_bars_in_a_notebook(cell, monkeypatch):
    told = []
    monkeypatch.setattr(NotebookProgress, "__call__", lambda _, *done: told.append(done))
    with toy_engine(slots=2, drafter=ScriptedDrafter) as engine:
        engine.generate([[1], [2]], max_tokens=2)
        engine.perplexity([1, 2, 3, 4] * 3, window=4)
    assert told[:3] == [("answers", n, 2) for n in range(3)]
    assert told[3:] == [("windows", 2, 3), ("windows", 3, 3)]


def test_a_program_shows_nothing():
    assert type(shown_progress()) is Progress


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
