"""A plan → programs: steps with the addresses of weights and buffers filled in, one program per size of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.backends.numba_cuda import choosing
from augury.backends.numba_cuda.block import BlockEmitter
from augury.backends.numba_cuda.device import Launch
from augury.backends.numba_cuda.first_products import columns_of, multiply_first
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS, SIZE, follow
from augury.backends.numba_cuda.residual import Streams
from augury.backends.numba_cuda.rows import Operand
from augury.backends.numba_cuda.tape import Size, Tape, splits_of
from augury.errors import UnsupportedError
from augury.types import StateSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from augury.backends.numba_cuda.device import Device, Part, Pointer, Program
    from augury.backends.numba_cuda.first_products import FirstProducts
    from augury.backends.numba_cuda.kernels.dialect import Kernel
    from augury.backends.numba_cuda.weights import Weights
    from augury.blocks import ModelPlan, Norm
    from augury.types import ModelOptions

__all__ = ["PASS_SIZES", "Lowering", "Parts", "size_of"]

PASS_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_TOKENS)


@frozen
class Parts:
    """What of a model a pass goes through, and what it tells beside logits; see `Batch`."""

    layers: tuple[int, int]
    features: tuple[str, ...] = ()
    takes_hidden: bool = False


def size_of(n_tokens: int, last_position: int) -> Size:
    """The smallest size of programs that a pass fits."""
    return Size(next(n for n in PASS_SIZES if n >= n_tokens), splits_of(last_position + 1))


class Lowering:
    """What a plan needs, known at once, and its programs, once it has a place on a device.

    Attributes:
        plan: What is lowered.
        state_spec: What its slots take.
        buffers: Memory by name, once it has a place.
        inputs: Where a pass's inputs are copied to.
        hidden: Where the hidden states of one that begins with a layer are.
    """

    def __init__(self, plan: ModelPlan, options: ModelOptions) -> None:
        self.options = options
        self.plan = plan = plan.for_context(options.n_ctx)
        if plan.nextn:
            raise UnsupportedError("layers that predict further tokens are not computed here; use backend numba-cpu")
        if plan.block is not None:
            found = f"{plan.architecture} models have blocks of drafted tokens"
            raise UnsupportedError(f"{found}, which this backend does not compute; choose another one")
        if plan.output.tokens is not None:
            raise UnsupportedError("an output of some tokens of a vocabulary is not computed here; use backend numba-cpu")
        self._streams = Streams(plan)
        self._embedding, self._output = (
            BlockEmitter(block, options, plan.n_seen(block), ()) for block in (plan.embedding, plan.output)
        )
        self._layers: list[list[BlockEmitter]] = []
        for layer in plan.layers:
            sources = [next((each.caches for each in emitters if each.caches), ()) for emitters in self._layers]
            self._layers.append([BlockEmitter(block, options, plan.n_seen(block), sources) for block in layer.blocks])
        self._blocks = [self._embedding, *(emitter for emitters in self._layers for emitter in emitters), self._output]
        n_bytes = sum(emitter.bytes_per_position() for emitter in self._blocks)
        of_sequence = sum(emitter.bytes_per_sequence() for emitter in self._blocks)
        draft_max = options.draft_max if of_sequence else None
        self.state_spec = StateSpec(options.n_slots, options.n_ctx, n_bytes, of_sequence, draft_max=draft_max)

    def place(self, device: Device, weights: Weights) -> None:
        """Allocate what passes work in and what slots keep, and load the weights."""
        self.allocate(device)
        self._device, self._weights = device, weights
        self.steps(size_of(1, self.state_spec.n_ctx - 1), Parts((0, len(self._layers))))  # which loads all weights

    def allocate(self, device: Device) -> None:
        """Allocate what passes work in and what slots keep."""
        n_embd = self.plan.embedding.n_embd
        needed = dict.fromkeys(("x", "y", *self._asides()), 4 * MAX_TOKENS * n_embd)
        needed |= {name: 4 * MAX_TOKENS * width for name, width in self.plan.features.items()}
        needed |= {"logits": 0, "best of chunks": 0, "best": 8 * MAX_TOKENS}
        widths = [columns_of(self._first_products(i))[-1] for i in range(len(self._layers))]
        if any(widths):
            needed["first products"] = 4 * MAX_TOKENS * max(widths)
        if any(len(self._first_norms(i)) > 1 for i in range(len(self._layers))):
            needed |= Tape.operand_buffers("normed beside", n_embd)
        for each in (self._streams.buffers(), *(emitter.buffers() for emitter in self._blocks)):
            for name, n_bytes in each.items():
                needed[name] = max(n_bytes, needed.get(name, 0))
        self.buffers = {name: device.allocate(n_bytes, "scratch").at(0) for name, n_bytes in needed.items()}
        self._passed_on = self.buffers.get("streams", self.buffers["x"])  # from layer to layer
        self.hidden = self.buffers.get("given", self._passed_on)
        self.inputs = device.allocate(4 * SIZE, "scratch").at(0)
        for emitter in self._blocks:
            emitter.place(device)

    def kernels(self) -> list[Kernel]:
        """The kernels of passes of every number of tokens, and of what comes between them."""
        whole, last = Parts((0, len(self._layers))), self.state_spec.n_ctx - 1
        tapes = [self.steps(size_of(n, last), whole) for n in PASS_SIZES]
        steps = [*(step for tape in tapes for step in tape.steps), *self.moving(self.inputs, 0)]
        return list(dict.fromkeys([*(step.kernel for step in steps if isinstance(step, Launch)), *choosing.KERNELS, follow]))

    def program(self, size: Size, parts: Parts, staged: np.ndarray, fetched: np.ndarray) -> Program:
        """A program for passes of a size.

        Args:
            size: Of the passes.
            parts: What they go through.
            staged: The staging array that their inputs are written to.
            fetched: That to which best tokens and their logits are copied.
        """
        steps = self.steps(size, parts).steps
        return self._device.program(steps, (staged, self.inputs), (self.buffers["best"], fetched))

    def following(self, size: Size, parts: Parts) -> Program:
        """A program for a pass over the best tokens after the rows of the last one, which are not asked for."""
        places = (self.inputs, self.buffers["best"])
        first = Launch(follow, (1, 1, 1), MAX_TOKENS, (*places, self.plan.embedding.n_vocab))
        return self._device.program([first, *self.steps(size, parts).steps])

    def steps(self, size: Size, parts: Parts) -> Tape:
        """What such a program does."""
        tape = Tape(size, self._weights, self.buffers, self.inputs, self.plan.embedding.n_embd)
        self._emit_embedding(tape, takes_hidden=parts.takes_hidden)
        self._streams.begin(tape, takes_hidden=parts.takes_hidden)
        self._give_features(tape, "embedding", parts)
        for i in range(*parts.layers):
            self._emit_layer(tape, i)
            self._give_features(tape, f"layer.{i}", parts)
        self._streams.read(tape, self.plan.output.connection)
        if "output" in parts.features:
            at = self.buffers["output"]
            tape.norm_seen(self.plan.output.norm, Operand(at, at, at, at, tape.x.width, as_floats=True))
        self._output.emit(tape)
        return tape

    def _give_features(self, tape: Tape, name: str, parts: Parts) -> None:
        """Write that the residual streams go where their feature is read, if it is asked for."""
        if name in parts.features:
            passed_on = tape.x.at if self.plan.embedding.n_streams == 1 else self._passed_on
            tape.copy(passed_on, self.buffers[name], 4 * tape.size.n_tokens * self.plan.n_hidden)

    def states(self, staged: np.ndarray, fetched: np.ndarray) -> Program:
        """A program that brings states of sequences up to date, as before a pass; its arguments are those of `program`."""
        tape = Tape(Size(MAX_TOKENS, 1), self._weights, self.buffers, self.inputs, self.plan.embedding.n_embd)
        for emitter in self._blocks:
            emitter.emit_states(tape)
        return self._device.program(tape.steps, (staged, self.inputs), (self.buffers["best"], fetched))

    def _asides(self) -> Iterator[str]:
        """The names of what is kept beside the residual stream, as wide."""
        plan = self.plan
        if any(block.is_parallel for layer in plan.layers for block in layer.blocks):
            yield "seen"
        if plan.keeps_embedded:
            yield "embedded"
        if plan.embedding.layer_inputs is not None or plan.keeps_embedded:
            yield "given"

    def _first_norms(self, i: int) -> tuple[Norm | None, ...]:
        """The norms of x for several blocks side by side in a layer, if there are at most two, and no others later."""
        n_abreast, blocks = self.plan.layers[i].n_abreast, self.plan.layers[i].blocks
        emitters, is_last = self._layers[i][:n_abreast], not any(block.is_parallel for block in blocks[n_abreast:])
        if len(emitters) < 2 or not is_last or any(len(emitter.norms) != 1 for emitter in emitters):
            return ()
        norms = tuple(dict.fromkeys(norm for emitter in emitters for norm in emitter.norms))
        return norms if len(norms) <= 2 else ()

    def _first_products(self, i: int) -> list[FirstProducts]:
        """The first products of several mixers of a layer, of one norm; the first mixer is last, as its v has another type."""
        layer = self.plan.layers[i]
        emitters = self._layers[i][: len(layer.mixers)] if len(layer.mixers) > 1 and len(self._first_norms(i)) == 1 else []
        return [emitter.first_products for emitter in reversed(emitters) if emitter.first_products is not None]

    def _emit_embedding(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write what x begins as."""
        n_bytes = 4 * tape.size.n_tokens * tape.x.width
        if not takes_hidden or self.hidden is not self._passed_on:
            self._embedding.emit(tape)
        if "embedded" in self.buffers:
            tape.copy(tape.x.at, self.buffers["embedded"], n_bytes)
        if takes_hidden and self.hidden is not self._passed_on:
            tape.copy(self.hidden, tape.x.at, n_bytes)

    def _emit_layer(self, tape: Tape, i: int) -> None:
        """Write the steps of a layer."""
        layer = self.plan.layers[i]
        for emitter in self._layers[i]:
            emitter.begin(tape)
        before = tape.x
        if norms := self._first_norms(i):
            tape.norm_first(norms)
            if first := self._first_products(i):
                multiply_first(tape, tape.norm(norms[0], ()), first)
        elif any(block.is_parallel for block in layer.blocks):
            before = tape.put_aside()
        for n, (block, emitter) in enumerate(zip(layer.blocks, self._layers[i], strict=True)):
            tape.seen = before if block.connection is None and (n == 0 or block.is_parallel) else tape.x
            self._streams.read(tape, block.connection)
            emitter.emit(tape)
            self._streams.write(tape, block.connection)
        tape.go_on()
        if layer.scale != 1.0:
            tape.blend(tape.x, tape.x, layer.scale, 0.0)
        tape.norm_in_place(layer.norm, tape.x, tape.x.width)

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy cells: n moves (n, 3) of slot, from, to."""
        return [launch for emitter in self._blocks for launch in emitter.moving(moves, n)]

    def slot_memory(self, slot: int, n: int) -> list[Part]:
        """What a slot keeps of its first n positions."""
        return [part for emitter in self._blocks for part in emitter.slot_memory(slot, n)]
