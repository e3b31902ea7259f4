"""Devices that backends compute on, and which of them a model's layers are to be placed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from augury.errors import OptionError

CPU = "CPU"


@frozen
class DeviceInfo:
    """Something that a backend computes on."""

    name: str  # as --device takes it: CPU, CUDA0
    description: str  # its description
    n_bytes: int  # of its memory
    n_bytes_free: int
    options: Mapping[str, Any] = field(factory=dict, eq=False)  # of the backend, that choose it


def _gpu_layers(value: Any) -> str | int | None:
    if value is None or value in ("auto", "all"):
        return value
    try:
        n = int(value)
    except (TypeError, ValueError):
        n = -2
    if n < -1:
        raise OptionError(f"gpu_layers is {value!r}, expected a number of layers, 'auto' or 'all'")
    return "auto" if n == -1 else n  # as llama.cpp


def _names(value: Any) -> tuple[str, ...] | None:
    names = value.split(",") if isinstance(value, str) else value
    if names is None:
        return None
    names = tuple(name.strip() for name in names)
    found = tuple(name for i, name in enumerate(names) if name == CPU or name not in names[:i])
    if not all(found) or ("none" in found and len(found) > 1):
        raise OptionError(f"devices are {value!r}, expected names such as CUDA0,CUDA1, or none")
    return () if found == ("none",) else found


def _shares(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        shares = tuple(float(each) for each in (value.replace("/", ",").split(",") if isinstance(value, str) else value))
    except ValueError:
        shares = ()
    if not (sum(shares) > 0 and all(0 <= share < float("inf") for share in shares)):
        raise OptionError(f"tensor_split is {value!r}, expected shares of the devices such as 3,1")
    return shares


@frozen
class Placement:
    """Which layers of a model GPUs compute: the last ones. The CPU computes those before; if nothing is said, the backend all.

    The output counts as a layer, after all others, as in llama.cpp. A layer's KV cache is where the layer is. Where the CPU is
    named after another device, all named devices share all layers in their order, each as often as it is named.
    """

    devices: tuple[str, ...] | None = field(default=None, converter=_names)  # by name, in order; none: (); None: the backend's
    gpu_layers: str | int | None = field(default=None, converter=_gpu_layers)  # a number, `all`, or `auto`: as many as fit
    # of the devices; None: each as much as fits
    tensor_split: tuple[float, ...] | None = field(default=None, converter=_shares)

    @property
    def of_others(self) -> Placement:
        """The placement of another model of the engine, unless it has flags of its own: the CPU where that shares layers."""
        if CPU in (self.devices or ())[1:]:
            return Placement(())
        return self if self == Placement() else Placement(self.devices, "auto")


def as_placement(value: Any) -> Placement:
    """A caller's placement, or an empty one for None."""
    if not isinstance(value, Placement | None):
        raise OptionError(f"placement is {value!r}, expected a Placement, such as Placement(gpu_layers='auto')")
    return value or Placement()
