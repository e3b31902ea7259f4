"""The conversation behind `augury chat`, with an engine that answers from a list."""

from augury.cli.chat import Conversation
from augury.errors import CapacityError
from augury.types import Result, Summary, Token


class Running:
    def __init__(self, text):
        self.text = text

    def __iter__(self):
        yield Token(1, self.text, "ngram-simple")

    def result(self):
        return Result((1,), self.text, "stop", Summary(n_emitted=1, n_rounds=1))


class Engine:
    """Repeats what the last message says; raises where it says so."""

    def __init__(self):
        self.asked = []

    def submit(self, *, messages, **params):
        self.asked.append((messages, params))
        if messages[-1]["content"] == "too long":
            raise CapacityError("the prompt has 9 tokens")
        return Running(messages[-1]["content"].upper())


def talk(*lines, has_stats=False):
    engine = Engine()
    conversation = Conversation(engine, {"seed": 1}, has_stats=has_stats)
    return engine, conversation, [conversation.hear(line) for line in lines]


def test_answers_are_streamed_and_remembered(capsys):
    engine, conversation, _ = talk("hello", "again")
    assert capsys.readouterr().out == "HELLO\nAGAIN\n"
    assert [each["content"] for each in engine.asked[1][0]] == ["hello", "HELLO", "again"]
    assert engine.asked[1][1] == {"seed": 1}
    assert [each["role"] for each in conversation.messages] == ["user", "assistant"] * 2


def test_reset_forgets_the_conversation():
    engine, _, _ = talk("hello", "/reset", "again")
    assert [each["content"] for each in engine.asked[1][0]] == ["again"]


def test_stats_are_those_of_the_last_answer(capsys):
    talk("/stats", "hello", "/stats")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "no answer yet"
    assert "generated 1 tokens" in lines[1]


def test_a_flag_shows_stats_after_every_answer(capsys):
    talk("hello", "/help", has_stats=True)
    assert capsys.readouterr().err.count("tok/s |") == 1


def test_exit_leaves_and_other_lines_do_not(capsys):
    assert talk("hello", "", "/help", "/bogus", "/exit")[2] == [True, True, True, True, False]
    assert "/bogus" in capsys.readouterr().err


def test_a_failed_answer_leaves_the_conversation_as_it_was(capsys):
    _, conversation, heard = talk("hello", "too long", "again")
    assert heard == [True, True, True]
    assert "9 tokens" in capsys.readouterr().err
    assert [each["content"] for each in conversation.messages] == ["hello", "HELLO", "again", "AGAIN"]
