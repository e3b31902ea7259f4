"""Which replica answers: the one that has to process the fewest tokens, those of the requests before it included."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from xxhash import xxh3_64

_N_BLOCK = 16  # tokens
_N_HELD = 1 << 16  # blocks and sessions of a replica that are known: a million tokens, more than slots hold
_BESIDE = 32  # tokens: what a request that is answered beside others costs them
_BEFORE = 128  # likewise, of one that is waited for
_N_ENDED = 64  # requests whose ends are remembered: some end before it is told that they were routed


class Router(RequestRouter):  # type: ignore[misc]
    """Routes by session and by longest shared prefix, against load. What nobody holds goes to the least loaded."""

    def initialize_state(self, n_slots: int) -> None:
        """Begin without knowledge; called by Serve, with the slots of each replica."""
        self._n_slots = n_slots
        self._held = defaultdict[ReplicaID, OrderedDict[int | str, None]](OrderedDict)  # the oldest first
        self._running = defaultdict[ReplicaID, set[str]](set)
        self._ended = deque[str](maxlen=_N_ENDED)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, the best first; ties at random."""
        names: Sequence[int | str] = ()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where none accepts it, Serve would ask again at once
            names = [*_names(pending_request)]
        costs = {each.replica_id: (self._cost(each.replica_id, names), random.random()) for each in candidate_replicas}  # noqa: S311
        return [[each] for each in sorted(candidate_replicas, key=lambda each: costs[each.replica_id])]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:  # noqa: ARG002
        """Note what the replica holds from now on."""
        name = pending_request.metadata.internal_request_id
        if name not in self._ended:
            self._running[replica_id].add(name)
        held = self._held[replica_id]
        for name in _names(pending_request):
            held[name] = None
            held.move_to_end(name)
        while len(held) > _N_HELD:
            held.popitem(last=False)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that it has a request less; what is asked of all replicas at once ends, too, and was never routed."""
        if internal_request_id in self._running[replica_id]:
            self._running[replica_id].remove(internal_request_id)
        else:
            self._ended.append(internal_request_id)

    def _cost(self, replica: ReplicaID, names: Sequence[int | str]) -> int:
        """Tokens to process until the request is answered, but for a constant."""
        held, n_running = self._held[replica], len(self._running[replica])
        has_session = any(isinstance(name, str) and name in held for name in names)
        n_shared = len(names) if has_session else next((i for i, name in enumerate(names) if name not in held), len(names))
        return _BESIDE * n_running + _BEFORE * max(n_running - self._n_slots + 1, 0) - _N_BLOCK * n_shared


def _names(request: PendingRequest) -> Iterator[int | str]:
    """The beginnings of a request's prompt, block by block, each as a hash of all before it; then its session."""
    if request.metadata.call_method != "answer":
        return
    digest, tokens = xxh3_64(), np.asarray(request.args[0], np.int32)
    for start in range(0, len(tokens) - _N_BLOCK + 1, _N_BLOCK):
        digest.update(tokens[start : start + _N_BLOCK].tobytes())
        yield digest.intdigest()
    if request.metadata.session_id:
        yield request.metadata.session_id
