"""A request that was submitted, as its caller holds it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self

from augury.engine.channel import Channel
from augury.engine.worker import Worker
from augury.types import Result, Token


class Running:
    """A request that was submitted. Its methods may be called from any thread.

    Iterating, by `for` or `async for`, yields every token once, as it comes; an iterator that is given up cancels the request.
    `await running` is `result()` for asyncio. A `Running` that is garbage-collected cancels its request, too.

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

    __aiter__ = __iter__

    def __await__(self) -> Generator[Any, None, Result]:
        return self._finished().__await__()

    async def _finished(self) -> Result:
        try:
            outcome: Result = await self._worker.wait_async(self._channel)
        except BaseException:  # the task was cancelled, among others
            self.cancel()
            raise
        return outcome

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; a cancelled request gives its tokens so far.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes.

        Raises:
            TimeoutError: The request has not ended within that time, and goes on.
            AuguryError: The request failed, or would have to be waited for on the engine's own thread.
        """
        try:
            outcome: Result = self._worker.wait(self._channel, timeout)
        except TimeoutError:
            raise
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

    __aiter__ = __iter__

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

    @property
    def has_token(self) -> bool:
        """Whether a token can be read without waiting; those of one round come together."""
        return self._channel.has_token

    def close(self) -> None:
        """Cancel the request unless it has ended."""
        self._channel.cancel()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()
