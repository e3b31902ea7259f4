"""Emitters write the kernels of operations, and of blocks' connections, on a backend's tape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import frozen

from augury.errors import UnsupportedError
from augury.lowering.operation import Operation

if TYPE_CHECKING:
    from augury.blocks.plan import ModelPlan
    from augury.types import ModelOptions

_Operation = TypeVar("_Operation", bound=Operation)
_Emitter = TypeVar("_Emitter", bound=Callable[..., Any])


@frozen(eq=False)
class Scope:
    """The part of a block that the emitters of its operations share."""

    options: ModelOptions  # how the model is loaded
    caches: Sequence[Any]  # the block's, of positions
    sources: Sequence[Sequence[Any]]  # those of the first block with caches of each layer before

    def cache(self, place: int, source: int | None = None) -> Any:
        """A cache by its place in `Block.cached`, of the block or of a layer."""
        return (self.caches if source is None else self.sources[source])[place]


class OperationEmitter(ABC, Generic[_Operation]):
    """Writes the kernels of one operation on a tape. Each backend has a class derived from this one."""

    def __init__(self, operation: Any, scope: Any) -> None:
        self.operation: _Operation = operation
        self.scope = scope
        self.check()

    def check(self) -> None:
        """Refuse an operation that its kernels do not compute.

        Raises:
            UnsupportedError: They do not.
        """

    @abstractmethod
    def emit(self, tape: Any) -> None:
        """Write its kernels. May be called for any number of tapes."""

    def emit_states(self, tape: Any) -> None:
        """Write only the kernels that bring its state up to date, for a pass over no tokens."""


class Emitters:
    """A backend's table: the emitter of each operation that it computes. Packages may add those of theirs."""

    def __init__(self, backend: str) -> None:
        self.backend, self._kinds = backend, dict[type[Operation], Any]()

    def of(self, *operations: type[Operation]) -> Callable[[_Emitter], _Emitter]:
        """Register the decorated class, or a function of an operation and its `Scope`, as the emitter of operations."""

        def register(emitter: _Emitter) -> _Emitter:
            self._kinds |= dict.fromkeys(operations, emitter)
            return emitter

        return register

    def function(
        self, parent: type, place: str, operations: Sequence[type[Operation]], attributes: Mapping[str, Any]
    ) -> Callable[[_Emitter], _Emitter]:
        """Register the decorated function of an operation, its emitter's `place` and a tape, which writes the kernels.

        The emitter is of a class of its own, derived from `parent`, with some attributes.
        """

        def register(write: _Emitter) -> _Emitter:
            def emit(emitter: OperationEmitter[Any], tape: Any) -> None:
                write(emitter.operation, getattr(emitter, place), tape)

            self.of(*operations)(type(getattr(write, "__name__", ""), (parent,), {"emit": emit, **attributes}))
            return write

        return register

    def find(self, operation: Operation, block: str) -> Any:
        """The emitter of a block's operation, of the table or its own `kernels`. Raises UnsupportedError: there is none."""
        found, name = self._kinds.get(type(operation)) or operation.kernel_for(self.backend), type(operation).__name__
        if found is None:
            raise UnsupportedError(
                f"block {block} has the operation {name}, which backend {self.backend} does not compute; use another backend"
            )
        return found


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
