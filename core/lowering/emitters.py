"""Emitters write the kernels of a plan on a backend's tape: of operations, of blocks, of their connections, of the whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import evolve, frozen

from augury.errors import UnsupportedError
from augury.lowering.operation import Operation
from augury.types import StateSpec

if TYPE_CHECKING:
    from augury.blocks.block import Block, Connection
    from augury.blocks.plan import ModelPlan, MtpLayer
    from augury.blocks.transformer import Output
    from augury.types import ModelOptions

_Operation = TypeVar("_Operation", bound=Operation)
_Block = TypeVar("_Block", bound="BlockEmitter")
_Emitter = TypeVar("_Emitter", bound=Callable[..., Any])


@frozen(eq=False)
class Scope:
    """The part of a block that the emitters of its operations share.

    Attributes:
        options: How the model is loaded.
        caches: The block's caches of positions.
        sources: The caches of the first block with caches of each layer before.
    """

    options: ModelOptions
    caches: Sequence[Any]
    sources: Sequence[Sequence[Any]]

    def cache(self, place: int, source: int | None = None) -> Any:
        """A cache by its place in `Block.cached`, of the block or of a layer."""
        return (self.caches if source is None else self.sources[source])[place]


class OperationEmitter(ABC, Generic[_Operation]):
    """Writes the kernels of one operation on a tape. Each backend has a class derived from this one."""

    def __init__(self, operation: Any, scope: Any) -> None:
        self.operation: _Operation = operation
        self.scope = scope

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

    def find(self, operation: Operation, block: str) -> Any:
        """The emitter of an operation of a block, of the table or of the operation's own `kernels`.

        Raises:
            UnsupportedError: There is none.
        """
        found, name = self._kinds.get(type(operation)) or operation.kernel_for(self.backend), type(operation).__name__
        if found is None:
            raise UnsupportedError(
                f"block {block} has the operation {name}, which backend {self.backend} does not compute; use another backend"
            )
        return found


class BlockEmitter:
    """Writes the kernels of a block's operations, in their order.

    Attributes:
        caches: The block's caches of positions, each with its `bytes_per_position` of a slot.
        states: Its states of sequences, each with its `n_bytes` of a slot.
    """

    caches: Sequence[Any]
    states: Sequence[Any]
    _early: Sequence[OperationEmitter[Any]]
    _emitters: Sequence[OperationEmitter[Any]]

    def begin(self, tape: Any) -> None:
        """Write the kernels of its values of x as it is before its layer."""
        for emitter in self._early:
            emitter.emit(tape)

    def emit(self, tape: Any) -> None:
        """Write its other kernels. May be called for any number of tapes."""
        for emitter in self._emitters:
            emitter.emit(tape)

    def emit_states(self, tape: Any) -> None:
        """Write only the kernels that bring states of sequences up to date, for a pass over no tokens."""
        for emitter in self._emitters:
            emitter.emit_states(tape)


@frozen(eq=False)
class PartEmitters(Generic[_Block]):
    """The emitters of a part of a plan beside those of its layers."""

    layers: tuple[int, int]
    output_block: Output
    n_embd: int  # values of x
    n_hidden: int  # values of hidden states that a pass may be given
    embedding: _Block
    output: _Block
    inputs: Sequence[_Block] = ()  # that begin with hidden states


class PlanEmitters(Generic[_Block]):
    """The emitters of a plan's blocks, and the sizes of its slots.

    Attributes:
        plan: The plan.
        options: How it is loaded.
        state_spec: The sizes of its slots.
    """

    def __init__(self, plan: ModelPlan, options: ModelOptions, of_block: Callable[..., _Block]) -> None:
        """Make the emitters by `of_block`(block, options, values of x, `Scope.sources`)."""
        self.plan = plan = plan.for_context(options.n_ctx)
        self.options, self._of_block = options, of_block
        self._layers: list[list[_Block]] = []
        for layer in plan.every_layer:
            self._layers.append([self._emitter(block) for block in layer.blocks])
        self._parts = {"main": self._part("main", plan)}
        self._parts |= {name: self._part(name, each, each.input) for name, each in plan.heads.items()}
        if injections := [self._emitter(each) for each in plan.injections]:
            self._parts["inject"] = evolve(self._parts["main"], layers=(0, 0), inputs=injections)
        of_parts = [each for part in self._parts.values() for each in (part.embedding, *part.inputs, part.output)]
        self._blocks = [*chain(*self._layers), *dict.fromkeys(of_parts)]
        n_bytes = sum(cache.bytes_per_position for block in self._blocks for cache in block.caches)
        of_sequence = sum(state.n_bytes for block in self._blocks for state in block.states)
        draft_max = options.draft_max if of_sequence else None
        self.state_spec = StateSpec(options.n_slots, options.n_ctx, n_bytes, of_sequence, draft_max=draft_max)

    @property
    def _moving(self) -> list[_Block]:
        """The blocks whose cells move with accepted tokens, which layers that predict further tokens compute anew."""
        main = self._parts["main"]
        return [*chain(*self._layers[slice(*main.layers)]), main.embedding, main.output]

    def _part(self, name: str, plan: ModelPlan | MtpLayer, *inputs: Block) -> PartEmitters[_Block]:
        part = self.plan.parts[name]
        embedding, output, *of_inputs = map(self._emitter, (plan.embedding, plan.output, *inputs))
        return PartEmitters(part.layers, plan.output, plan.embedding.n_embd, part.width, embedding, output, of_inputs)

    def _emitter(self, block: Block) -> _Block:
        sources = [next((each.caches for each in emitters if each.caches), ()) for emitters in self._layers]
        return self._of_block(block, self.options, self.plan.n_seen(block), sources)


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


def connection_emitters(plan: ModelPlan, backend: str, own: Mapping[type, Any]) -> dict[Connection, Any]:
    """The emitters of a plan's connections, `own` the backend's by what they emit.

    Raises:
        UnsupportedError: A connection has none for the backend, or something would read or add to one of several streams.
    """
    n_streams, outputs = plan.embedding.n_streams, (plan.output, *(each.output for each in plan.mtp))
    if n_streams > 1 and any(output.weight is not None and output.connection is None for output in outputs):
        raise UnsupportedError("several residual streams, of which the output reads one; use another backend")
    for layer in plan.every_layer:
        odd = [f"{type(block).__name__}.is_parallel" for block in layer.blocks if block.is_parallel]
        odd += [f"{type(block).__name__} without a connection" for block in layer.blocks if block.connection is None]
        if n_streams > 1:
            odd += ["norm"] * (layer.norm is not None) + ["scale"] * (layer.scale != 1.0)
            odd += [f"{type(block).__name__}.post_norm" for block in layer.blocks if getattr(block, "post_norm", None)]
            odd += ["Router.is_early" for block in layer.blocks if hasattr(block, "router") and block.router.is_early]
        if odd and (n_streams > 1 or any(block.connection for block in layer.blocks)):
            raise UnsupportedError(f"several residual streams in a layer with {odd[0]}; use another backend")
    kinds = {each: own.get(type(each)) or each.kernel_for(backend) for each in plan.connections}
    if unknown := [type(each).__name__ for each, kind in kinds.items() if kind is None]:
        raise UnsupportedError(f"connection {unknown[0]}, which backend {backend} does not compute; use another backend")
    return {each: kind(each, plan) for each, kind in kinds.items()}


def largest(*buffers: Mapping[str, int]) -> dict[str, int]:
    """Bytes of buffers by name, of those of one name the most."""
    needed: dict[str, int] = {}
    for each in buffers:
        needed |= {name: max(n_bytes, needed.get(name, 0)) for name, n_bytes in each.items()}
    return needed
