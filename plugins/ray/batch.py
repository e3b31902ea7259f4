"""`augury batch --ray`: actors on all nodes answer lines; what a dead one had is answered by others."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import ray
from attrs import define, evolve, field
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from augury.cli import load_engine, say, use_template
from augury.errors import AuguryError
from augury.plugins.ray import cluster
from augury.plugins.server.batch import answers, rows

_N_TRIES = 25  # of a line whose workers die: perhaps it kills them
_AGAIN_S = 0.2


class Actor:
    """An engine on a node. It is made empty, so that an error in loading is the caller's to tell."""

    def __init__(self) -> None:
        self._answers: answers.Answers | None = None

    def load(self, args: dict[str, Any], template: str | None, params: Mapping[str, Any]) -> None:
        """Load the engine of a command's flags. Raises AuguryError: as `Engine.load` does."""
        given = cluster.received(args)
        engine = load_engine(given, given.spec_type, given.model_draft)
        use_template(engine, template, parse_special=given.parse_special)
        self._answers = answers.Answers(engine, params, given.chat_template_kwargs)

    async def answer(self, line: rows.Line) -> answers.Row:
        """The row of a line."""
        if self._answers is None:  # it was restarted meanwhile
            raise ActorUnavailableError("the engine is not loaded", None)
        return await self._answers.answer(line)


@define(eq=False)
class _Worker:
    name: str
    actor: Any
    n_lives: int = 0
    loading: asyncio.Task[None] | None = field(default=None)


class Workers:
    """Answers lines as `Answers` does, on all nodes: each worker has twice its slots in flight.

    Attributes:
        n_ahead: So many lines they have at once.
    """

    def __init__(self, args: argparse.Namespace, template: str | None, params: Mapping[str, Any]) -> None:
        """Place a worker on each node, or with `--threads` as many as its cores allow. They load when the first line comes."""
        cluster.join(args.ray)
        self._given = cluster.sent(args), template, params
        self._n_each = 2 * args.parallel
        self._workers = [
            _Worker(name, ray.remote(Actor).options(**where, max_restarts=-1, max_concurrency=self._n_each + 1).remote())
            for name, where in _places(args.threads)
        ]
        self._free: asyncio.Queue[tuple[_Worker, int] | AuguryError] = (
            asyncio.Queue()
        )  # a place of a worker in one of its lives
        self.n_ahead = self._n_each * len(self._workers)

    async def answer(self, line: rows.Line) -> answers.Row:
        """The row of a line, whoever computed it.

        Raises:
            AuguryError: No worker could load the model, or an engine has ended.
        """
        for worker in self._workers:
            if worker.loading is None:
                self._load(worker)
        for _ in range(_N_TRIES):
            worker, n_lives = place = await self._place()
            try:
                row: answers.Row = await worker.actor.answer.remote(line)
            except RayActorError:
                if worker.n_lives == n_lives:  # the first of its lines to hear of it
                    self._load(worker)
                continue
            self._free.put_nowait(place)
            return evolve(row, worker=worker.name)
        return answers.failed(line, f"{line.where}: {_N_TRIES} workers died while they answered it")

    async def _place(self) -> tuple[_Worker, int]:
        """Wait for a place that is free."""
        while True:
            found = await self._free.get()
            if isinstance(found, AuguryError):
                self._free.put_nowait(found)  # for all who wait
                raise found
            if found[0].n_lives == found[1]:
                return found

    def _load(self, worker: _Worker) -> None:
        worker.n_lives += 1
        worker.loading = asyncio.create_task(self._loaded(worker))

    async def _loaded(self, worker: _Worker) -> None:
        """Have a worker load its engine, however often that takes, and offer its places."""
        if worker.n_lives > 1:
            say(f"worker {worker.name} died; what it had is answered by the next that is free")
        while True:
            try:
                await worker.actor.load.remote(*self._given)
            except ActorDiedError as error:  # Ray does not start it again
                self._leave_out(worker, AuguryError(str(error).split("\n", 1)[0]))
                return
            except RayActorError:
                await asyncio.sleep(_AGAIN_S)
            except AuguryError as error:
                self._leave_out(worker, error)
                return
            else:
                break
        for _ in range(self._n_each):
            self._free.put_nowait((worker, worker.n_lives))

    def _leave_out(self, worker: _Worker, error: AuguryError) -> None:
        self._workers.remove(worker)
        ray.kill(worker.actor)  # the error's traceback holds it, and it the node's cores
        message = f"worker {worker.name} cannot be used: {getattr(error, 'cause', error)}"
        say(message)
        if not self._workers:
            self._free.put_nowait(AuguryError(message))


def _places(threads: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Where workers are: the name of each, and its actor's options. A node with GPUs has one, which has them all."""
    found = []
    for node in ray.nodes():
        there = node["Resources"] if node["Alive"] else {}
        n_cpus, n_gpus, name = int(there.get("CPU", 0)), int(there.get("GPU", 0)), node["NodeManagerHostname"]
        n_workers = min(n_cpus, 1) if threads is None or n_gpus else n_cpus // threads
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        where = {"scheduling_strategy": strategy, "num_cpus": n_cpus // max(n_workers, 1), "num_gpus": n_gpus}
        found += [(name, where)] * n_workers
    if not found:
        expected = f"{threads or 1} CPUs on one of them"
        raise AuguryError(f"the Ray cluster has {len(ray.nodes())} nodes, expected {expected}; add a node, or lower --threads")
    names = [name for name, _ in found]
    return [
        (name if names.count(name) == 1 else f"{name}/{names[:i].count(name)}", where) for i, (name, where) in enumerate(found)
    ]
