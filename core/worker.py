"""The engine's thread: takes requests from any thread and runs the loop, one round after another."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import frozen

from augury.errors import AuguryError

if TYPE_CHECKING:
    from collections.abc import Generator
    from concurrent.futures import Future

    import numpy as np

    from augury.loop import Loop
    from augury.sequence import Sequence

__all__ = ["Worker"]


@frozen(eq=False)
class _Evaluation:
    steps: Generator[np.ndarray | None, None, None]
    future: Future[np.ndarray]


class Worker:
    """Owns the loop. The thread starts with the first work and sleeps while there is none."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._inbox: deque[Sequence] = deque()
        self._evaluations: deque[_Evaluation] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, sequence: Sequence) -> None:
        """Run a sequence and report to its caller."""
        with self._changed:
            self._start()
            self._inbox.append(sequence)
            self._changed.notify()

    def evaluate(self, tokens: np.ndarray, rows: np.ndarray, future: Future[np.ndarray]) -> None:
        """Compute logits as soon as a slot is free, between the rounds; see `Loop.evaluate`. Cancelling the future ends it."""
        with self._changed:
            self._start()
            self._evaluations.append(_Evaluation(self._loop.evaluate(tokens, rows), future))
            self._changed.notify()

    def close(self) -> None:
        """End what runs as cancelled, and the thread. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _start(self) -> None:
        if self._is_closed:
            raise AuguryError("the engine is closed; load a new one")
        if self._thread is None:
            # a daemon, so that a program that forgets to close its engine still ends
            self._thread = threading.Thread(target=self._run, name="augury-engine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._is_closed or self._inbox or self._evaluations or not self._loop.is_idle):
                    self._changed.wait()
                is_closed = self._is_closed
                while self._inbox:
                    self._loop.add(self._inbox.popleft())
            if is_closed:
                self._finish(self._loop.abandon())
                for evaluation in self._evaluations:
                    evaluation.steps.close()
                    _settle(evaluation.future, AuguryError("the engine was closed"))
                return
            try:
                self._finish(self._loop.round())
            except Exception as error:  # noqa: BLE001 - a backend's or drafter's failure ends its requests, not the engine
                self._finish(self._loop.abandon(), error)
            self._evaluate()

    def _finish(self, ended: list[Sequence], error: Exception | None = None) -> None:
        for sequence in ended:
            sequence.finish(error)

    def _evaluate(self) -> None:
        """Go a step on with the evaluation that is first in line; the next one follows after the next round."""
        if not self._evaluations:
            return
        first = self._evaluations[0]
        outcome: np.ndarray | Exception | None
        try:
            outcome = AuguryError("the evaluation was cancelled") if first.future.cancelled() else next(first.steps)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            outcome = error
        if outcome is not None:
            self._evaluations.popleft()
            first.steps.close()
            _settle(first.future, outcome)


def _settle(future: Future[np.ndarray], outcome: np.ndarray | Exception) -> None:
    with suppress(InvalidStateError):  # cancelled at the last moment
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
