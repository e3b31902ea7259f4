"""The engine's thread: takes requests from any thread and runs the loop, one round after another."""

from __future__ import annotations

import math
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from attrs import frozen

from augury.engine.channel import Channel
from augury.engine.loop import Loop
from augury.engine.sequence import RunningSequence
from augury.engine.stats import EngineStats
from augury.errors import AuguryError, QueueFullError
from augury.guard import guarded

Answer = TypeVar("Answer")


@frozen(eq=False)
class _Evaluation:
    """Work that is no request: steps that are taken between rounds, until one comes to something."""

    steps: Generator[Any, None, None]
    channel: Channel
    waits_its_turn: bool


class Worker:
    """The engine's thread as all others see it. It sleeps while there is nothing to do.

    It ends with `close`, or when the worker is garbage-collected: the thread itself has no reference to it. At its end it
    closes all models, so that no other thread ever calls one.
    """

    def __init__(self, loop: Loop, give_back: Callable[[], None], *, n_slots: int, max_queue: int | None = None) -> None:
        """Start the thread, which calls `loop` alone, and `give_back` at its end. `max_queue` of None: any number may wait."""
        self._loop = loop
        self._n_slots = n_slots
        self._max_queue = max_queue
        self._process = os.getpid()
        self._engine_thread = _EngineThread(loop, give_back, n_slots)
        # a daemon, so that a program that forgets to close its engine still ends
        self._thread = threading.Thread(target=self._engine_thread.run, name="augury-engine", daemon=True)
        weakref.finalize(self, self._engine_thread.inbox.put, None)
        self._thread.start()

    def submit(self, sequence: RunningSequence) -> None:
        """Run a sequence and report to its channel; errors are those of `check_queue`."""
        self.check_queue()
        self._engine_thread.put(sequence)

    def check_queue(self) -> None:
        """Raise a QueueFullError if too many requests and evaluations wait, or the errors of `check`."""
        self.check()
        n_held_back = self._loop.n_held_back  # by a slot that is taken, while others may be free
        thread = self._engine_thread
        n_others = thread.inbox.qsize() + self._loop.n_sequences - n_held_back + thread.n_evaluations
        n_waiting = n_held_back + max(n_others - self._n_slots, 0)
        if self._max_queue is not None and n_waiting >= self._max_queue:
            raise QueueFullError(
                f"{n_waiting} requests wait for a slot already, the queue takes {self._max_queue}; try again later, "
                "or load the model with more slots (slots) or a longer queue (max_queue)"
            )

    def stats(self) -> EngineStats:
        """The engine's slots, queue and counts. It waits for nothing."""
        thread = self._engine_thread
        return self._loop.stats(thread.inbox.qsize() + max(thread.n_evaluations - self._n_slots, 0))

    def do(self, step: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a method of the loop on the engine's thread, after the round, and wait for its result, which is not None."""
        with self._begun(lambda loop: (step(loop, *arguments) for _ in range(1)), waits_its_turn=False) as channel:
            answer: Answer = self.wait(channel)
            return answer

    def answer(self, steps: Callable[[Loop], Generator[Any, None, None]]) -> Any:
        """Take steps on the engine's thread, after rounds, and wait for the first result that is not None.

        As many evaluations as there are slots take turns, in the order in which they came. Errors are those of `check_queue`.
        """
        self.check_queue()
        with self._begun(steps) as channel:
            return self.wait(channel)

    async def answer_async(self, steps: Callable[[Loop], Generator[Any, None, None]]) -> Any:
        """`answer` for a task of an event loop: cancelling it cancels the remaining steps."""
        self.check_queue()
        with self._begun(steps) as channel:
            return await self.wait_async(channel)

    @contextmanager
    def _begun(self, steps: Callable[[Loop], Generator[Any, None, None]], *, waits_its_turn: bool = True) -> Iterator[Channel]:
        """Begin steps, for a caller who waits for them; one that is interrupted will not ask again."""
        self.check_may_wait()
        self.check()
        channel = Channel()
        try:
            self._engine_thread.put(_Evaluation(steps(self._loop), channel, waits_its_turn))
            yield channel
        except BaseException:
            channel.cancel()
            raise

    def wait(self, channel: Channel, timeout: float | None = None) -> Any:
        """Wait for the outcome and return it, or raise the error; a TimeoutError if it takes longer than so many seconds."""
        end = math.inf if timeout is None else monotonic() + timeout
        while channel.outcome is None:
            self.check_may_wait()
            channel.block(channel.waiters, end)
            if channel.outcome is None and monotonic() >= end:
                raise TimeoutError(f"no result within {timeout:g} s; wait again, or cancel the request")
        if isinstance(channel.outcome, BaseException):
            raise channel.outcome
        return channel.outcome

    async def wait_async(self, channel: Channel) -> Any:
        """`wait` for a task of an event loop, which goes on meanwhile."""
        while channel.outcome is None:
            self.check_may_wait()
            await channel.sleep(channel.waiters)
        return self.wait(channel)

    def check(self) -> None:
        """Raise an AuguryError if the engine was closed, has died, or is another process'."""
        if os.getpid() != self._process:
            raise AuguryError(
                "the engine was loaded before this process was forked off, and its threads stayed behind; "
                "load it in the process that uses it"
            )
        if self._engine_thread.end is not None:
            raise AuguryError(str(self._engine_thread.end)) from self._engine_thread.end.__cause__

    def check_may_wait(self) -> None:
        """Raise an AuguryError if this thread would wait for itself, or for ever."""
        if os.getpid() != self._process:
            self.check()
        if threading.current_thread() is self._thread:
            raise AuguryError(
                "a hook or drafter waits for an answer of the engine that called it, which would wait for ever; "
                "call submit there, and read the answer on another thread"
            )

    def close(self) -> None:
        """Cancel all requests, release everything, and wait for it. Any thread may call it, any number of times.

        On the engine's own thread it does not wait: the end comes after the round. In a forked child there is no thread to end.
        """
        self._engine_thread.inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _EngineThread:
    """The thread's own state. Other threads reach it through the inbox, which takes no lock of theirs."""

    def __init__(self, loop: Loop, give_back: Callable[[], None], n_slots: int) -> None:
        self.inbox: queue.SimpleQueue[RunningSequence | _Evaluation | None] = queue.SimpleQueue()  # None: end
        self.end: AuguryError | None = None  # why nothing more is accepted
        self._loop = loop
        self._evaluations: deque[_Evaluation] = deque()  # the first `n_slots` take turns
        self._n_slots = n_slots
        self._give_back = give_back

    @property
    def n_evaluations(self) -> int:
        return len(self._evaluations)

    def put(self, work: RunningSequence | _Evaluation) -> None:
        """Have something done, or ended at once if the thread has just ended."""
        self.inbox.put(work)
        if self.end is not None:
            self._refuse()

    def run(self) -> None:
        """The thread, from its start to its end; every waiting caller hears of it in any case."""
        end, error = AuguryError("the engine is closed; load a new one"), None
        try:
            while self._take():
                self._loop.round()
                self._evaluate()
        except BaseException as found:  # noqa: BLE001 - nothing is left that could handle it
            end = error = AuguryError(f"the engine has ended because of an error ({type(found).__name__}); load a new one")
            error.__cause__ = found
        self.end = end
        self._loop.abandon(error)
        for work in self._arrived():  # too late, but observers hear of every request
            with suppress(BaseException):
                self._add(work)
        self._loop.abandon(end)
        while self._evaluations:
            self._settle(self._evaluations[0], end)
        self._refuse()
        guarded(self._give_back)

    def _take(self) -> bool:
        """Take in new messages, and wait for them if there is nothing else to do; false if the thread is to end."""
        may_wait = self._loop.n_sequences == 0 and not self._evaluations
        while may_wait or not self.inbox.empty():
            work = self.inbox.get()
            if work is None:
                return False
            self._add(work)
            may_wait = False
        return True

    def _add(self, work: RunningSequence | _Evaluation) -> None:
        if isinstance(work, _Evaluation):
            (self._evaluations.append if work.waits_its_turn else self._evaluations.appendleft)(work)
            return
        try:
            self._loop.add(work)
        except BaseException as error:  # nobody else knows of it
            work.channel.finish(error)
            raise

    def _arrived(self) -> Iterator[RunningSequence | _Evaluation]:
        with suppress(queue.Empty):
            while True:
                if (work := self.inbox.get_nowait()) is not None:
                    yield work

    def _refuse(self) -> None:
        for work in self._arrived():
            work.channel.finish(self.end)

    def _evaluate(self) -> None:
        """Go a step on with the first evaluation, and put it after those it takes turns with."""
        if not self._evaluations:
            return
        first = self._evaluations.popleft()
        self._evaluations.insert(self._n_slots - 1, first)
        outcome: Any
        try:
            outcome = AuguryError("the evaluation was cancelled") if first.channel.cancels else next(first.steps)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            outcome = error
        if outcome is not None:
            self._settle(first, outcome)

    def _settle(self, evaluation: _Evaluation, outcome: Any) -> None:
        guarded(evaluation.steps.close)
        self._evaluations.remove(evaluation)
        evaluation.channel.finish(outcome)
