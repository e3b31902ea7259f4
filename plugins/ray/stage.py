"""Stages on hosts of a Ray cluster: an actor holds the socket that `augury node` opens elsewhere, and Ray restarts it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from time import sleep
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from augury import Registry
from augury.backends.remote import connection, node
from augury.devices import CPU
from augury.errors import LostDeviceError, OptionError

_START_S = 60.0  # in which an actor starts, imports included


class NodeActor:
    """A node on a thread of an actor's process, with which it ends."""

    def __init__(self, key: bytes, n_cpus: int, *, has_gpu: bool) -> None:
        """Listen at the host's address in the cluster, for those who have the key."""
        registry, host = Registry.discover(), ray.util.get_node_ip_address()
        gpus = (
            kind.name
            for kind in registry.backends.values()
            if kind.unavailable_reason() is None and any(each.name != CPU for each in kind.devices())
        )
        self._node = node.Node(
            f"[{host}]:0" if ":" in host else f"{host}:0",
            registry=registry,
            backend=next(gpus, "auto") if has_gpu else "auto",
            threads=n_cpus if 0 < n_cpus < (os.cpu_count() or 1) else None,  # of a host that Ray has a part of
            key=key,
        )
        threading.Thread(target=self._node.run, name="augury-node", daemon=True).start()

    def address(self) -> str:
        """Where it listens, another port after each restart."""
        return self._node.address


class ActorEndpoint(connection.Endpoint):
    """An actor on a host, placed when it is first connected to. Nobody else has its key."""

    def __init__(self, host: str) -> None:
        self._host, self._key = host, connection.zmq_library().curve_keypair()[1]
        self._actor: Any = None
        self._asked: Any = None  # for its address, which it tells as soon as it runs

    @property
    def name(self) -> str:
        return f"ray:{self._host}"

    def connect(self, wait_s: float | None = None) -> connection.Connection:
        try:
            if self._actor is None:
                self._actor = self._placed()
            if self._asked is None:
                self._asked = self._actor.address.remote()
            address = ray.get(self._asked, timeout=_START_S if wait_s is None else wait_s)
        except GetTimeoutError:
            raise LostDeviceError(f"no actor has started on {self.name} yet; ray status tells what the host has left") from None
        except (RayError, OptionError) as error:
            # Ray does not start it again: the host is gone, and may be back as another node
            self._actor = self._asked = None
            if wait_s is not None:
                sleep(wait_s)
            raise LostDeviceError(f"{self.name}: {str(error).splitlines()[0]}") from error
        self._asked = None
        return connection.Connection(address, self._key)

    def close(self) -> None:
        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)
        self._actor = self._asked = None

    def _placed(self) -> Any:
        there = node_of(self._host)
        n_gpus = min(int(there["Resources"].get("GPU", 0)), 1)
        return (
            ray.remote(NodeActor)
            .options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(there["NodeID"], soft=False),
                num_cpus=0,  # whoever names a host wants it, whatever else Ray has there
                num_gpus=n_gpus,
                max_restarts=-1,
                max_task_retries=-1,
            )
            .remote(self._key, int(there["Resources"].get("CPU", 0)), has_gpu=n_gpus > 0)
        )


def node_of(host: str) -> Mapping[str, Any]:
    """The node of the cluster that has this name, address, host name or id. Raises OptionError: there is none, or several."""
    nodes = [each for each in ray.nodes() if each["Alive"]]
    named = ("NodeName", "NodeManagerAddress", "NodeManagerHostname", "NodeID")
    found = [each for each in nodes if host in (each[name] for name in named)]
    if len(found) != 1:
        known = ", ".join(f"{each['NodeName']} ({each['NodeManagerHostname']}, {each['NodeID']})" for each in nodes)
        raise OptionError(f"ray:{host} is {len(found)} nodes of the cluster, expected one of {known}")
    return found[0]
