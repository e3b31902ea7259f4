"""An engine that answers messages in upper case, for what talks with one: no model is loaded."""

from __future__ import annotations

import sys
import time

from augury.errors import CapacityError, UnsupportedError
from augury.types import Result, Summary, Token


class Running:
    """An answer, word by word; `story` is one that never ends by itself."""

    def __init__(self, text, finish_reason):
        self._words, self._finish_reason = text.upper().splitlines(keepends=True), finish_reason
        self._is_cancelled = False  # no Event: Ctrl-C inside its `wait` can leave its lock taken

    def __iter__(self):
        for word in self._words:
            yield Token(1, word, "ngram-simple")
        while self._words == ["STORY"] and not self._is_cancelled:
            time.sleep(0.05)
            yield Token(1, "")

    def cancel(self):
        self._is_cancelled = True
        self._finish_reason = "cancelled"

    def result(self):
        text = "".join(self._words)
        return Result((1,) * len(self._words), text, self._finish_reason, Summary(n_emitted=1, n_rounds=1))


class Engine:
    """Repeats what the last message says, and does what some words ask for."""

    def __init__(self):
        self.asked = []
        self.config = {"n_ctx": 64}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, *, messages, **params):
        self.asked.append((messages, params))
        said = messages[-1]["content"]
        if said == "too long":
            raise CapacityError("the prompt has 99 tokens, which exceeds the available context size of 64")
        if said == "no template":
            raise UnsupportedError("this model has no chat template")
        if said == "interrupted":
            raise KeyboardInterrupt
        return Running(said, {"cut off": "length", "full": "context"}.get(said, "stop"))


if __name__ == "__main__":  # augury, with this engine
    import augury.__main__
    from augury.cli import chat

    if sys.stdin.isatty():
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # whose Ctrl-C is this process' own
    chat.load_engine = lambda *_: Engine()
    chat.show_in_brief = lambda _: None  # of what is loaded
    sys.exit(augury.__main__.main())
