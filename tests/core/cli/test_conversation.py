"""A conversation, with an engine that answers in upper case."""

import json

import pytest
from support.talkers import Engine

from augury.cli.chat import Conversation, read_messages
from augury.errors import AuguryError, UnsupportedError


def talk(*lines, **kwargs):
    conversation = Conversation(Engine(), {"seed": 1}, **kwargs)
    return conversation, [conversation.respond(line) for line in lines]


def contents(conversation):
    return [message["content"] for message in conversation.messages]


def test_answers_are_streamed_and_remembered(capsys):
    conversation, _ = talk("hello", "again")
    assert capsys.readouterr().out == "HELLO\nAGAIN\n"
    messages, params = conversation._engine.asked[1]
    assert [each["content"] for each in messages] == ["hello", "HELLO", "again"]
    assert params == {"seed": 1}
    assert [each["role"] for each in conversation.messages] == ["user", "assistant"] * 2


def test_clear_forgets_the_conversation_but_not_the_system_prompt():
    assert contents(talk("hello", "/clear", "again")[0]) == ["again", "AGAIN"]
    assert contents(talk("/system Be brief.", "hello", "/clear", "again")[0]) == ["Be brief.", "again", "AGAIN"]


def test_a_system_prompt_is_set_shown_and_changed(capsys):
    conversation, _ = talk("/system", "/system Be brief.", "/continue", "hello", "/system Be kind.\\", "/system")
    assert [each["role"] for each in conversation.messages] == ["system", "user", "assistant"]
    assert contents(conversation) == ["Be kind.\\", "hello", "HELLO"]
    assert capsys.readouterr().err.splitlines() == [
        "there is no system prompt",
        "the system prompt is set",
        "there is no answer yet",
        "the system prompt is set, also for what was said before",
        "Be kind.\\",
    ]


def test_drop_forgets_the_oldest_question_and_answer(capsys):
    conversation, _ = talk("one", "two", "/drop", "three")
    assert contents(conversation) == ["two", "TWO", "three", "THREE"]
    conversation.respond("/drop")
    conversation.respond("/drop")
    conversation.respond("/drop")
    assert conversation.messages == []
    assert "nothing to forget" in capsys.readouterr().err


def test_drop_leaves_what_stands_before_the_first_question():
    system = {"role": "system", "content": "Be brief."}
    assert contents(talk("one", "/drop", messages=[system])[0]) == ["Be brief."]


def test_stats_are_those_of_the_last_answer(capsys):
    talk("/stats", "hello", "/stats")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "no answer yet"
    assert "generated 1 tokens" in lines[1]


def test_a_flag_shows_stats_after_every_answer(capsys):
    talk("hello", "/help", has_stats=True)
    assert capsys.readouterr().err.count("tokens | generated 1 tokens\n") == 1


def test_help_lists_every_command_that_there_is(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    talk("/help")
    listed = [line.split()[0] for line in capsys.readouterr().err.splitlines() if line.startswith("/")]
    assert listed == ["/continue", "/drop", "/clear", "/system", "/save", "/load", "/stats", "/help", "/exit"]
    talk(*(f"{command} FILE" if command in {"/save", "/load"} else command for command in listed))
    assert "there is no command" not in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "meant"), [("/ext", "/exit"), ("/laod x", "/load"), ("/sytsem x", "/system")])
def test_a_command_of_another_name_is_told(typed, meant, capsys):
    talk(typed)
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_exit_leaves_and_other_lines_do_not(capsys):
    assert talk("hello", "", "/help", "/bogus", "/exit")[1] == [True, True, True, True, False]
    assert talk("/quit", "/bye", "/q")[1] == [False] * 3
    assert "/bogus" in capsys.readouterr().err


def test_several_lines_are_never_a_command():
    assert contents(talk("/exit\nis what I typed")[0]) == ["/exit\nis what I typed", "/EXIT\nIS WHAT I TYPED"]


def test_a_failed_answer_leaves_the_conversation_as_it_was(capsys):
    conversation, heard = talk("hello", "too long", "again")
    assert heard == [True, True, True]
    said = capsys.readouterr().err
    assert "99 tokens" in said
    assert "/drop" in said
    assert contents(conversation) == ["hello", "HELLO", "again", "AGAIN"]
    assert conversation.has_failed


def test_a_model_that_cannot_chat_ends_it():
    with pytest.raises(UnsupportedError, match="no chat template"):
        talk("no template")


@pytest.mark.parametrize(
    ("message", "expected"),
    [("cut off", "(cut off after 1 tokens: /continue goes on, -n N"), ("full", "(the context of 64 tokens is full: /drop")],
)
def test_an_answer_that_ends_early_says_why_and_how_to_go_on(capsys, message, expected):
    talk(message)
    assert capsys.readouterr().err.startswith(expected)


def test_continue_goes_on_with_the_last_answer(capsys):
    conversation, _ = talk("/continue", "cut off", "/continue")
    assert "no answer yet" in capsys.readouterr().err
    messages, _ = conversation._engine.asked[1]
    assert messages[-1] == {"role": "assistant", "content": "CUT OFF"}
    assert contents(conversation) == ["cut off", "CUT OFFCUT OFF"]


def test_an_interrupt_before_the_answer_forgets_the_question_unless_it_is_the_callers(capsys):
    conversation, _ = talk("hello", "interrupted")
    assert contents(conversation) == ["hello", "HELLO"]
    assert "stopped" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        talk("interrupted", is_stoppable=False)


def test_a_conversation_is_saved_and_loaded(tmp_path, capsys):
    file = tmp_path / "talk.json"
    saved, _ = talk("Grüße\nzwei", f"/save {file}", "more", f"/save {file}")
    loaded, _ = talk("other", f"/load {file}")
    assert loaded.messages == saved.messages == read_messages(file)
    assert f"4 messages from {file}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"messages": 5}', '{"messages": ["a"]}', '{"messages": [{"role": "user"}]}', "[" * 99999]
)
@pytest.mark.parametrize("command", ["/save", "/load"])
def test_a_file_that_is_no_conversation_is_left_as_it_is(tmp_path, capsys, command, text):
    file = tmp_path / "notes"
    file.write_text(text)
    conversation, _ = talk("hello", f"{command} {file}")
    assert f"{file}: this is not a conversation that augury saved" in capsys.readouterr().err
    assert (file.read_text(), contents(conversation)) == (text, ["hello", "HELLO"])
    with pytest.raises(AuguryError, match="not a conversation"):
        read_messages(file)


@pytest.mark.parametrize("argument", ["", " /no-such-folder/talk.json"])
@pytest.mark.parametrize("command", ["/save", "/load"])
def test_a_place_that_cannot_be_used_is_said(capsys, command, argument):
    conversation, _ = talk("hello", command + argument)
    assert capsys.readouterr().err.startswith(f"augury: {argument.strip()}: No such file" if argument else "name a file")
    assert contents(conversation) == ["hello", "HELLO"]


def test_a_session_is_kept_after_every_change(tmp_path):
    file = tmp_path / "talk.json"
    conversation = Conversation(Engine(), {}, session=file)
    for line, n in [("/help", None), ("one", 2), ("two", 4), ("too long", 4), ("/drop", 2), ("/clear", 0)]:
        conversation.respond(line)
        assert (len(json.loads(file.read_text())["messages"]) if file.exists() else None) == n


def test_a_session_that_cannot_be_written_ends_no_conversation(tmp_path, capsys, monkeypatch):
    def full(path, _content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("augury.cli.chat.write_atomically", full)
    conversation, heard = talk("one", "two", session=tmp_path / "talk.json")
    assert heard == [True, True]
    assert "talk.json: No space left on device; the conversation is not saved" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space"):
        conversation.save_session()
