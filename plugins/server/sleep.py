"""A server that nobody asks lets go of its model, and loads it again when somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread

from augury.log import get_logger
from augury.plugins.server.server import Server


class Sleep:
    """Watches over the requests of a server. Made and used on the event loop."""

    def __init__(self, server: Server, idle_s: float) -> None:
        self._server = server
        self._idle_s = idle_s
        self._changing = asyncio.Lock()  # held while the engine is closed, or loaded again
        self._n_requests = 0
        self._last_at = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Keep the engine for a request, and wait for it if it has to be loaded."""
        self._n_requests += 1
        try:
            async with self._changing:
                if self._server.is_sleeping:
                    await to_thread.run_sync(self._server.wake)
            yield
        finally:
            self._n_requests -= 1
            self._last_at = asyncio.get_running_loop().time()

    async def watch(self) -> None:
        """Close the engine whenever no request was there for long enough; never returns."""
        while True:
            idle_s = 0.0 if self._n_requests else asyncio.get_running_loop().time() - self._last_at
            if idle_s < self._idle_s or self._server.is_sleeping or not self._server.is_ready:
                await asyncio.sleep(max(self._idle_s - idle_s, 0.05))
                continue
            async with self._changing:  # which nobody holds while there is no request
                try:
                    await to_thread.run_sync(self._server.sleep)
                except Exception as error:  # noqa: BLE001 - of a plugin; the next request does without the plugin's leftovers
                    message = f"{type(error).__name__}: {error}"
                    get_logger("augury.server").error("the model could not be unloaded cleanly", error=message)
