"""Devices `ray:HOST`: hosts of a Ray cluster compute layers or draft models, as nodes that Ray starts and restarts."""

from __future__ import annotations

from functools import cached_property

from augury.backends.remote import backend, connection
from augury.devices import DeviceInfo
from augury.hookspecs import hookimpl
from augury.interfaces import Backend
from augury.plugins.ray import cluster

_PREFIX = "ray:"


class RayBackend(backend.RemoteBackend):
    """Computes on a host of a Ray cluster. It is chosen by a device's name, never for `auto`."""

    name = "ray"

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return "it computes on a Ray cluster; name its hosts, as in --device CPU,ray:HOST,CPU"

    @classmethod
    def device(cls, name: str) -> DeviceInfo | None:
        if not name.startswith(_PREFIX):
            return None
        cluster.check_ray(f"device {name} needs")
        from augury.plugins.ray import stage

        cluster.join("auto")
        host = name.removeprefix(_PREFIX)
        n_bytes = int(stage.node_of(host)["Resources"].get("memory", 0))
        return DeviceInfo(name, "a host of the Ray cluster", n_bytes, n_bytes, {"address": host})

    @cached_property
    def endpoint(self) -> connection.Endpoint:
        from augury.plugins.ray import stage

        return stage.ActorEndpoint(self.options.address)


@hookimpl
def augury_backends() -> tuple[type[Backend], ...]:
    """Offer `ray`."""
    return (RayBackend,)
