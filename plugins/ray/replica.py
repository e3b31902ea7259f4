"""A replica: an engine in a process that Ray Serve starts, watches and replaces; and the deployment of all of them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import ray
from attrs import evolve
from ray import serve
from ray.serve.config import RequestRouterConfig

from augury import Result, Running
from augury.cli import load_engine
from augury.engine.adapters import Adapters
from augury.errors import AuguryError
from augury.plugins.ray import cluster, routing
from augury.plugins.server import metrics

Pieces = list[Any]
"""Tokens and reports of a prompt's progress, as they came; the last may be the result, without its tokens."""
REPLICA = "replica"
"""The name of the deployment that computes."""
N_MOST = 1 << 16
"""Requests of a replica: the engine's queue has its own limit."""


class Replica:
    """Answers prompts that are token ids already."""

    def __init__(self, args: dict[str, Any]) -> None:
        """Load the engine of a command's flags. Raises AuguryError: as `Engine.load` does."""
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
        with self._watched():
            running: Running = await asyncio.to_thread(partial(self._engine.submit, tokens, **params))
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
                    with self._watched():
                        raise error
            yield pieces
        finally:
            forwarding.cancel()
            running.cancel()

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of an engine's method that computes no answer."""
        with self._watched():
            return await getattr(self._engine, name)(*args, **kwargs)

    def seen(self) -> tuple[str, Any, Sequence[Any]]:
        """Its name, the engine's statistics, and figures for Prometheus."""
        stats = self._engine.stats()
        return self._name, stats, [*self._metrics.sample(stats)]

    def check_health(self) -> None:
        """Raises AuguryError where the engine has ended: Serve starts another replica."""
        if self._end is not None:
            raise self._end

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note where the engine ends."""
        try:
            yield
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


def replicas_of(args: argparse.Namespace) -> Any:
    """The deployment of a command's flags that computes."""
    least, _, most = (args.replicas or "1").partition("-")
    n_replicas = {"num_replicas": int(least)}
    if most:
        scaling = {"min_replicas": int(least), "max_replicas": int(most), "target_ongoing_requests": args.parallel}
        n_replicas = {"autoscaling_config": scaling}  # type: ignore[dict-item]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    n_each = -(-int(most or least) // max(len(nodes), 1))
    n_cpus = args.threads or max(int(min((node["CPU"] for node in nodes), default=1)) // n_each, 1)
    return (
        serve.deployment(Replica)
        .options(
            **n_replicas,
            name=REPLICA,
            ray_actor_options={"num_cpus": n_cpus, "num_gpus": min((node.get("GPU", 0) for node in nodes), default=0) / n_each},
            max_ongoing_requests=N_MOST,
            graceful_shutdown_timeout_s=args.shutdown_timeout,
            health_check_period_s=2,
            request_router_config=RequestRouterConfig(
                request_router_class=routing.Router, request_router_kwargs={"n_slots": args.parallel}
            ),
        )
        .bind({**cluster.sent(args), "threads": n_cpus})
    )
