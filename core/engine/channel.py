"""The objects that the engine's thread and a request's caller share.

Neither side ever waits for a lock that the other holds: Ctrl-C may stop a caller between any two steps, and must not leave the
engine waiting. A caller that has nothing to read leaves a function that wakes it up, and the engine calls it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from augury.errors import AuguryError
from augury.memory_limit import lack_of_memory
from augury.types import Token

if TYPE_CHECKING:
    import asyncio

    Wakers = deque[Callable[[], object]]

_SIGNALS_S = 0.2  # how late Ctrl-C may be noticed


class Channel:
    """The results of one task: tokens while it goes on, then its outcome.

    A slow reader holds up nobody: the request keeps its tokens for its result anyway, and a reader goes through them.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []  # of the request, which the engine adds
        self.n_taken = 0
        self.outcome: Any = None  # its result, or the exception that ended it; None while it goes on
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

    def wake_readers(self) -> None:
        """Tell those who wait that there are tokens: a reader is woken once in a round, and finds them all."""
        self._wake(self.readers)

    def finish(self, outcome: Any) -> None:
        """Say that it is over, with its result or the error that ended it."""
        is_signal = isinstance(outcome, BaseException) and not isinstance(outcome, Exception)
        if is_signal or isinstance(outcome, StopIteration | StopAsyncIteration):
            error = AuguryError(f"a plugin or backend raised {type(outcome).__name__} on the engine's thread")
            error.__cause__ = outcome  # raised here, it would end the program, or a loop over the tokens, as if all were well
            outcome = error
        elif isinstance(outcome, Exception):
            with suppress(BaseException):  # it cannot even print itself
                outcome = lack_of_memory(outcome) or outcome
        self.outcome = outcome
        self._wake(self.readers)
        self._wake(self.waiters)

    def _wake(self, wakers: Wakers) -> None:
        for _ in range(len(wakers)):  # not readers that have read meanwhile and wait again: that could go on for ever
            try:
                wakers.popleft()()
            except Exception:  # noqa: BLE001 - the reader's event loop was closed: nobody is left to read
                self.cancel()

    @property
    def has_token(self) -> bool:
        """Whether a token can be taken."""
        return self.n_taken < len(self.tokens)

    def take(self) -> Token | None:
        """The next token if it is there already, else None.

        Raises StopIteration: all tokens were taken, and the request has ended. AuguryError: the same, and it failed.
        """
        outcome = self.outcome  # looked at first, for tokens come before it
        if self.has_token:
            self.n_taken += 1
            return self.tokens[self.n_taken - 1]
        if outcome is None:
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        raise StopIteration

    def block(self, wakers: Wakers, end: float = math.inf) -> None:
        """Wait on this thread until woken, or until `end` by `monotonic`, unless there is something to read already."""
        gate = threading.Lock()
        gate.acquire()
        wakers.append(gate.release)
        if self._is_ready(wakers):
            return
        # only the main thread handles signals, and one that comes just before it waits would not be noticed until it is woken
        longest = _SIGNALS_S if threading.current_thread() is threading.main_thread() else threading.TIMEOUT_MAX
        while not gate.acquire(timeout=max(min(end - monotonic(), longest), 0)):
            if monotonic() >= end:
                return

    async def sleep(self, wakers: Wakers) -> None:
        """The same for a task of an event loop, which goes on meanwhile."""
        import asyncio  # not before it is needed: the command line does without

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wakers.append(partial(loop.call_soon_threadsafe, _set, woken))
        if not self._is_ready(wakers):
            await woken

    def _is_ready(self, wakers: Wakers) -> bool:
        """Whether a waker's event came before the waker was registered."""
        return self.outcome is not None or (wakers is self.readers and self.has_token)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # its task was cancelled meanwhile
        woken.set_result(None)
