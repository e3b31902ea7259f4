"""A plan → tapes: records for the threads, with the addresses of weights and buffers filled in.

Two tapes do the same: one for passes of a token or two, where every thread norms and quantises for itself, and one for
longer passes, where the threads divide that work, too (see `kernels/step.py`). They share weights, KV cache and buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from augury.backends.numba import lowering
from augury.backends.numba.lowering import PartEmitters, Parts, PlanEmitters, largest
from augury.backends.numba_cpu import compiled_pass, passes, tape
from augury.backends.numba_cpu.block import BlockEmitter
from augury.backends.numba_cpu.kernels import step, team
from augury.backends.numba_cpu.kernels.matmul import SCRATCH_BYTES
from augury.backends.numba_cpu.memory import Arena, to_move, up
from augury.backends.numba_cpu.operations.layout import HIDDEN
from augury.backends.numba_cpu.operations.rows import logits_row
from augury.backends.numba_cpu.tape import Program, Tape, ThreadRows, Workspace, row_bytes, row_stride
from augury.backends.numba_cpu.weights import Weights
from augury.blocks import AllStreams, Connection, ModelPlan
from augury.lowering import ConnectionEmitter
from augury.types import ModelOptions


class Lowering(PlanEmitters[BlockEmitter, "Streams"]):
    """The needs of a plan, known at once, and its tapes, once it has memory."""

    def __init__(self, plan: ModelPlan, options: ModelOptions) -> None:
        super().__init__(plan, options, BlockEmitter, Streams)
        needed = [each.scratch_bytes() for each in (*self._blocks, *self._streams.emitters)]
        self.scratch_bytes = up(max(SCRATCH_BYTES, *needed), 64) + 64  # of a thread, in whole cache lines
        output = self.plan.output.weight
        self.logits_row = logits_row(0 if output is None else output.n_out)
        self._programs: dict[tuple[bool, Parts], Program] = {}

    @property
    def state_bytes(self) -> int:
        """The bytes of all slots' states and the tables for them."""
        tables = {key: n_bytes for block in self._blocks for key, n_bytes in block.tables().items()}
        caches = sum(cache.n_bytes for block in self._blocks for cache in block.caches)
        return caches + sum(state.n_bytes_of_all for block in self._blocks for state in block.states) + sum(tables.values())

    def kernels(self) -> list[Any]:
        """The kernels of passes, beside those of the weights; first the ones that take longest to compile."""
        found = [kernel for block in self._blocks for kernel in block.kernels()]
        found += [kernel for emitter in self._streams.emitters for kernel in emitter.kernels]
        moving = self._moving if self.options.draft_max else []
        found += [cache.move for block in moving for cache in block.caches]  # once a branch is accepted
        return [*found, team.run, team.follow, team.dismiss, *tape.KERNELS, *passes.KERNELS, *compiled_pass.KERNELS]

    def place(self, weights: Weights, n_threads: int, arena: Arena) -> None:
        """Allocate work space and the slots' memory."""
        n_embd, needed = self.plan.embedding.n_embd, {**Workspace.buffers(self.plan), **self._streams.buffers()}
        if self.plan.mtp:
            needed[HIDDEN] = row_bytes(self.plan.mtp[0].input.n_hidden)
        of_blocks = [block.buffers(n_threads) for block in self._blocks]
        needed = largest(needed, *of_blocks, *(emitter.buffers() for emitter in self._streams.emitters))
        buffers = {name: arena.zeros(n_bytes, "scratch") for name, n_bytes in needed.items()}
        for block in self._blocks:
            block.place(weights, buffers, arena)
        self._to_move = to_move(cache for block in self._moving for cache in block.caches)
        self._weights, self._buffers, self._arena = weights, buffers, arena
        self._spaces = [Workspace(n_embd, buffers, arena, n) for n in (n_threads, 0)]
        widths = {each.embedding.n_embd for each in self.plan.mtp} - {n_embd}
        self._wide = {n_embd: self._spaces[1]} | {width: Workspace(width, buffers, arena, 0) for width in widths}

    def program(self, n: int, parts: Parts) -> Program:
        """The tape of passes of n tokens through some parts, written when it is first asked for."""
        space = self._spaces[n > tape.PRIVATE_TOKENS]
        if parts.name in self.plan.heads:  # whose passes have one tape for any number of tokens
            space = self._wide[self._parts[parts.name].n_embd]
        key = (space.is_private, parts)
        if key not in self._programs:
            self._programs[key] = self._program(space, parts)
        return self._programs[key]

    def moving(self, moves: np.ndarray) -> np.ndarray:
        """A tape that copies states; `moves` (m, 3) int64 of slot, from, to, is to live as long."""
        of_moves = {"moves": moves.ctypes.data, "n_moves": len(moves)}
        records = [
            team.record_of(kernel, caches=caches.ctypes.data, n_caches=len(caches), **of_moves)
            for kernel, caches in self._to_move
        ]
        return np.concatenate([np.empty(0, np.int64), *records])

    def states(self) -> Program:
        """The tape that brings all states of sequences up to date, for a pass over no tokens."""
        tape = Tape(self._weights, self._buffers, self._spaces[1], self._arena)
        for block in self._blocks:
            block.emit_states(tape)
        return tape.program()

    def _program(self, space: Workspace, parts: Parts) -> Program:
        tape = Tape(self._weights, self._buffers, space, self._arena)
        self._write(tape, parts)
        if parts.is_read:
            tape.norm_x(None)  # adds the rest, if there is no output
        return tape.program()

    def _begin(self, tape: Tape, part: PartEmitters[BlockEmitter], parts: Parts) -> None:
        is_head, embedded = parts.name in self.plan.heads, tape.space.embedded
        if is_head or not parts.takes_hidden or embedded is not None or self.plan.embedding.layer_inputs is not None:
            part.embedding.emit(tape)
        if embedded is not None:
            tape.copy(tape.space.x, embedded)
        if is_head:
            tape.take_hidden(ThreadRows(self._buffers[HIDDEN], part.n_hidden))
            self._streams.place(tape)
        else:
            self._streams.begin(tape, takes_hidden=parts.takes_hidden)
        if "embedding" in parts.features:
            tape.give_features("embedding", self._streams.all(tape))
        for emitter in part.inputs:
            self._streams.read(tape, None)
            emitter.emit(tape)

    def _emit_layer(self, tape: Tape, i: int, *, is_read: bool) -> None:
        layer, apart = self.plan.every_layer[i], []
        blocks = [*enumerate(zip(layer.blocks, self._layers[i], strict=True))]
        while blocks and not (is_read or blocks[-1][1][0].cached() or blocks[-1][1][0].states()):
            blocks.pop()
        for _, (_, emitter) in blocks:
            emitter.begin(tape)
        for n, (block, emitter) in sorted(blocks, key=lambda each: each[0] > 0 and not each[1][0].is_parallel):
            left = tape.set_apart(f"y {n}") if n and block.is_parallel else []  # while x is as it was
            self._streams.read(tape, block.connection)
            emitter.emit(tape, is_read=is_read or n + 1 < len(blocks))
            self._streams.write(tape, block.connection)
            if n >= layer.n_parallel and block.is_parallel:  # others do not see its addition
                apart += tape.take_pending()
            tape.put_back(left)
        tape.put_back(apart)
        if is_read and layer.scale != 1.0:
            tape.scale_x(layer.scale)
        if is_read and layer.norm is not None:
            tape.norm_x(layer.norm)


class AllStreamsEmitter(ConnectionEmitter):
    """Lets a block see all streams, one after the other, and adds as many values to them."""

    kernels = (step.add_rows,)

    def read(self, tape: Tape) -> None:
        tape.seen = tape.streams

    def write(self, tape: Tape) -> None:
        for y in tape.take_added():
            tape.add_rows(tape.streams, ThreadRows(y.address, row_stride(tape.streams.width)))


class Streams(lowering.Streams):
    """See `lowering.Streams`."""

    def __init__(self, plan: ModelPlan) -> None:
        super().__init__(plan, "numba-cpu", {AllStreams: AllStreamsEmitter})
        self._width = plan.n_hidden

    def buffers(self) -> Mapping[str, int]:
        """Bytes of the memory of several streams, by name."""
        return {"streams": row_bytes(self._width)} if self._n > 1 else {}

    def place(self, tape: Tape) -> None:
        """Tell a tape where they lie."""
        if self._n > 1:
            tape.streams = tape.space.named("streams", self._width)

    def begin(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write their initial values: hidden states, or each as x."""
        self.place(tape)
        if takes_hidden:
            tape.take_hidden(tape.streams)
        elif self._n > 1:
            tape.norm_x(None)
            tape.copy(tape.space.x, tape.streams)

    def all(self, tape: Tape) -> ThreadRows:
        return tape.norm(None) if self._n == 1 else tape.streams

    def read(self, tape: Tape, connection: Connection | None) -> None:
        tape.seen = tape.space.x
        super().read(tape, connection)

    def write(self, tape: Tape, connection: Connection | None) -> None:
        """Write the streams with the rows that the block left."""
        tape.seen = tape.space.x
        if connection is not None:
            self._connections[connection].write(tape)
