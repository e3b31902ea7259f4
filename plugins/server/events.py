"""What happens to the models, for all who listen at `/models/sse`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from anyio import to_thread

_N_WAITING = 1000  # events of a listener that does not read; it misses those after them
_EVERY_S = 0.2  # progress is told so often
T = TypeVar("T")


class Events:
    """Hands each event to every listener. Used on the event loop."""

    def __init__(self) -> None:
        self._listeners = set[asyncio.Queue[dict[str, Any] | None]]()

    def tell(self, model: str, event: str, **data: Any) -> None:
        """Hand out an event of a model; `*` is all of them."""
        for each in self._listeners:
            if not each.full():
                each.put_nowait({"model": model, "event": event, "data": data})

    def end(self) -> None:
        """Let all listeners go."""
        for each in self._listeners:
            each.put_nowait(None)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Queue[dict[str, Any] | None]]:
        """The events from now on; None is their end."""
        queue = asyncio.Queue[dict[str, Any] | None](_N_WAITING + 1)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)


async def run_watched(work: Callable[[], T], tell: Callable[[], None]) -> T:
    """Do work on another thread, and tell how far it is until it is done."""
    running = asyncio.ensure_future(to_thread.run_sync(work))
    while not running.done():
        await asyncio.wait({running}, timeout=_EVERY_S)
        tell()
    return running.result()
