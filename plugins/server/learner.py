"""`augury serve --learn`: while nobody asks, a process of its own trains heads on what is collected."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from anyio import to_thread

from augury.cli import say
from augury.errors import AuguryError
from augury.plugins.learn import hidden_states

DRAFTER = "draft-eagle3"
"""Which drafts with these heads."""

_IDLE_S = 10.0  # without a request, after which it goes on
_LEAST_BYTES = 100_000  # of requests since the last head, some 20,000 tokens
_GROWTH = 0.5  # of all those that it was trained on: training takes as much time then as it did before
_DAY_S = 24 * 3600.0
_SUFFIX = ".gguf"


class Learner:
    """Trains one head after another, each from the one before, in a process that is stopped while the server answers.

    Heads lie in `.heads` beside the requests, numbered; 0 is one that has learnt nothing. All methods but `draft_model` are the
    event loop's.

    Attributes:
        take_over: Called on a thread with each new head.
    """

    take_over: Callable[[Path], None]

    def __init__(self, folder: Path, words: Sequence[str], n_hours: int, write_first: Callable[[Path], None]) -> None:
        """Do nothing yet.

        Args:
            folder: Of a `Collection`.
            words: Those of `augury learn` after that, without texts, output and the head to begin with.
            n_hours: Of each day in which it may train.
            write_first: Writes a head that has learnt nothing.
        """
        self._texts, self._heads, self._words, self._write_first = folder, folder / ".heads", words, write_first
        self._left_s = self._most_s = n_hours * 3600.0
        self._day = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = True
        self._since: float | None = None  # since when the process runs; None: it is stopped
        is_begun = any(self._heads.glob(f"*{_SUFFIX}.learn"))  # by an earlier server
        self._n_learnt = 0 if self.newest is None or is_begun else self._n_bytes

    @property
    def newest(self) -> Path | None:
        """The newest head that was trained; None before the first."""
        return self._trained[-1] if self._trained else None

    @property
    def _trained(self) -> list[Path]:
        """Their heads in order; beside one whose training has not ended lies the folder of that."""
        numbers = sorted(int(path.stem) for path in self._heads.glob(f"*{_SUFFIX}") if path.stem.isdecimal())
        heads = [self._heads / f"{number}{_SUFFIX}" for number in numbers if number]
        return [head for head in heads if not head.with_name(f"{head.name}.learn").exists()]

    @property
    def _n_bytes(self) -> int:
        """Of the requests that are kept."""
        return sum(path.stat().st_size for path in self._texts.glob("requests*.jsonl"))

    def draft_model(self) -> str:
        """The newest head, or else one that has learnt nothing, which is written.

        Raises:
            AuguryError: No head can be trained for the model.
        """
        if self._heads.is_symlink():
            raise AuguryError(f"{self._heads} is a link, which is not followed; remove it")
        self._heads.mkdir(mode=0o700, exist_ok=True)
        first = self._heads / f"0{_SUFFIX}"
        if self.newest is None and not first.exists():
            self._write_first(first)
        return str(self.newest or first)

    def pause(self) -> None:
        """A request has come: stop at once."""
        self._is_idle = False
        if self._timer is not None:
            self._timer.cancel()
        if self._since is not None and self._process is not None:
            self._left_s -= asyncio.get_running_loop().time() - self._since
            self._since = None
            self._signal(signal.SIGSTOP)

    def rest(self, seconds: float = _IDLE_S) -> None:
        """Nobody asks any more: go on, or begin, after a while."""
        self.pause()
        self._is_idle = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self._go_on)

    async def close(self) -> None:
        """End the training; the next server goes on with it."""
        self.pause()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _go_on(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._day >= _DAY_S:
            self._day, self._left_s = now, self._most_s
        is_due = self._process is not None or self._n_bytes - self._n_learnt >= max(_LEAST_BYTES, _GROWTH * self._n_learnt)
        if self._left_s <= 0 or not is_due:
            self.rest(_IDLE_S if self._left_s > 0 else max(self._day + _DAY_S - now, _IDLE_S))
            return
        self._since = now
        if self._process is not None:
            self._signal(signal.SIGCONT)
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._learn())
        self._timer = asyncio.get_running_loop().call_later(self._left_s, self.rest)

    async def _learn(self) -> None:
        """Train a head on what is kept now, and let it take over."""
        before, self._n_learnt = self.newest, self._n_bytes
        head = self._heads / f"{1 + (0 if before is None else int(before.stem))}{_SUFFIX}"
        texts = await to_thread.run_sync(self._snapshot, head)
        words = ["learn", "-f", str(texts), "-o", str(head), *(("--from", str(before)) if before else ()), *self._words]
        try:
            await self._run([sys.executable, "-m", "augury", *words])
            await to_thread.run_sync(self.take_over, head)
            say(f"a head was trained on the requests that are kept, and drafts from now on: {head}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on
            say(f"no head was trained on the requests that are kept: {error}")
            for path in (head, head.with_name(f"{head.name}.learn")):
                _remove(path)
        await to_thread.run_sync(_remove, texts)
        for path in self._trained[:-2]:  # the last but one may still draft in requests that run
            _remove(path)
        if self._is_idle:
            self.rest()

    async def _run(self, command: Sequence[str]) -> None:
        """Run a command at the lowest priority. Raises AuguryError: it failed; the message is the last line that it wrote."""
        process = self._process = _started(command)
        try:
            if self._since is None:  # a request came meanwhile
                self._signal(signal.SIGSTOP)
            _, told = await to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        finally:
            code, self._process = process.poll(), None
            process.kill()  # a training loses little by that
            process.wait()
        if code:
            raise AuguryError((told.decode(errors="replace").strip().splitlines() or [f"it ended with code {code}"])[-1])

    def _snapshot(self, head: Path) -> Path:
        """The texts for a head: those that a training of it began with, or all that are kept now."""
        texts = self._heads / "texts"
        if not head.with_name(f"{head.name}.learn").exists():
            _remove(texts)
            states = texts / hidden_states.STATES
            states.mkdir(parents=True)
            for path in self._texts.glob("requests*.jsonl"):
                shutil.copy(path, texts)
            for path in (self._texts / hidden_states.STATES).glob("[!.]*"):
                with suppress(FileNotFoundError):  # the server has just removed it
                    os.link(path, states / path.name)
        return texts

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process at the lowest priority. Ctrl-C is the server's alone; where that is killed the system ends a stopped group."""
    none = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=none, stdout=none, stderr=subprocess.PIPE, process_group=0)  # noqa: S603 - our own
    with suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
    return process


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
