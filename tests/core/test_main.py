"""The process of a command: signals at any moment, streams that are closed, full or speak ASCII."""

import os
import signal
import subprocess
import sys

import pytest
from support.commands import here, run

PROMPT = ["--prompt-tokens", "1,2"]
# sends a signal to the process itself when it is about to import its n-th module
STRUCK = """
import signal, sys
left, catches = int(sys.argv.pop(1)), eval(sys.argv.pop(1))
def hear(event, args):
    global left
    left -= event == "import"
    if event == "import" and left == 0:
        try:
            signal.raise_signal(signal.SIGINT)
        except catches:
            pass
import augury.__main__
sys.addaudithook(hear)
sys.exit(augury.__main__.main())
"""


def start(words, **kwargs):
    return subprocess.Popen(
        [sys.executable, *words], **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **kwargs}
    )


@pytest.mark.parametrize("n", [1, 5, 60, 240, 340])
def test_ctrl_c_while_modules_are_imported_is_exit_130_and_no_traceback(n):
    process = start(["-c", STRUCK, str(n), "()", "run", *here(), *PROMPT, "-n", "2"])
    _, err = process.communicate()
    assert (process.returncode, "Traceback" in err, "Exception ignored" in err) == (130, False, False)


def test_ctrl_c_while_modules_are_imported_is_not_lost_where_one_of_them_catches_everything():
    process = start(["-c", STRUCK, "5", "BaseException", "--version"])
    assert process.communicate() == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_during_an_answer_ends_the_command(number, code):
    words = ["-m", "augury", "run", *here(), *PROMPT, "-c", "100000", "--ignore-eos"]
    with start(words) as process:
        process.stdout.read(1)  # the answer has begun
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == code
    assert [line for line in err.splitlines() if not line.startswith("WARNING")] == []


def test_a_signal_that_is_ignored_stays_ignored():
    source = """
from signal import SIG_IGN, SIGHUP, getsignal, signal
signal(SIGHUP, SIG_IGN)
import augury.__main__
print(getsignal(SIGHUP) is SIG_IGN)
"""
    assert start(["-c", source]).communicate()[0] == "True\n"


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(143)"])
@pytest.mark.parametrize("held", ["class Held:\n  def __del__(self): raise {}\nHeld()", "raise {}"])
def test_a_signal_in_a_finalizer_or_between_two_lines_ends_the_process(held, error):
    source = f"import augury.__main__\n{held.format(error)}\nprint('went on')"
    process = start(["-c", source])
    assert process.communicate() == ("", "")
    assert process.returncode == (143 if "143" in error else 130)


COMMANDS = [
    ["run", "--help"],
    ["plugins"],
    ["completion", "bash"],
    ["inspect", here()[1]],
    ["pull", here()[1]],
    ["run", *here(), *PROMPT, "-n", "2"],
    ["bench", "drafters", *here(), *PROMPT, "-n", "2", "--turns", "1", "--spec-type", "suffix"],
]


def without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0] + (" --help" if "--help" in words else ""))
@pytest.mark.parametrize(
    ("opened", "code", "said"),
    [
        (lambda: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"), 1, ["augury: standard output: No space left on device"]),
        (lambda: os.fdopen(os.open(os.devnull, os.O_RDONLY), "w"), 1, ["augury: standard output: Bad file descriptor"]),
        (without_reader, 141, []),
    ],
    ids=["full", "closed", "left"],
)
def test_output_that_nobody_takes_is_told_in_a_line_at_most(capsys, monkeypatch, words, opened, code, said):
    with opened() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        found, _, err = run(capsys, *words)
    assert found == code
    assert [line for line in err.splitlines() if line.startswith("augury: ")] == said
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        ("<&-", 2, "augury: there is no prompt; give one with -p TEXT, -f FILE or on standard input\n"),
        (">&-", 1, "augury: standard output: Bad file descriptor\n"),
        ("<&- >&- 2>&-", 2, ""),
    ],
)
def test_closed_streams_are_no_traceback(closed, code, said):
    words = ["run", *here(), *(PROMPT if closed == ">&-" else []), "-n", "2"]
    process = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "augury", *words],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert process.returncode == code
    assert "".join(f"{line}\n" for line in process.stderr.splitlines() if line.startswith(("augury", "Tr"))) == said


def test_characters_that_a_terminal_cannot_show_are_replaced(tmp_path):
    model = tmp_path / "modèle.gguf"
    model.symlink_to(here()[1])
    process = start(["-m", "augury", "pull", str(model)], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out == f"{tmp_path}/mod?le.gguf\n"
