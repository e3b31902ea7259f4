"""Emitters of connections, by which blocks read and write residual streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from augury.blocks.block import AllStreams, Connection
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.blocks.plan import ModelPlan


class ConnectionEmitter(ABC):
    """Writes the kernels of a connection on a tape of `numba-cpu` or `numba-cuda`, where streams are `tape.streams`.

    Attributes:
        kernels: The kernels of `numba-cpu`, the slowest to compile first.
        n_streams: S, of the embedding.
        size: E.
    """

    kernels: Sequence[Any] = ()

    def __init__(self, connection: Any, plan: ModelPlan) -> None:
        self.connection, self.plan = connection, plan
        self.n_streams, self.size = plan.embedding.n_streams, plan.embedding.n_embd

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that it works in, by name. Connections share the memory of one name."""
        return {}

    def scratch_bytes(self) -> int:
        """Bytes that each thread of `numba-cpu` needs for itself while it runs a kernel of the connection."""
        return 0

    @abstractmethod
    def read(self, tape: Any) -> None:
        """Write the rows that a block sees, and set `tape.seen` to them if they are not x.

        On `numba-cuda` the block adds to `tape.x`, which are to be zeros or a stream.
        """

    def write(self, tape: Any) -> None:  # noqa: B027 - some write nothing
        """Write the rows that the block gives to the streams: `tape.take_added` of `numba-cpu`, `tape.x` of `numba-cuda`."""


def connection_emitters(plan: ModelPlan, backend: str, of_all_streams: type) -> dict[Connection, Any]:
    """The emitters of a plan's connections, `of_all_streams` that of `AllStreams`.

    Raises:
        UnsupportedError: A connection has none for the backend, or something would read or add to one of several streams.
    """
    n_streams, outputs = plan.embedding.n_streams, (plan.output, *(each.output for each in plan.nextn))
    if n_streams > 1 and any(output.weight is not None and output.connection is None for output in outputs):
        raise UnsupportedError("several residual streams, of which the output reads one; use backend reference")
    for layer in plan.every_layer:
        odd = [f"{type(block).__name__}.is_parallel" for block in layer.blocks if block.is_parallel]
        odd += [f"{type(block).__name__} without a connection" for block in layer.blocks if block.connection is None]
        if n_streams > 1:
            odd += ["norm"] * (layer.norm is not None) + ["scale"] * (layer.scale != 1.0)
            odd += [f"{type(block).__name__}.post_norm" for block in layer.blocks if getattr(block, "post_norm", None)]
            odd += ["Router.is_early" for block in layer.blocks if hasattr(block, "router") and block.router.is_early]
        if odd and (n_streams > 1 or any(block.connection for block in layer.blocks)):
            raise UnsupportedError(f"several residual streams in a layer with {odd[0]}; use backend reference")
    kinds = {each: of_all_streams if isinstance(each, AllStreams) else each.kernel_for(backend) for each in plan.connections}
    if unknown := [type(each).__name__ for each, kind in kinds.items() if kind is None]:
        raise UnsupportedError(f"connection {unknown[0]}, which backend {backend} does not compute; use backend reference")
    return {each: kind(each, plan) for each, kind in kinds.items()}
