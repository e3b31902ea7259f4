"""`augury chat` as a process, in terminals and pipes, with an engine that answers in upper case."""

import io
import json
import os
import pty
import select
import subprocess
import sys

import pytest
from support import talkers
from support.commands import run

from augury.cli import chat

LONG_S = 60  # for a machine with much else to do


class Terminal:
    """A pseudo-terminal with a chat in it."""

    def __init__(self, *words, kind="xterm"):
        self._end, other = pty.openpty()
        env = {**os.environ, "TERM": kind, "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = [sys.executable, talkers.__file__, "chat", *map(str, words)]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env, start_new_session=True)
        os.close(other)
        self._shown = ""

    def expect(self, text):
        """Wait until it is shown, and pass over all that was shown up to it."""
        while text not in self._shown:
            assert select.select([self._end], [], [], LONG_S)[0], f"no {text!r} in {self._shown!r}"
            self._shown += os.read(self._end, 4096).decode()
        before, _, self._shown = self._shown.partition(text)
        return before

    def type(self, text):
        self.expect(">")  # the prompt
        os.write(self._end, text.encode())

    def interrupt(self):
        os.write(self._end, b"\x03")

    def wait(self):
        """The exit code."""
        return self.process.wait(LONG_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._end)


def test_ctrl_c_clears_a_line_stops_an_answer_and_leaves_at_last(tmp_path):
    session = tmp_path / "talk.json"
    with Terminal("--session", session) as terminal:
        terminal.type("half a line\x03")
        terminal.expect("again leaves")
        terminal.type("story\r")
        terminal.expect("STORY")
        terminal.interrupt()
        terminal.expect("(stopped: /continue goes on)")
        terminal.type("more\r")
        terminal.expect("MORE")
        terminal.type("\x03")
        terminal.expect("again leaves")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert [each["content"] for each in json.loads(session.read_text())["messages"]] == ["story", "STORY", "more", "MORE"]


def test_a_dumb_terminal_is_sent_nothing_but_text():
    with Terminal(kind="dumb") as terminal:
        terminal.type("story\n")
        before = terminal.expect("STORY")
        terminal.interrupt()
        before += terminal.expect("(stopped: /continue goes on)")
        terminal.type("/exit\n")
        assert terminal.wait() == 0
    assert "\x1b" not in before


def test_a_pasted_text_is_one_message_and_ctrl_d_leaves(tmp_path):
    session = tmp_path / "talk.json"
    with Terminal("--session", session) as terminal:
        terminal.type("\x1b[200~one\rtwo\r\rfour\x1b[201~\r")
        terminal.expect("FOUR")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert [each["content"] for each in json.loads(session.read_text())["messages"]] == ["one\ntwo\n\nfour", "ONE\nTWO\n\nFOUR"]
    with Terminal("--session", session) as terminal:
        terminal.expect("2 messages from")
        terminal.type("/exit\r")
        assert terminal.wait() == 0


def test_sigterm_at_the_prompt_ends_with_143():
    with Terminal() as terminal:
        terminal.expect(">")
        terminal.process.terminate()
        assert terminal.wait() == 143


@pytest.fixture
def piped(capsys, monkeypatch):
    def pipe(text, *words):
        monkeypatch.setattr(chat, "load_engine", lambda *_: talkers.Engine())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        return run(capsys, "chat", *words)

    return pipe


@pytest.mark.parametrize(
    ("text", "code", "out", "err"),
    [
        (b"one\n\ntwo\n/exit\nthree\n", 0, "ONE\nTWO\n", ""),
        (b"one\n\xff\n", 1, "", "augury: standard input: not text in UTF-8\n"),
        (b"too long\nmore\n", 1, "MORE\n", "augury: the prompt has 99 tokens"),
    ],
)
def test_lines_that_are_piped_in_are_messages(piped, text, code, out, err):
    found = piped(text)
    assert found[:2] == (code, out)
    assert found[2].startswith(err)


def test_template_kwargs_go_with_every_message(piped, monkeypatch):
    engine = talkers.Engine()
    monkeypatch.setattr(talkers, "Engine", lambda: engine)
    assert piped(b"one\ntwo\n", "--chat-template-kwargs", '{"enable_thinking": false}')[0] == 0
    assert [params["chat_template_kwargs"] for _, params in engine.asked] == [{"enable_thinking": False}] * 2


def test_a_system_prompt_takes_the_place_of_that_of_a_session(piped, tmp_path):
    session = tmp_path / "talk.json"
    assert piped(b"one\n", "--session", session, "-sys", "Be brief.")[0] == 0
    assert piped(b"two\n", "--session", session, "-sys", "Be kind.")[0] == 0
    assert [each["content"] for each in json.loads(session.read_text())["messages"]] == ["Be kind.", "one", "ONE", "two", "TWO"]


def test_input_is_utf_8_whatever_the_terminal_shows():
    command = [sys.executable, talkers.__file__, "chat"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, input="Grüße\n".encode(), capture_output=True, check=False, env=env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"GR?SSE\n", b"")


def test_a_damaged_session_is_an_error_and_is_left_as_it_is(tmp_path, piped):
    session = tmp_path / "talk.json"
    session.write_text('{"messages": [')
    code, out, err = piped(b"hello\n", "--session", session)
    assert (code, out) == (1, "")
    assert err.startswith(f"augury: {session}: this is not a conversation that augury saved; it is left as it is")
    assert session.read_text() == '{"messages": ['


@pytest.mark.parametrize(
    ("place", "expected"),
    [("absent/talk.json", "there is no folder"), (".", "is not a file"), ("/dev/full", "is not a file")],
)
def test_a_session_that_cannot_be_kept_is_an_error_before_anything_is_loaded(tmp_path, capsys, place, expected):
    code, out, err = run(capsys, "chat", "-m", "no-such-model", "--session", tmp_path / place)
    assert (code, out) == (1, "")
    assert err.startswith("augury: --session: ")
    assert expected in err
