"""A replica: an engine in a process that Ray Serve starts, watches and replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from attrs import evolve
from ray import serve

from augury import Result, Running
from augury.cli import load_engine
from augury.engine.adapters import Adapters
from augury.errors import AuguryError
from augury.plugins.ray import cluster
from augury.plugins.server import metrics

Pieces = list[Any]
"""Tokens and reports of a prompt's progress, as they came; the last may be the result, without its tokens."""


class Replica:
    """Answers prompts that are token ids already."""

    def __init__(self, args: dict[str, Any]) -> None:
        """Load the engine of a command's flags.

        Raises:
            AuguryError: As `Engine.load` does.
        """
        given = cluster.received(args)
        self._metrics = metrics.Metrics()
        given.registry.hooks.register(self._metrics)
        self._engine = load_engine(given, given.spec_type, given.model_draft)
        self._end: AuguryError | None = None
        self._name = serve.get_replica_context().replica_id.unique_id

    def facts(self) -> dict[str, Any]:
        """What is the same of all replicas: attributes of the engine, of adapters without their numbers."""
        found = self._engine.adapters
        adapters = Adapters([evolve(each, matrices={}) for each in found.loaded], found.scales)
        return {**{name: getattr(self._engine, name) for name in ("info", "config", "load_s")}, "adapters": adapters}

    async def answer(self, tokens: np.ndarray, params: Mapping[str, Any], *, has_progress: bool) -> AsyncIterator[Pieces]:
        """Answer a prompt; nothing is yielded first, when the request is accepted.

        Raises:
            AuguryError: As `Engine.submit` does.
        """
        found, loop = asyncio.Queue[Any](), asyncio.get_running_loop()
        if has_progress:
            params = {**params, "on_prompt": lambda progress: loop.call_soon_threadsafe(found.put_nowait, progress)}
        running: Running = await self._checked(asyncio.to_thread(partial(self._engine.submit, tokens, **params)))
        forwarding = loop.create_task(_forward(running, found))
        try:
            pieces: Pieces = []
            while not (pieces and isinstance(pieces[-1], Result)):
                yield pieces
                pieces = [await found.get()]
                while not found.empty():  # of one round
                    pieces.append(found.get_nowait())
                if isinstance(error := pieces[-1], Exception):
                    yield pieces[:-1]
                    await self._checked(_raise(error))
            yield pieces
        finally:
            forwarding.cancel()
            running.cancel()

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of an engine's method that computes no answer."""
        return await self._checked(getattr(self._engine, name)(*args, **kwargs))

    def seen(self) -> tuple[str, Any, Sequence[Any]]:
        """Its name, the engine's statistics, and figures for Prometheus."""
        stats = self._engine.stats()
        return self._name, stats, [*self._metrics.sample(stats)]

    def check_health(self) -> None:
        """Raises AuguryError where the engine has ended: Serve starts another replica."""
        if self._end is not None:
            raise self._end

    async def _checked(self, work: Any) -> Any:
        try:
            return await work
        except AuguryError as error:
            if type(error) is AuguryError:  # the engine's own end, which is no fact about the request
                self._end = error
            raise


async def _forward(running: Running, found: asyncio.Queue[Any]) -> None:
    try:
        async for token in running:
            found.put_nowait(token)
        found.put_nowait(evolve(running.result(), pieces=()))
    except Exception as error:  # noqa: BLE001 - raised again by the reader
        found.put_nowait(error)


async def _raise(error: Exception) -> None:
    raise error
