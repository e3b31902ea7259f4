"""The backend of devices `node:HOST:PORT`: it has a node compute a plan, by a backend and a copy of the model of its own."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.remote.connection import Endpoint
from augury.backends.remote.wire import Message, spec_of
from augury.devices import DeviceInfo
from augury.errors import UnsupportedError
from augury.interfaces import Backend, Model, Progress
from augury.options import option
from augury.types import Allocation, ModelOptions, StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.blocks import ModelPlan
    from augury.files.gguf import ModelFile

_PREFIX = "node:"
SENT_OPTIONS = ("n_slots", "n_ctx", "cache_type_k", "cache_type_v", "draft_max")
"""Fields of `ModelOptions` that a node loads by; threads and devices are its own."""
_VERSIONS = ("augury", "numba", "llvmlite", "numpy")  # which kernels are compiled from and by


@frozen
class RemoteOptions:
    """Options of `remote`, which the name of a device sets."""

    address: str = option("", help="where the node is, as the name of a device says after its kind")


class RemoteBackend(Backend):
    """Computes on a node. It is chosen by a device's name, never for `auto`."""

    name = "remote"
    computes_mtp = True
    options_class = RemoteOptions
    options: RemoteOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return "it computes on other machines; name them, as in --device CPU,node:HOST:PORT,CPU"

    @classmethod
    def device(cls, name: str) -> DeviceInfo | None:
        if not name.startswith(_PREFIX):
            return None
        address = name.removeprefix(_PREFIX)
        found = hello(Endpoint(address))
        n_bytes, backend = found.whole("n_bytes"), found.text("backend")
        return DeviceInfo(name, f"{backend} on {address}", n_bytes, n_bytes, {"address": address})

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options)
        self._file: ModelFile | None = None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The node."""
        return Endpoint(self.options.address)

    @cached_property
    def computed_by(self) -> str:
        return hello(self.endpoint).text("backend")

    @property
    def title(self) -> str:
        return self.computed_by

    def memory_needed(self, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> Sequence[Allocation]:
        self._file = file  # which sizes of slots are asked of, next and later
        return super().memory_needed(file, plan, options)

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        """See `Backend.state_spec`; the node, which may compute by any backend, is asked.

        Raises:
            UnsupportedError: `memory_needed` was not asked before, which tells the model's file.
        """
        if self._file is None:
            raise UnsupportedError(f"the file of {plan.architecture} is not known to the node yet; ask memory_needed first")
        return spec_of(asked(self.endpoint, request_of("spec", self._file, plan, options)))

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        from augury.backends.remote.model import RemoteModel

        progress(f"load layers on {self.endpoint.name}", 0, 1)
        model = RemoteModel(self.endpoint, request_of("load", file, plan, options), file, plan, options)
        progress(f"load layers on {self.endpoint.name}", 1, 1)
        return model


def versions() -> dict[str, str]:
    """The versions that bits depend on, by name; a node refuses others than its own."""
    return {name: metadata.version(name) for name in _VERSIONS}


def plan_digest(plan: ModelPlan) -> str:
    """A hash of all that a plan says."""
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(repr(plan).encode())


def hello(endpoint: Endpoint) -> Message:
    """What a node tells of itself."""
    return asked(endpoint, Message("hello", {"versions": versions()}))


def asked(endpoint: Endpoint, message: Message) -> Message:
    """A node's answer to one question."""
    with closing(endpoint.connect()) as connection:
        return connection.ask(message)


def request_of(kind: str, file: ModelFile, plan: ModelPlan, options: ModelOptions) -> Message:
    """Ask a node for a plan of its own copy of a model, which is named by reference and digest.

    Raises:
        UnsupportedError: The file was put together of several, or there are adapters.
    """
    for each in (file, file.target):
        if each is not None and not each.reference:
            raise UnsupportedError(
                f"{each.path}: was put together here, and a node opens its own copy; compute it on a device here"
            )
    of_file = {"reference": file.reference, "digest": file.digest, "quant": file.quant or ""}
    lender = file.target
    of_target = {"target": "" if lender is None else lender.reference, "target_digest": "" if lender is None else lender.digest}
    how = {name: getattr(options, name) for name in SENT_OPTIONS} | {"window": -1 if options.window is None else options.window}
    if plan.n_adapters:
        raise UnsupportedError("nodes compute no adapters; load the model without them, or on this machine alone")
    of_plan = {"span": plan.span, "plan": plan_digest(plan.for_context(options.n_ctx))}
    return Message(kind, {**of_file, **of_target, **how, **of_plan, "versions": versions()})
