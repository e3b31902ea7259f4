"""Renders chat templates in a process of its own, whose time and memory are limited: it runs `sandbox`."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import finalize

if TYPE_CHECKING:
    import datetime as dt

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from augury.text.sandbox import serve; serve()"


class Refusal(Exception):  # noqa: N818 -- not a fault: the template's answer to these messages
    """An error that a template reports by calling `raise_exception`."""


class Failure(Exception):  # noqa: N818 -- as Refusal
    """A fault of a template, to be read after its name."""


class Renderer:
    """Renders templates, one at a time, for any number of threads.

    Its process starts with the first rendering and stays for the next ones, until a limit ends it. It is out of reach of the
    terminal's signals, and ends after its parent, however that ends: at once if it waits, within its time if it renders.

    Args:
        seconds: of processor time per rendering, so that a good template never fails on a busy machine; on Windows of any time.
        n_bytes: of the process' address space, where the system limits it. Python and Jinja2 take 35 MB.
    """

    def __init__(self, *, seconds: float = 2.0, n_bytes: int = 512 << 20) -> None:
        self._seconds, self._n_bytes = seconds, n_bytes
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def render(self, source: str, names: Mapping[str, object], now: dt.datetime) -> str:
        """Render a template with variables of the types that JSON has, at a time for templates that write the date.

        Raises Refusal: the template does. Failure: it is broken, forbidden, or beyond a limit. ValueError: JSON cannot write a
        name. OSError: the process cannot be started.
        """
        limits = {"seconds": self._seconds, "n_bytes": self._n_bytes}
        try:
            line = json.dumps({"source": source, "names": names, "now": (now.isoformat(), now.tzname())} | limits) + "\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(str(error)) from error
        if self._pid != os.getpid():  # forked: the process, and perhaps the lock's owner, stayed with the parent
            self._begin()
        with self._lock:
            reply = self._exchange(line.encode())
        if "refusal" in reply:
            raise Refusal(reply["refusal"])
        if "failure" in reply:
            raise Failure(reply["failure"])
        return reply["text"]

    def close(self) -> None:
        """End the process; the next rendering starts another. May be called twice, and does nothing in a fork."""
        if self._pid == os.getpid():
            with self._lock:
                self._end()

    def _exchange(self, line: bytes) -> dict[str, str]:
        process = self._running()
        try:
            with suppress(BrokenPipeError):  # it has ended, which the empty answer tells too
                process.stdin.write(line)
                process.stdin.flush()
            reply = process.stdout.readline()
        except BaseException:  # Ctrl-C while waiting: the next rendering would be given this one's text
            self._end()
            raise
        return json.loads(reply) if reply.endswith(b"\n") else {"failure": self._reason(process.wait())}

    def _running(self) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-c", _PROGRAM, *sys.path]
            self._process = subprocess.Popen(  # noqa: S603 -- this Python
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            )
            self._end = finalize(self, _end, self._process, self._pid)
        return self._process

    def _reason(self, code: int) -> str:
        limits = {
            -getattr(signal, "SIGPROF", -1): f"takes more than {self._seconds:g} s of processor time",
            errno.ENOMEM: f"takes more than {self._n_bytes >> 20} MiB of memory",
        }
        return limits.get(code, f"ends the process that renders it, with code {code}")


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner == os.getpid():  # not in a fork
        process.kill()
        process.communicate()
