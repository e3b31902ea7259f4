"""A request that was submitted: `Running` is its caller's end, `Channel` what the engine and the caller share.

Neither side ever waits for a lock that the other holds: Ctrl-C may stop a caller between any two steps, and must not leave the
engine waiting. A caller that has nothing to read leaves a function that wakes it up, and the engine calls it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError
from augury.memory_limit import lack_of_memory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from typing import Self

    from augury.engine.worker import Worker
    from augury.types import Result, Token

    Wakers = deque[Callable[[], object]]

__all__ = ["Channel", "Running", "Stream"]

_SIGNALS_S = 0.2  # how late Ctrl-C may be noticed


class Channel:
    """What the engine tells of one task: tokens while it goes on, then its outcome.

    A slow reader holds up nobody. Tokens wait here, no more than the request emits, and it keeps them for its result anyway.
    """

    def __init__(self) -> None:
        self.unread: deque[Token] = deque()
        self.outcome: Any = None  # what it came to, or the exception that ended it; None while it goes on
        self.readers: Wakers = deque()  # called at the next token or the end
        self.waiters: Wakers = deque()  # called at the end
        self.cancels: list[object] = []  # not empty: nobody wants to hear more; looked at by the engine before every round
        self._held_by: list[object] = []

    def cancel(self) -> None:
        """End the task after the round in progress; no effect on one that has ended."""
        self.cancels.append(None)

    def cancel_without(self, holder: object) -> None:
        """Cancel when `holder` is collected: by a reference's callback that no Ctrl-C can interrupt, as it could `__del__`."""
        self._held_by.append(weakref.ref(holder, self.cancels.append))

    def deliver(self, piece: Token) -> None:
        """Pass on a token."""
        self.unread.append(piece)
        self._wake(self.readers)

    def finish(self, outcome: Any) -> None:
        """Say that it is over, and what it came to or what ended it."""
        is_signal = isinstance(outcome, BaseException) and not isinstance(outcome, Exception)
        if is_signal or isinstance(outcome, StopIteration | StopAsyncIteration):
            error = AuguryError(f"a plugin or backend raised {type(outcome).__name__} on the engine's thread")
            error.__cause__ = outcome  # raised here, it would end the program, or a loop over the tokens, as if all were well
            outcome = error
        elif isinstance(outcome, Exception):
            with suppress(BaseException):  # it cannot even say what it is
                outcome = lack_of_memory(outcome) or outcome
        self.outcome = outcome
        self._wake(self.readers)
        self._wake(self.waiters)

    def _wake(self, wakers: Wakers) -> None:
        while wakers:
            try:
                wakers.popleft()()
            except Exception:  # noqa: BLE001 - the reader's event loop was closed: nobody is left to read
                self.cancel()

    def take(self) -> Token | None:
        """The next token if it is there already, else None.

        Raises:
            StopIteration: All tokens were taken, and the request has ended.
            AuguryError: The same, and it failed.
        """
        outcome = self.outcome  # looked at first, for tokens come before it
        try:
            return self.unread.popleft()
        except IndexError:
            if outcome is None:
                return None
        if isinstance(outcome, BaseException):
            raise outcome
        raise StopIteration

    def block(self, wakers: Wakers) -> None:
        """Wait on this thread until woken, unless there is something to read already."""
        gate = threading.Lock()
        gate.acquire()
        wakers.append(gate.release)
        if self._is_ready(wakers):
            return
        # only the main thread handles signals, and one that comes just before it waits would not be noticed until it is woken
        timeout = _SIGNALS_S if threading.current_thread() is threading.main_thread() else -1
        while not gate.acquire(timeout=timeout):
            pass

    async def sleep(self, wakers: Wakers) -> None:
        """The same for a task of an event loop, which goes on meanwhile."""
        import asyncio  # not before it is needed: the command line does without

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wakers.append(partial(loop.call_soon_threadsafe, _set, woken))
        if not self._is_ready(wakers):
            await woken

    def _is_ready(self, wakers: Wakers) -> bool:
        """Whether what a waker waits for came before it was there to be called."""
        return self.outcome is not None or (wakers is self.readers and bool(self.unread))


class Running:
    """A request that was submitted. Its methods may be called from any thread.

    Iterating, by `for` or `async for`, yields every token once, as it comes; an iterator that is given up cancels the request.
    `await running` is `result()` for asyncio. A `Running` that nobody holds any more cancels its request, too.

    Attributes:
        id: The request's.
    """

    def __init__(self, channel: Channel, worker: Worker, id: str) -> None:  # noqa: A002 - the field's word
        self.id = id
        self._channel = channel
        self._worker = worker  # the engine lives while someone may wait for it
        channel.cancel_without(self)

    def __iter__(self) -> Stream:
        return Stream(self, self._channel, self._worker)

    def __aiter__(self) -> Stream:
        return Stream(self, self._channel, self._worker)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._finished().__await__()

    async def _finished(self) -> Result:
        try:
            while not self.is_done:
                self._worker.check_may_wait()
                await self._channel.sleep(self._channel.waiters)
        except BaseException:  # the task was cancelled
            self.cancel()
            raise
        return self.result()

    def result(self) -> Result:
        """Wait for the end; of a cancelled request, what it had come to.

        Raises:
            AuguryError: The request failed, or would have to be waited for on the engine's own thread.
        """
        try:
            outcome: Result = self._worker.wait(self._channel)
        except BaseException:  # Ctrl-C while waiting: nobody will ask again
            self.cancel()
            raise
        return outcome

    @property
    def is_done(self) -> bool:
        """Whether the request has ended."""
        return self._channel.outcome is not None

    def cancel(self) -> None:
        """End the request after the round in progress; no effect on one that has ended."""
        self._channel.cancel()


class Stream:
    """The tokens of a request, for `for` or `async for`. Closing or dropping it, even unused, cancels the request."""

    def __init__(self, running: Running, channel: Channel, worker: Worker) -> None:
        self._running = running  # which is cancelled when nobody holds it
        self._channel = channel
        self._worker = worker
        channel.cancel_without(self)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        try:
            while (piece := self._channel.take()) is None:
                self._worker.check_may_wait()
                self._channel.block(self._channel.readers)
        except BaseException:
            self.close()
            raise
        return piece

    async def __anext__(self) -> Token:
        try:
            while (piece := self._channel.take()) is None:
                self._worker.check_may_wait()
                await self._channel.sleep(self._channel.readers)
        except StopIteration:
            raise StopAsyncIteration from None
        except BaseException:  # the task was cancelled, among others
            self.close()
            raise
        return piece

    def close(self) -> None:
        """Cancel the request unless it has ended."""
        self._channel.cancel()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # its task was cancelled meanwhile
        woken.set_result(None)
