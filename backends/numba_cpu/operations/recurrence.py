"""Convolutions and linear recurrences, which keep states, and what is done before and after these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.recurrent import place_convolution
from augury.backends.numba_cpu.kernels import convolution, recurrence, recurrent_ends
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.operations.emitter import OperationEmitter, Placed
from augury.backends.numba_cpu.operations.layout import Place
from augury.backends.numba_cpu.profile import Work
from augury.blocks import Activation, GateKind
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import LinearRecurrence, Vector
    from augury.lowering import Convolve, Decay, DecayByKey, Gate, Recur, ScaleToLength, Value

__all__ = [
    "ConvolveEmitter",
    "DecayByKeyEmitter",
    "DecayEmitter",
    "GateEmitter",
    "RecurEmitter",
    "ScaleToLengthEmitter",
]

_GROUP = 256  # values that a thread gates at once where no norm says how many


class ConvolveEmitter(OperationEmitter):
    """Convolves channel by channel, from the last inputs on, which are kept."""

    operation: Convolve

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (convolution.convolve,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        operation = self.operation
        gates = [0 if gate is None else placed.at(gate).address for gate in (operation.before, operation.after)]
        parts = operation.out.split(*(conv.n_channels for conv in operation.convs))
        self._records = []
        for value, conv, state, part in zip(operation.x, operation.convs, operation.states, parts, strict=True):
            x, y = placed.at(value), placed.at(part)
            self._records.append(
                place_convolution(
                    conv,
                    placed.states[state],
                    placed.n_aside,
                    placed.weights,
                    placed.arena,
                    x=(x.address, x.stride),
                    y=(y.address, y.stride),
                    gates=(gates[0], gates[1]),
                    has_silu=operation.has_silu,
                )
            )

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        self.emit_states(tape)

    def emit_states(self, tape: Tape) -> None:
        """See `OperationEmitter.emit_states`."""
        for record in self._records:
            tape.add(Work("convolution"), convolution.convolve, record)


class ScaleToLengthEmitter(OperationEmitter):
    """Divides heads by their lengths."""

    operation: ScaleToLength
    needs_no_barrier = True

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.unit_heads,)

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        heads = self.operation
        at, n_heads = self.placed.at(heads.x), heads.x.width // heads.size
        sizes = (n_heads, heads.n_scaled, heads.size, bits(heads.eps), bits(heads.scale))
        tape.add(Work("lengths of queries and keys"), recurrent_ends.unit_heads, at.address, at.stride, *sizes)

    @property
    def written(self) -> tuple[Value, ...]:
        """See `OperationEmitter.written`."""
        return (self.operation.x,)


class DecayEmitter(OperationEmitter):
    """Makes decays and betas of heads, or of channels; see `recurrent_ends.decay`."""

    operation: Decay

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.decay,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        operation = self.operation
        *decays, betas = operation.out
        t, width = placed.at(operation.t), operation.t.width
        b = Place(0, 0) if operation.b is None else placed.at(operation.b)
        dt, a = (_kept(part, placed) for part in (operation.dt, operation.a))
        columns = [4 * placed.layout.column(value) for value in (*(decays or [betas]), betas)]
        row = placed.layout.row(betas, placed.buffers)
        fields = [row.address, row.stride, t.address, t.stride, b.address, b.stride, dt, a, width, *columns]
        self._record = placed.arena.keep(np.array(fields, np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        tape.add(Work("decays"), recurrent_ends.decay, self._record)


class DecayByKeyEmitter(OperationEmitter):
    """Makes decays by key, keys times these, and betas; see `recurrent_ends.decay_keys`."""

    operation: DecayByKey

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.decay_keys,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        operation, layout = self.operation, placed.layout
        (decays, betas), (t, b) = operation.out, (placed.at(value) for value in (operation.t, operation.b))
        a = placed.arena.keep(np.repeat(_floats(operation.a, placed), operation.key_dim), "weights")
        row = layout.row(decays, placed.buffers)
        columns = (layout.column(operation.keys), layout.column(decays), layout.decayed(decays), layout.column(betas))
        self._operands = (
            *(row.address, row.stride, t.address, t.stride, b.address, b.stride, a, operation.t.width, operation.b.width),
            *(*(4 * column for column in columns), bits(operation.floor or 0.0)),
        )

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        tape.add(Work("decays"), recurrent_ends.decay_keys, *self._operands)


class RecurEmitter(OperationEmitter):
    """Lets the matrices of heads take in tokens, and keeps drafted ones aside."""

    operation: Recur

    def __init__(self, operation: Recur) -> None:
        super().__init__(operation)
        self._kernel = _recurrence_kernel(operation.heads)

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (self._kernel, recurrence.keep)

    def place(self, placed: Placed) -> None:
        """Write the record, in the order of the kernels' offsets."""
        recur, heads, layout, state = self.operation, self.operation.heads, placed.layout, placed.states[self.operation.state]
        row, y = layout.row(recur.keys, placed.buffers), placed.at(recur.out)
        step, n_steps = (recur.betas, heads.value_dim) if recur.decays is None else (recur.decays, heads.n_heads)
        n_steps *= heads.key_dim if heads.is_by_key else 1
        columns = (4 * layout.column(value) for value in (recur.queries, recur.keys, recur.values, step, recur.betas))
        table = 0
        if recur.a is not None:
            by_channel = _floats(recur.a, placed).reshape(heads.n_heads * heads.value_dim, -1)
            table = placed.arena.keep(_by_block(by_channel), "weights")
        n_added = heads.n_heads * heads.value_dim
        fields = [
            *(row.address, row.stride, y.address, y.stride, heads.n_heads, heads.n_key_heads, heads.key_dim, heads.value_dim),
            *(int(heads.is_tiled), *columns, n_steps, 4 * up(heads.state.n_fed - n_added, 16)),
            *(state.values, state.saved, state.aside, state.added, placed.n_aside, table),
            4 * layout.decayed(recur.keys),
        ]
        self._record = placed.arena.keep(np.array(fields, np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        """Write that drafted tokens are kept aside once all threads have taken in those before."""
        self.emit_states(tape)
        tape.add(Work("keeping drafted tokens aside"), recurrence.keep, self._record, is_private=True)

    def emit_states(self, tape: Tape) -> None:
        """See `OperationEmitter.emit_states`."""
        tape.add(Work("recurrence"), self._kernel, self._record)


class GateEmitter(OperationEmitter):
    """Gates what a recurrence yields, in place; see `recurrent_ends.gate`."""

    operation: Gate

    def __init__(self, operation: Gate) -> None:
        super().__init__(operation)
        if operation.activation not in (Activation.SILU, GateKind.SIGMOID):
            raise UnsupportedError(
                f"gates through {operation.activation.name}, expected SILU or SIGMOID; use backend reference"
            )

    def kernels(self) -> Sequence[Any]:
        """See `OperationEmitter.kernels`."""
        return (recurrent_ends.gate,)

    def place(self, placed: Placed) -> None:
        """See `OperationEmitter.place`."""
        gate, size = self.operation, self.operation.y.width
        y, gates = placed.at(gate.y), placed.at(gate.gates)
        values = y if gate.values is None else placed.at(gate.values)
        skip = 0
        if gate.skip is not None:
            skip = placed.arena.keep(np.repeat(_floats(gate.skip, placed), size // gate.skip.size), "weights")
        group = _GROUP if gate.norm is None else gate.norm.size
        kind = (int(gate.is_gated_first), int(gate.activation is GateKind.SIGMOID))
        rows = (skip, values.address, values.stride, gates.address, gates.stride)
        fields = [y.address, y.stride, size, *rows, placed.weights.norm(gate.norm), group, *kind]
        self._record = placed.arena.keep(np.array(fields, np.int64), "scratch")

    def emit(self, tape: Tape) -> None:
        """See `OperationEmitter.emit`."""
        tape.add(Work("gates"), recurrent_ends.gate, self._record)

    @property
    def written(self) -> tuple[Value, ...]:
        """See `OperationEmitter.written`."""
        return (self.operation.y, self.operation.out)


def _recurrence_kernel(heads: LinearRecurrence) -> Any:
    return recurrence.recurrence_kernel(has_delta=heads.has_delta, is_by_channel=heads.is_by_channel, is_by_key=heads.is_by_key)


def _floats(part: Vector, placed: Placed) -> np.ndarray:
    """The numbers of a small tensor, (n,) float32."""
    return np.array(placed.weights.values(part.weight, part.shapes[part.weight]), np.float32).reshape(-1)


def _kept(part: Vector | None, placed: Placed) -> int:
    return 0 if part is None else placed.arena.keep(_floats(part, placed), "weights")


def _by_block(a: np.ndarray) -> np.ndarray:
    """What makes decays, (V, K), in the order of a recurrence's matrix: (blocks, K, columns)."""
    width = recurrence.BLOCK_COLUMNS
    padded = np.zeros((up(len(a), width), a.shape[1]), np.float32)
    padded[: len(a)] = a
    return np.ascontiguousarray(padded.reshape(-1, width, a.shape[1]).transpose(0, 2, 1))
