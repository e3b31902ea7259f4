"""A plan → programs: steps with the addresses of weights and buffers filled in, one program per size of passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from augury.backends.numba import lowering
from augury.backends.numba.lowering import PartEmitters, Parts, PlanEmitters, largest
from augury.backends.numba.passes import LastVocabularies
from augury.backends.numba_cuda import passes
from augury.backends.numba_cuda.block import BlockEmitter, FirstProducts, columns_of, multiply_first
from augury.backends.numba_cuda.device import Device, Launch, Pointer, Program
from augury.backends.numba_cuda.gpu import Gpu
from augury.backends.numba_cuda.kernels.dialect import Kernel
from augury.backends.numba_cuda.kernels.inputs import MAX_ROWS, MAX_TOKENS, SIZE, follow
from augury.backends.numba_cuda.narrow_output import NarrowOutput
from augury.backends.numba_cuda.operations.layout import EMBEDDED, HIDDEN
from augury.backends.numba_cuda.operations.rows import SCALES
from augury.backends.numba_cuda.products import SPLIT_BUFFERS, DeviceRows
from augury.backends.numba_cuda.tape import Size, Tape, splits_of
from augury.backends.numba_cuda.weights import Weights
from augury.blocks import AllStreams, Connection, Linear, ModelPlan, Norm, Output
from augury.lowering import ConnectionEmitter
from augury.types import ModelOptions

_ALL, _ADDED = "streams", "added to streams"
PASS_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, MAX_TOKENS)


def size_of(n_tokens: int, last_position: int, *, is_run: bool = False) -> Size:
    """The smallest size of programs that a pass fits."""
    return Size(next(n for n in PASS_SIZES if n >= n_tokens), splits_of(last_position + 1), is_run)


class Lowering(PlanEmitters[BlockEmitter, "Streams"]):
    """The needs of a plan, known at once, and its programs, once it has a place on a device.

    Attributes:
        buffers: Memory by name, once it has a place.
        inputs: Where a pass's inputs are copied to.
        hidden: Where the hidden states are that it is given.
        chooses: Whether rows are logits of tokens. Those of a head's encoder are hidden states, and no value of them is best.
    """

    def __init__(self, plan: ModelPlan, options: ModelOptions) -> None:
        super().__init__(plan, options, BlockEmitter, Streams)
        self.chooses = bool(plan.layers) or plan.n_vocab == plan.embedding.n_vocab
        self._narrow: dict[Linear, NarrowOutput] = {}
        self._vocabularies = LastVocabularies[NarrowOutput | None]()

    def place(self, device: Gpu, weights: Weights) -> None:
        """Allocate work space and the slots' memory, and load the weights."""
        self.allocate(device)
        self._device, self._weights = device, weights
        for parts in self.every_part():
            self.steps(size_of(1, self.state_spec.n_ctx - 1), parts)

    def allocate(self, device: Device) -> None:
        """Allocate work space and the slots' memory."""
        n_embd = self.plan.widest
        needed = dict.fromkeys(("x", "y", *self._asides()), 4 * MAX_TOKENS * n_embd)
        needed |= {name: 4 * MAX_TOKENS * width for name, width in self.plan.features.items()}
        if self.plan.keeps_embedded or self.plan.embedding.layer_inputs is not None or self.plan.mtp:
            needed[HIDDEN] = 4 * MAX_TOKENS * max(part.n_hidden for part in self._parts.values())
        needed |= {"logits": 0, "best of chunks": 0, "best": 8 * MAX_ROWS} | SPLIT_BUFFERS
        widths = [columns_of(self._first_products(i))[-1] for i in range(len(self._layers))]
        if any(widths):
            needed["first products"] = 4 * MAX_TOKENS * max(widths)
        if any(len(self._first_norms(i)) > 1 for i in range(len(self._layers))):
            needed |= Tape.operand_buffers("normed beside", n_embd)
        if self.plan.n_adapters:
            needed[SCALES] = 4 * self.options.n_slots * self.plan.n_adapters
        needed |= self._streams.buffers()
        needed = largest(needed, *(emitter.buffers() for emitter in (*self._blocks, *self._streams.emitters)))
        self.buffers = {name: device.allocate(n_bytes, "scratch") for name, n_bytes in needed.items()}
        self._passed_on = self.buffers.get("streams", self.buffers["x"])  # from layer to layer
        self.hidden = self.buffers.get(HIDDEN, self._passed_on)
        self.inputs = device.allocate(4 * SIZE, "scratch")
        for emitter in self._blocks:
            emitter.place(device)

    def kernels(self) -> list[Kernel]:
        """The kernels of passes of every number of tokens, and of the steps between them."""
        sizes = [*(size_of(n, self.state_spec.n_ctx - 1) for n in PASS_SIZES), size_of(1, 0)]  # few splits may have others
        tapes = [self.steps(size, parts) for size in sizes for parts in self.every_part()]
        steps = [*(step for tape in tapes for step in tape.steps), *self.moving(self.inputs, 0)]
        return list(dict.fromkeys([*(step.kernel for step in steps if isinstance(step, Launch)), *passes.KERNELS, follow]))

    def program(self, size: Size, parts: Parts, staged: np.ndarray, fetched: np.ndarray) -> Program:
        """A program for passes of a size: inputs come from `staged`, best tokens and their logits go to `fetched`."""
        steps = self.steps(size, parts).steps
        return self._device.program(steps, (staged, self.inputs), (self.buffers["best"], fetched))

    def narrowed(self, part: str, vocabulary: np.ndarray) -> NarrowOutput | None:
        """The matrices of the logits of a vocabulary (m,) int32 after a part; None: all logits are computed.

        Raises:
            OptionError: The model cannot have such a vocabulary.
        """
        output = self._parts[part].output_block
        linear = output.weight
        if type(output) is not Output or linear is None:
            return None
        return self._vocabularies.of(linear, vocabulary, linear.n_out, lambda: self._narrowed(linear, vocabulary))

    def _narrowed(self, linear: Linear, vocabulary: np.ndarray) -> NarrowOutput | None:
        if linear not in self._narrow:
            made = NarrowOutput.of(self._device, self._weights.matrix(linear), vocabulary)
            self._narrow |= {} if made is None else {linear: made}
        narrow = self._narrow.get(linear)
        return narrow if narrow is not None and narrow.follow(vocabulary) else None

    def following(self, size: Size, parts: Parts, names: Pointer | None, n_named: int) -> Program:
        """A program for a pass over the best tokens after the rows of the last one, which are not asked for.

        Logits are those of the tokens `names` (n_named,), or without such of all.
        """
        given = {"best": self.buffers["best"], "names": names, "n_named": n_named, "n_vocab": self.plan.embedding.n_vocab}
        first = Launch.of(follow, (1,), MAX_ROWS, self.inputs, **given)
        return self._device.program([first, *self.steps(size, parts).steps])

    def steps(self, size: Size, parts: Parts) -> Tape:
        """The work of such a program."""
        tape = Tape(size, self._weights, self.buffers, self.inputs, self._parts[parts.name].n_embd)
        tape.narrow, tape.chooses = self._narrow if parts.is_narrow else {}, self.chooses
        self._write(tape, parts)
        return tape

    def states(self, staged: np.ndarray, fetched: np.ndarray) -> Program:
        """A program that brings states of sequences up to date, as before a pass; its arguments are those of `program`."""
        tape = Tape(Size(MAX_TOKENS, 1), self._weights, self.buffers, self.inputs, self.plan.embedding.n_embd)
        for emitter in self._blocks:
            emitter.emit_states(tape)
        return self._device.program(tape.steps, (staged, self.inputs), (self.buffers["best"], fetched))

    def _asides(self) -> Iterator[str]:
        """The names of the buffers beside the residual stream, as wide."""
        plan = self.plan
        if any(block.is_parallel for layer in plan.every_layer for block in layer.blocks):
            yield "seen"
        if plan.keeps_embedded:
            yield EMBEDDED

    def _first_norms(self, i: int) -> tuple[Norm | None, ...]:
        """The norms of x for several blocks side by side in a layer, if there are at most two, and no others later."""
        n_parallel, blocks = self.plan.every_layer[i].n_parallel, self.plan.every_layer[i].blocks
        emitters, is_last = self._layers[i][:n_parallel], not any(block.is_parallel for block in blocks[n_parallel:])
        if len(emitters) < 2 or not is_last or any(len(emitter.norms) != 1 for emitter in emitters):
            return ()
        norms = tuple(dict.fromkeys(norm for emitter in emitters for norm in emitter.norms))
        return norms if len(norms) <= 2 else ()

    def _first_products(self, i: int) -> list[FirstProducts]:
        """The first products of several mixers of a layer, of one norm; the first mixer is last, as its v has another type."""
        layer = self.plan.every_layer[i]
        emitters = self._layers[i][: len(layer.mixers)] if len(layer.mixers) > 1 and len(self._first_norms(i)) == 1 else []
        return [emitter.first_products for emitter in reversed(emitters) if emitter.first_products is not None]

    def _begin(self, tape: Tape, part: PartEmitters[BlockEmitter], parts: Parts) -> None:
        n_tokens = tape.size.n_tokens
        if not parts.takes_hidden or self.hidden is not self._passed_on:
            part.embedding.emit(tape)
        if EMBEDDED in self.buffers:
            tape.copy(tape.x.at, self.buffers[EMBEDDED], 4 * n_tokens * tape.x.width)
        tape.streams = DeviceRows(self._passed_on, self.plan.embedding.n_streams * part.n_embd)
        if parts.name in self.plan.heads:
            part.inputs[0].emit(tape)
        elif parts.takes_hidden and self.hidden is not self._passed_on:
            tape.copy(self.hidden, self._passed_on, 4 * n_tokens * self.plan.n_hidden)
        if parts.name == "inject":
            tape.norm_first([injection.norm for injection in self.plan.injections[:1]])
            for emitter in part.inputs:
                emitter.emit(tape)
            return
        self._streams.begin(tape, takes_hidden=parts.takes_hidden)
        if "embedding" in parts.features:
            tape.give_features("embedding", self._streams.all(tape))

    def _emit_layer(self, tape: Tape, i: int, *, is_read: bool) -> None:
        layer = self.plan.every_layer[i]
        for emitter in self._layers[i]:
            emitter.begin(tape)
        before = tape.x
        if norms := self._first_norms(i):
            tape.norm_first(norms)
            if first := self._first_products(i):
                multiply_first(tape, tape.norm(norms[0], ()), first)
        elif any(block.is_parallel for block in layer.blocks):
            before = DeviceRows(self.buffers["seen"], tape.x.width)  # for blocks that add to x
            tape.copy(tape.x.at, before.at, 4 * tape.size.n_tokens * before.width)
        for n, (block, emitter) in enumerate(zip(layer.blocks, self._layers[i], strict=True)):
            if not (is_read or block.cached() or block.states()):
                continue
            tape.seen = before if block.connection is None and (n == 0 or block.is_parallel) else tape.x
            self._streams.read(tape, block.connection)
            emitter.emit(tape)
            self._streams.write(tape, block.connection)
        if not is_read:
            return
        tape.go_on()
        if layer.scale != 1.0:
            tape.blend(tape.x, tape.x, layer.scale, 0.0)
        tape.norm_in_place(layer.norm, tape.x, tape.x.width)

    def moving(self, moves: Pointer, n: int) -> Sequence[Launch]:
        """The launches that copy cells: n moves (n, 3) of slot, from, to."""
        return [launch for emitter in self._moving for launch in emitter.moving(moves, n)]


class AllStreamsEmitter(ConnectionEmitter):
    """Lets a block see all streams, one after the other, and add as many values to them."""

    def read(self, tape: Tape) -> None:
        tape.x = tape.seen = tape.streams

    def write(self, tape: Tape) -> None:
        tape.x = DeviceRows(tape.buffers[_ADDED], self.size)


class Streams(lowering.Streams):
    """See `lowering.Streams`; x is the row that a block adds to them."""

    def __init__(self, plan: ModelPlan) -> None:
        super().__init__(plan, "numba-cuda", {AllStreams: AllStreamsEmitter})
        self._n_embd = plan.embedding.n_embd

    def buffers(self) -> Mapping[str, int]:
        """Bytes of the memory of several streams, by name."""
        row = 4 * MAX_TOKENS * self._n_embd
        return {_ADDED: row, _ALL: row * self._n} if self._n > 1 else {}

    def begin(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write that all streams begin as x, unless they are given."""
        if self._n == 1:
            return
        x, size, streams = tape.x, self._n_embd, tape.streams
        tape.add_pending()
        for i in range(0 if takes_hidden else self._n):
            tape.blend(DeviceRows(streams.at.at(4 * i * size), streams.width), x, 0.0, 1.0, width=size)
        tape.x = tape.seen = DeviceRows(tape.buffers[_ADDED], size)

    def all(self, tape: Tape) -> DeviceRows:
        return tape.x if self._n == 1 else tape.streams

    def write(self, tape: Tape, connection: Connection | None) -> None:
        """Write the streams with the rows that a block added."""
        if connection is not None:
            tape.add_pending()
            self._connections[connection].write(tape)
