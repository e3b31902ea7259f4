"""Convolutions and linear recurrences, which keep states, and the operations before and after these."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import convolution, recurrence, recurrent_ends
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.emitter import EMITTERS, OperationEmitter, Placed, records
from augury.backends.numba_cpu.tape import Tape, Work
from augury.backends.numba_cpu.weights import Weights
from augury.blocks import Activation, Convolution, GateKind, Vector
from augury.errors import UnsupportedError
from augury.lowering import Convolve, Decay, DecayByKey, Gate, Recur, ScaleToLength, Scope

_FUNCTIONS: dict[Activation | GateKind, int] = {
    Activation.SILU: recurrent_ends.SILU,
    GateKind.SIGMOID: recurrent_ends.SIGMOID,
    GateKind.SOFTPLUS: recurrent_ends.SOFTPLUS,
}
_GROUP = 256  # values that a thread gates at once where no norm says how many


@EMITTERS.of(Convolve)
class ConvolveEmitter(OperationEmitter[Convolve]):
    """Convolves channel by channel, from the last inputs on, which are kept."""

    kernels = (convolution.convolve,)

    def emit(self, tape: Tape) -> None:
        self.emit_states(tape)

    def emit_states(self, tape: Tape) -> None:
        operation, placed = self.operation, self.placed
        before, after = (placed.at(gate).address for gate in (operation.before, operation.after))
        parts = operation.out.split(*(conv.n_channels for conv in operation.convs))
        for value, conv, state, part in zip(operation.x, operation.convs, operation.states, parts, strict=True):
            fields = {
                "x": placed.at(value),
                "gate_in": before,
                "gate_out": after,
                "y": placed.at(part),
                "n_channels": conv.n_channels,
                "width": up(conv.n_channels, 16),
                "size": conv.state.shape[0] + 1,
                "taps": placed.constant(conv, partial(_padded_taps, conv, placed.weights)),
                "bias": placed.weights.vector(None if conv.bias is None else Vector(conv.bias, conv.n_channels)),
                "has_silu": operation.has_silu,
                "state": placed.states[state],
                "n_aside": placed.states[state].n_aside,
            }
            tape.add(Work("convolution"), convolution.convolve, **fields)


def _padded_taps(conv: Convolution, weights: Weights) -> np.ndarray:
    """The weights of a convolution by input, in whole vectors of channels."""
    taps = conv.taps(weights.values(conv.weight, conv.shapes[conv.weight]))
    return np.pad(taps, ((0, 0), (0, -conv.n_channels % 16))).astype(np.float32)


@records(
    ScaleToLength,
    kernels=(recurrent_ends.unit_heads,),
    needs_no_barrier=True,
    written=property(lambda scale: (scale.operation.x,)),
)
def _scale_to_length(heads: ScaleToLength, placed: Placed, tape: Tape) -> None:
    tape.add(
        Work("lengths of queries and keys"),
        recurrent_ends.unit_heads,
        x=placed.at(heads.x),
        n_heads=heads.x.width // heads.size,
        n_scaled=heads.n_scaled,
        size=heads.size,
        eps=heads.eps,
        scale=heads.scale,
    )


@records(Decay, DecayByKey, kernels=(recurrent_ends.decay,))
def _decay(operation: Decay | DecayByKey, placed: Placed, tape: Tape) -> None:
    """Makes decays and betas of heads, or of channels, or decays by key, keys times these, and betas."""
    layout, column, (*decays, betas) = placed.layout, placed.layout.column, operation.out
    own = {"dt": 0, "keys_at": 0, "products_at": 0, "floor": 0.0}
    if isinstance(operation, DecayByKey):
        a = _repeated(operation.a, operation.key_dim, placed)
        places = {"keys_at": 4 * column(operation.keys), "products_at": 4 * layout.decayed(betas)}
        own |= {**places, "floor": operation.floor or 0.0}
    else:
        a, own["dt"] = placed.weights.vector(operation.a), placed.weights.vector(operation.dt)
    fields = {
        "rows": layout.row(betas, placed.buffers),
        "t": placed.at(operation.t),
        "b": placed.at(operation.b),
        "a": a,
        "size": operation.t.width,
        "n_betas": betas.width,
        "decays_at": 4 * column(decays[0]) if decays else 0,
        "betas_at": 4 * column(betas),
        **own,
    }
    tape.add(Work("decays"), recurrent_ends.decay, **fields)


def _repeated(vector: Vector, n: int, placed: Placed) -> int:
    """The address of numbers, n times each."""
    return placed.constant((vector, n), lambda: np.repeat(placed.weights.floats(vector), n))


@EMITTERS.of(Recur)
class RecurEmitter(OperationEmitter[Recur]):
    """Lets the matrices of heads take in tokens, and keeps drafted ones aside."""

    def __init__(self, operation: Recur, scope: Scope) -> None:
        super().__init__(operation, scope)
        heads, kinds = operation.heads, ("has_delta", "is_by_channel", "is_by_key")
        self._kernel = recurrence.recurrence_kernel(**{kind: getattr(heads, kind) for kind in kinds})
        self.kernels = (self._kernel, recurrence.keep)

    def _fields(self) -> dict[str, Any]:
        recur, heads, placed, layout = self.operation, self.operation.heads, self.placed, self.placed.layout
        step, n_steps = (recur.betas, heads.value_dim) if recur.decays is None else (recur.decays, heads.n_heads)
        n_steps *= heads.key_dim if heads.is_by_key else 1
        n_channels, by_channel = heads.n_heads * heads.value_dim, 0
        if (a := recur.a) is not None:
            by_channel = placed.constant(a, lambda: _by_block(placed.weights.floats(a).reshape(n_channels, -1)))
        return {
            "x": layout.row(recur.keys, placed.buffers),
            "y": placed.at(recur.out),
            "heads": heads,
            "q_at": 4 * layout.column(recur.queries),
            "k_at": 4 * layout.column(recur.keys),
            "v_at": 4 * layout.column(recur.values),
            "step_at": 4 * layout.column(step),
            "beta_at": 4 * layout.column(recur.betas),
            "n_steps": n_steps,
            "aside_stride": 4 * up(heads.state.n_fed - n_channels, 16),
            "state": placed.states[recur.state],
            "n_aside": placed.states[recur.state].n_aside,
            "table": by_channel,
            "decayed_at": 4 * layout.decayed(recur.keys),
        }

    def emit(self, tape: Tape) -> None:
        """Write that drafted tokens are kept aside once all threads have taken in those before."""
        self.emit_states(tape)
        tape.add(Work("keeping drafted tokens aside"), recurrence.keep, **self._fields())
        tape.waits = False

    def emit_states(self, tape: Tape) -> None:
        tape.add(Work("recurrence"), self._kernel, **self._fields())


def _check_gates(emitter: OperationEmitter[Gate]) -> None:
    gate, n_gates = emitter.operation, emitter.operation.gates.width
    if gate.activation not in _FUNCTIONS or (gate.norm is not None and n_gates != gate.y.width):
        raise UnsupportedError(
            f"{n_gates} gates of {gate.y.width} values through {gate.activation.name}, expected SILU, SIGMOID or SOFTPLUS, and "
            "with a norm a gate for each value; use backend reference"
        )


@records(
    Gate,
    kernels=(recurrent_ends.gate,),
    check=_check_gates,
    written=property(lambda gate: (gate.operation.y, gate.operation.out)),
)
def _gate(gate: Gate, placed: Placed, tape: Tape) -> None:
    """Gates a recurrence's output, in place; see `recurrent_ends.gate`."""
    size, n_gates, group = gate.y.width, gate.gates.width, _GROUP if gate.norm is None else gate.norm.size
    fields = {
        "y": placed.at(gate.y),
        "size": size,
        "skip": 0 if gate.skip is None else _repeated(gate.skip, size // gate.skip.size, placed),
        "values": placed.at(gate.y if gate.values is None else gate.values),
        "gates": placed.at(gate.gates),
        "norm": placed.weights.norm(gate.norm),
        "group": size // n_gates if n_gates < size else group,
        "is_gated_first": gate.is_gated_first,
        "function": _FUNCTIONS[gate.activation],
        "is_by_group": n_gates < size,
    }
    tape.add(Work("gates"), recurrent_ends.gate, **fields)


def _by_block(a: np.ndarray) -> np.ndarray:
    """The factors of decays, (V, K), in the order of a recurrence's matrix: (blocks, K, columns)."""
    width = recurrence.BLOCK_COLUMNS
    padded = np.zeros((up(len(a), width), a.shape[1]), np.float32)
    padded[: len(a)] = a
    return np.ascontiguousarray(padded.reshape(-1, width, a.shape[1]).transpose(0, 2, 1))
