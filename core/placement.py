"""Chooses the devices of a model, layer by layer: one backend, or stages on several devices."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate

import attrs
from attrs import frozen

from augury.blocks import ModelPlan
from augury.devices import CPU, DeviceInfo, Placement
from augury.errors import CapacityError, OptionError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.interfaces import Backend
from augury.log import get_logger
from augury.memory_limit import size_text
from augury.options import build
from augury.registry import Registry
from augury.stages import Stage, StagedBackend
from augury.types import ModelOptions

_SPARE = 1 << 30  # bytes of a GPU that `auto` leaves free, as llama.cpp does, or a sixteenth of a small one
_ADVICE = "-ngl auto places as many layers there as fit; or ask for a smaller context or fewer slots"


_Devices = Callable[[type["Backend"]], Sequence["DeviceInfo"]]


@frozen(eq=False)
class _Gpu:
    backend: Backend
    device: DeviceInfo

    def spare(self, *, is_auto: bool) -> int:
        return self.device.n_bytes_free - (min(_SPARE, self.device.n_bytes // 16) if is_auto else 0)


def place(registry: Registry, named: Backend, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> Backend:
    """The backend of a plan under `options.placement`: layers on GPUs, and those before them on the CPU; or the `named` one.

    The registry has others, for devices that `named` does not compute on. Raises OptionError: there is no such device.
    UnsupportedError: the model cannot be cut there. CapacityError: the layers do not fit.
    """
    wanted = options.placement
    if wanted == Placement():
        return named
    # asked once: a driver takes its time
    devices: _Devices = cache(lambda kind: kind.devices() if kind.unavailable_reason() is None else ())
    gpus = [] if wanted.gpu_layers == 0 else _gpus(registry, named, wanted, devices)
    host = partial(_host, registry, named, devices)
    if not gpus:
        return host()
    names = wanted.devices or ()
    is_shared = CPU in names[1:]
    if is_shared:  # all that are named share all layers, the CPU like the others
        if wanted.gpu_layers is not None:
            raise OptionError(
                f"gpu_layers is {wanted.gpu_layers!r}, but the CPU is named after another device: then all devices that are "
                "named share the layers, by tensor_split; leave one of the two out"
            )
        by_name, cpu = {gpu.device.name: gpu for gpu in gpus}, host()
        by_name[CPU] = _Gpu(cpu, next(device for device in devices(type(cpu)) if device.name == CPU))
        gpus = [by_name[name] for name in names]
        options = attrs.evolve(options, placement=attrs.evolve(wanted, tensor_split=wanted.tensor_split or [1.0] * len(gpus)))
    return _Placing(host, gpus, file, plan.for_context(options.n_ctx), options).backend()


def _gpus(registry: Registry, named: Backend, wanted: Placement, devices: _Devices) -> list[_Gpu]:
    """The GPUs that layers are to be placed on, in order; of the named backend, if it has some, its own first."""
    found: dict[str, _Gpu] = {}
    reasons = []
    for kind in dict.fromkeys((type(named), *registry.backends.values())):
        if (reason := kind.unavailable_reason()) is not None:
            reasons.append(f"backend {kind.name} cannot run here: {reason}")
            continue
        base = named.options if kind is type(named) else build(kind.options_class, {}, f"--backend {kind.name}")
        own = {name: getattr(base, name) for name in attrs.fields_dict(type(base))}
        for device in sorted(devices(kind), key=lambda each: any(own[name] != it for name, it in each.options.items())):
            if device.name != CPU:
                found.setdefault(device.name, _Gpu(kind(attrs.evolve(base, **device.options)), device))
    why = "".join(f"; {reason}" for reason in reasons)
    if wanted.devices is None:
        own_gpus = [gpu for gpu in found.values() if type(gpu.backend) is type(named)]
        if not found and wanted.gpu_layers is not None:
            get_logger("augury.placement").warning("no GPU can be used; the CPU computes all layers", reason=why.lstrip("; "))
        return own_gpus or list(found.values())
    for name in wanted.devices:
        if name not in found and name != CPU and (gpu := _by_name(registry, name)) is not None:
            found[name] = gpu
        if name not in found and name != CPU:
            known = ", ".join((*found, CPU, "none"))
            raise OptionError(f"there is no device {name!r}; expected some of {known}{why}")
    return [found[name] for name in wanted.devices if name != CPU]


def _by_name(registry: Registry, name: str) -> _Gpu | None:
    for kind in registry.backends.values():
        if (device := kind.device(name)) is not None:
            return _Gpu(kind(build(kind.options_class, dict(device.options), name)), device)
    return None


def _host(registry: Registry, named: Backend, devices: _Devices) -> Backend:
    """The backend of the CPU: the named one, if it does, or else the preferred one."""

    def reason(kind: type[Backend]) -> str | None:
        return None if any(device.name == CPU for device in devices(kind)) else "it does not compute on the CPU"

    if reason(type(named)) is None:
        return named
    kind = registry.choose("backend", None, reason)
    host: Backend = kind(build(kind.options_class, {}, f"--backend {kind.name}"))
    return host


class _Placing:
    """One model's placement. Layers are counted with the output, which is the last."""

    def __init__(
        self, host: Callable[[], Backend], gpus: Sequence[_Gpu], file: ModelFile, plan: ModelPlan, options: ModelOptions
    ) -> None:
        self._host, self._gpus, self._options = host, gpus, options
        self._what = f"{file.path.name} with {options.slots_in_words}"
        self._n, self._architecture = len(plan.layers) + 1, plan.architecture
        self._starts = (0, *plan.cuts())

        @cache
        def n_bytes(gpu: _Gpu, first: int, end: int) -> int:
            part = plan.stage(first, end)
            needed = gpu.backend.memory_needed(file, part if gpu.backend.computes_mtp else part.without_mtp(), options)
            return sum(line.n_bytes for line in needed)

        self._n_bytes: Callable[[_Gpu, int, int], int] = n_bytes

    def backend(self) -> Backend:
        wanted = self._options.placement
        if wanted.gpu_layers == "auto":
            return self._fitting()
        n_layers = self._n if wanted.gpu_layers in (None, "all") else min(int(wanted.gpu_layers or 0), self._n)
        first = self._n - n_layers
        if first not in self._starts:
            counts = ", ".join(str(self._n - start) for start in reversed(self._starts))
            raise UnsupportedError(
                f"-ngl {n_layers} of {self._n} layers, but a model of architecture {self._architecture!r} cannot be cut there; "
                f"expected one of {counts}, or auto"
            )
        stages = self._stages(first, is_auto=False)
        self._check(stages)
        return self._joined(stages)

    def _fitting(self) -> Backend:
        def fits(first: int) -> bool:
            return self._lack(self._stages(first, is_auto=True), is_auto=True) is None

        if (n_not := bisect_left(self._starts, True, key=fits)) < len(self._starts):
            return self._joined(self._stages(self._starts[n_not], is_auto=True))
        facts = {gpu.device.name: f"{gpu.device.n_bytes_free / 2**30:.1f} GiB free" for gpu in self._gpus}
        get_logger("augury.placement").warning("no layer fits on a GPU; the CPU computes all", model=self._what, **facts)
        return self._host()

    def _stages(self, first: int, *, is_auto: bool) -> list[tuple[_Gpu, int, int]]:
        """Which GPU has which layers from `first` on: by shares, or each as many as fit, the last one the rest."""
        shares, stages = self._options.placement.tensor_split, list[tuple[_Gpu, int, int]]()
        ends = (*(start for start in self._starts if start > first), self._n)
        limits = [self._n] * len(self._gpus)
        if shares is not None:
            if len(shares) > len(self._gpus):
                raise OptionError(f"tensor_split has {len(shares)} shares of {len(self._gpus)} devices; leave some out")
            sums = list(accumulate((*shares, *[0.0] * (len(self._gpus) - len(shares)))))
            limits = [first + round((self._n - first) * each / sums[-1]) for each in sums]
        for gpu, limit in zip(self._gpus, limits, strict=True):
            if shares is not None:
                end = max((end for end in ends if end <= limit), default=first)
            elif gpu is self._gpus[-1]:
                end = self._n
            else:
                left = [first, *(each for each in ends if each > first)]
                n_bytes = partial(self._n_bytes, gpu, first)
                end = left[max(bisect_right(left, gpu.spare(is_auto=is_auto), lo=1, key=n_bytes) - 1, 0)]
            if end > first:
                stages.append((gpu, first, end))
                first = end
        return stages

    def _lack(self, stages: Sequence[tuple[_Gpu, int, int]], *, is_auto: bool) -> _Gpu | None:
        lacking = (gpu for gpu, *ends in stages if self._n_bytes(gpu, *ends) > gpu.spare(is_auto=is_auto))
        return next(lacking, None)

    def _check(self, stages: Sequence[tuple[_Gpu, int, int]]) -> None:
        if self._lack(stages, is_auto=False) is None:
            return
        lines = [
            f"{gpu.device.name} ({gpu.device.description}) needs {size_text(self._n_bytes(gpu, first, end))} for "
            f"{_layers(first, end, self._n)}, {size_text(gpu.device.n_bytes_free)} of {size_text(gpu.device.n_bytes)} are free"
            for gpu, first, end in stages
        ]
        raise CapacityError(f"{self._what} does not fit: {'; '.join(lines)}; {_ADVICE}")

    def _joined(self, stages: Sequence[tuple[_Gpu, int, int]]) -> Backend:
        first = stages[0][1]
        made = [Stage(gpu.backend, begin, end, gpu.device.name) for gpu, begin, end in stages]
        if first:
            made.insert(0, Stage(self._host(), 0, first, CPU))
        if len(made) == 1:
            return made[0].backend
        told = ", ".join(f"{stage.device}: {_layers(stage.first, stage.end, self._n)}" for stage in made)
        get_logger("augury.placement").info("the model is computed in stages", model=self._what, stages=told)
        return StagedBackend(made)


def _layers(first: int, end: int, n: int) -> str:
    last = min(end, n - 1) - 1
    several = "" if last < first else f"layer {first}" if first == last else f"layers {first} to {last}"
    return " and ".join(each for each in (several, "the output" if end == n else "") if each)
