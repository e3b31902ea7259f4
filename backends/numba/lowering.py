"""What both compiled backends lower alike: passes through the parts of a plan, blocks, streams, states of sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from attrs import evolve, frozen

from augury.blocks import Block, Connection, ModelPlan, MtpLayer, Output
from augury.errors import UnsupportedError
from augury.lowering import OperationEmitter
from augury.types import ModelOptions, StateSpec

_Block = TypeVar("_Block", bound=Any)
_Streams = TypeVar("_Streams", bound="Streams")
_Place = TypeVar("_Place")  # an address, or a pointer of a device


@frozen
class Parts:
    """The parts of a model that a pass, a program of its own, goes through, and its results beside logits; see `Batch`.

    If nobody reads what the last layer makes, the pass only keeps the layer's keys, values and states.
    """

    layers: tuple[int, int]
    features: tuple[str, ...] = ()
    takes_hidden: bool = False
    is_read: bool = True
    is_narrow: bool = False  # whether logits are those of a vocabulary alone; of `numba-cuda`
    name: str = "main"  # see `Batch.part`


class BlockEmitter:
    """Writes the kernels of a block's operations, in their order."""

    caches: Sequence[Any]  # of positions, each with its `bytes_per_position` of a slot
    states: Sequence[Any]  # of sequences, each with its `n_bytes` of a slot
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


class PlanEmitters(ABC, Generic[_Block, _Streams]):
    """The emitters of a plan's blocks, the order in which passes write them on a tape, and the sizes of slots."""

    def __init__(
        self, plan: ModelPlan, options: ModelOptions, of_block: Callable[..., _Block], streams: Callable[[ModelPlan], _Streams]
    ) -> None:
        """Make the emitters by `of_block`(block, options, values of x, `Scope.sources`)."""
        self.plan = plan = plan.for_context(options.n_ctx)
        self.options, self._of_block, self._streams = options, of_block, streams(plan)
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

    def every_part(self) -> Iterator[Parts]:
        """Passes that make use of all weights, those of the whole model first."""
        for name, part in self._parts.items():
            features = () if name not in self.plan.heads or part.output_block.given is None else ("output",)
            yield Parts(part.layers, features, takes_hidden=name != "main", is_read=name != "inject", name=name)

    def _write(self, tape: Any, parts: Parts) -> None:
        """Write a pass through some parts: of a last layer that nobody reads only what keeps something of tokens."""
        part, (first, end) = self._parts[parts.name], parts.layers
        self._begin(tape, part, parts)
        for i in range(first, end) if parts.name != "inject" else ():
            is_read = parts.is_read or i < end - 1
            self._emit_layer(tape, i, is_read=is_read)
            if is_read and f"layer.{i}" in parts.features:
                tape.give_features(f"layer.{i}", self._streams.all(tape))
        if parts.is_read:
            self._streams.read(tape, part.output_block.connection)
            if "output" in parts.features:
                tape.give_output(part.output_block)
            part.output.emit(tape)

    @abstractmethod
    def _begin(self, tape: Any, part: PartEmitters[_Block], parts: Parts) -> None:
        """Write what comes before the layers: embeddings, hidden states that are given, and the blocks that begin with them."""

    @abstractmethod
    def _emit_layer(self, tape: Any, i: int, *, is_read: bool) -> None:
        """Write a layer; if nobody reads its result, only what keeps something of tokens."""

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> list[Any]:
        """The memory of a slot, block by block; see `SlotStates.slot_memory`."""
        return [memory for block in self._blocks for memory in block.slot_memory(slot, n, start)]

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


class SequenceStates(Generic[_Place]):
    """A state of every slot, of float32: as it is, as it was saved, and drafted tokens' inputs kept aside to be taken in.

    Of a matrix, the part of a drafted token that is added to columns lies apart from the part that all columns share. A slot
    has `n_bytes` of a state, and room for `n_aside` drafted tokens.
    """

    values: _Place  # where states are, once they have a place, as the following
    saved: _Place  # where they are as they were saved
    aside: _Place  # where the inputs of drafted tokens are kept
    added: _Place  # where the part is that is added to columns, if there is one

    def __init__(self, options: ModelOptions, n_bytes: int, kept_aside: tuple[int, int]) -> None:
        """Size them; `kept_aside` has the bytes of a drafted token's shared part, and of its part by columns or 0."""
        self.n_slots, self.n_aside = options.n_slots, max(options.draft_max, 1)
        self.n_bytes, self._kept_aside = n_bytes, kept_aside

    @property
    def n_bytes_of_all(self) -> int:
        """Bytes of all slots: states as they are and as they were saved, and drafted tokens aside."""
        return self.n_slots * (2 * self.n_bytes + self.n_aside * sum(self._kept_aside))

    def allocate(self, allocate: Callable[[int, str], _Place]) -> None:
        """Allocate them by `allocate`(bytes, purpose)."""
        self.values, self.saved = (allocate(self.n_slots * self.n_bytes, each) for each in ("states", "saved states"))
        self.aside, self.added = (
            allocate(self.n_slots * self.n_aside * n, "drafted tokens kept aside") if n else self.values
            for n in self._kept_aside
        )


class Streams(ABC):
    """The residual streams of a plan. Several lie side by side, and x is the row that the next block sees; one alone is x."""

    def __init__(self, plan: ModelPlan, backend: str, own: Mapping[type, Any]) -> None:
        """Find the emitters of connections, `own` the backend's by what they emit.

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
        self._n, self._connections = n_streams, {each: kind(each, plan) for each, kind in kinds.items()}
        self.emitters = [*self._connections.values()]

    @abstractmethod
    def all(self, tape: Any) -> Any:
        """The rows that go on to the next layer: x with all that was left to be added to it, or the streams side by side."""

    def read(self, tape: Any, connection: Connection | None) -> None:
        """Write the rows that the next block sees."""
        if connection is not None:
            self._connections[connection].read(tape)


def largest(*buffers: Mapping[str, int]) -> dict[str, int]:
    """Bytes of buffers by name, of those of one name the most."""
    needed: dict[str, int] = {}
    for each in buffers:
        needed |= {name: max(n_bytes, needed.get(name, 0)) for name, n_bytes in each.items()}
    return needed
