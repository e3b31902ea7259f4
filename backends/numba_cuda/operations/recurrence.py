"""Convolutions and linear recurrences, which keep states, and the operations before and after these."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve

from augury.backends.numba_cuda.device import Arguments, Pointer
from augury.backends.numba_cuda.kernels import recurrence, recurrent_ends
from augury.backends.numba_cuda.kernels.convolution import CONVOLVE_THREADS, ConvolveArgs, StepArgs, convolve as kernel
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.recurrent_ends import DecayArgs, FedArgs, GroupsArgs, LengthArgs, TimesArgs
from augury.backends.numba_cuda.operations.emitter import EMITTERS, OperationEmitter, Scope, launches
from augury.backends.numba_cuda.operations.layout import Layout
from augury.backends.numba_cuda.operations.rewrites import ActivateAndDecay, ConvolveAndDecay, ScaleAndDecay
from augury.backends.numba_cuda.products import DeviceRows
from augury.backends.numba_cuda.slot_memory import State
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Activation, GateKind, Vector
from augury.errors import UnsupportedError
from augury.lowering import Constant, Convolve, Decay, DecayByKey, Gate, Recur, ScaleToLength, Value


@EMITTERS.of(Convolve)
class ConvolveEmitter(OperationEmitter[Convolve]):
    """Convolves channel by channel, from the last inputs on, which are kept; several convolutions are one, side by side."""

    def __init__(self, operation: Convolve, scope: Scope) -> None:
        super().__init__(operation, scope)
        first, convs = operation.convs[0], operation.convs
        self._conv = first if len(convs) == 1 else evolve(first, n_channels=sum(conv.n_channels for conv in convs))
        self.place, self.state = operation.states[0], State(self._conv.state, scope.options)
        if len({(conv.size, conv.dilation) for conv in convs}) > 1 or (len(convs) > 1 and any(conv.bias for conv in convs)):
            raise UnsupportedError("convolutions of different sizes, or with biases, side by side; use backend reference")

    def emit(self, tape: Tape) -> None:
        self._convolve(tape, is_state_alone=False)

    def emit_states(self, tape: Tape) -> None:
        self._convolve(tape, is_state_alone=True)

    def _steps(self, tape: Tape) -> Any:  # noqa: ARG002 - for those with some
        """The arguments of kernels for decays that are made beside it."""
        return StepArgs()

    def _convolve(self, tape: Tape, *, is_state_alone: bool) -> None:
        operation, layout, conv, state = self.operation, self.layout, self._conv, self.state
        xs, y = [layout.rows(x, tape) for x in operation.x], layout.rows(operation.out, tape)
        gates = [layout.rows(gate, tape) for gate in (operation.before, operation.after) if gate is not None]
        is_one = all(_column(a, b) == x.width for a, b, x in zip(xs, xs[1:], operation.x, strict=False))
        if not is_one or len(gates) == 1 or any(gate.width != xs[0].width for gate in gates):
            raise UnsupportedError("a convolution of rows that do not lie side by side, or gated once; use backend reference")
        is_apart = operation.out in layout.operands and not is_state_alone
        to = layout.operand(operation.out, tape).target if is_apart else TargetArgs()
        arguments: Arguments = {"x": xs[0].at, "x_stride": xs[0].width, "y": y.at, "y_stride": y.width}
        arguments |= {"taps": tape.weights.taps(*operation.convs), "size": conv.state.shape[0] + 1}
        arguments |= {"n_channels": conv.n_channels, "has_silu": operation.has_silu, "n_aside": state.n_aside}
        arguments |= {"state": state.values, "saved": state.saved, "aside": state.aside}
        if gates:
            arguments |= {"gate_in": gates[0].at, "gate_out": gates[1].at, "has_gates": True}
        if conv.bias is not None:
            arguments |= {"bias": tape.weights.flat(conv.bias, conv.shapes[conv.bias]), "has_bias": True}
        steps = self._steps(tape)
        n_blocks = sum(-(-n // CONVOLVE_THREADS) for n in (conv.n_channels, steps.n))
        grid = (n_blocks, min(tape.size.n_tokens, state.n_slots))
        tape.launch(kernel, grid, CONVOLVE_THREADS, params=ConvolveArgs(**arguments), to=to, steps=steps)


@EMITTERS.of(ConvolveAndDecay)
class ConvolveAndDecayEmitter(ConvolveEmitter):
    """Likewise, with decays and betas of values beside the inputs."""

    def __init__(self, operation: ConvolveAndDecay, scope: Scope) -> None:
        both = dict(zip(("convolution", "decay"), operation.operations, strict=True))
        assert isinstance(both["convolution"], Convolve) and isinstance(both["decay"], Decay)  # noqa: PT018
        self._decay = both["decay"]
        super().__init__(both["convolution"], scope)

    def _steps(self, tape: Tape) -> Any:
        decay, layout = self._decay, self.layout
        assert decay.dt is not None and decay.a is not None  # noqa: PT018
        t, step_at = layout.rows(decay.t, tape), layout.row(decay.out[0])[1] - layout.row(self.operation.out)[1]
        return StepArgs(t.at, tape.weights.vector(decay.dt), tape.weights.vector(decay.a), t.width, decay.t.width, step_at)


def _column(first: DeviceRows, other: DeviceRows) -> int:
    """How many values after the first rows others begin."""
    return (other.at.offset - first.at.offset) // 4


@launches(Decay, DecayByKey)
def _decay(decay: Decay | DecayByKey, layout: Layout, tape: Tape, heads: ScaleToLength | None = None) -> None:
    """Makes decays of heads, or by key channel, and betas of heads; divides heads by their lengths in the same launch."""
    if decay.a is None:
        raise UnsupportedError("betas with biases and without decays; use backend reference")
    weights, t, n = tape.weights, layout.rows(decay.t, tape), decay.t.width
    arguments: Arguments = {"times": t.at, "times_stride": t.width, "size": n, "n_betas": n}
    if decay.b is not None:
        b = layout.rows(decay.b, tape)
        arguments |= {"betas": b.at, "betas_stride": b.width, "n_betas": decay.b.width, "has_betas": True}
    if isinstance(decay, DecayByKey):
        a = decay.a
        arguments |= {"a": weights.flat(a.weight, a.shapes[a.weight], decay.key_dim), "floor": decay.floor or 0.0}
    else:
        arguments["a"] = weights.vector(decay.a)
        if decay.dt is not None:
            arguments |= {"dt": weights.vector(decay.dt), "has_dt": True}
    grid, of = (_n_units(heads) + -(-n // WARP), tape.size.n_tokens), TimesArgs(**arguments)
    tape.launch(recurrent_ends.decay, grid, WARP, of=of, **_begin(tape, layout, decay.out, heads))


@launches(ScaleToLength)
def _scale_to_length(heads: ScaleToLength, layout: Layout, tape: Tape) -> None:
    tape.launch(recurrent_ends.decay, (_n_units(heads), tape.size.n_tokens), WARP, **_begin(tape, layout, (), heads))


@launches(ScaleAndDecay)
def _scale_and_decay(operation: ScaleAndDecay, layout: Layout, tape: Tape) -> None:
    """Divides heads by their lengths, and makes decays, in one launch."""
    heads, decay = operation.operations
    assert isinstance(heads, ScaleToLength) and isinstance(decay, Decay | DecayByKey)  # noqa: PT018
    _decay(decay, layout, tape, heads)


def _begin(tape: Tape, layout: Layout, out: tuple[Value, ...], heads: ScaleToLength | None) -> Arguments:
    """The rows that kernels of decays write to, which begin with heads if there are such, and the columns of decays."""
    rows = layout.rows(out[0] if heads is None else heads.x, tape)
    to = DecayArgs(rows.at, rows.width, *(_column(rows, layout.rows(value, tape)) for value in out))
    if heads is None:
        return {"to": to}
    return {"to": to, "heads": LengthArgs(_n_units(heads), heads.n_scaled, heads.size, heads.eps, heads.scale)}


def _n_units(heads: ScaleToLength | None) -> int:
    return 0 if heads is None else heads.x.width // heads.size


@launches(ActivateAndDecay)
def _activate_and_decay(operation: ActivateAndDecay, layout: Layout, tape: Tape) -> None:
    """Sends a recurrence's inputs through SiLU where they are, and writes its decays and betas."""
    first, *_, constant = operation.operations
    assert isinstance(constant, Constant)
    rows, size = layout.rows(first.made[0], tape), layout.row(constant.out)[1]
    ends = tape.weights.constant(("numbers", constant.numbers), lambda: np.array(constant.numbers, np.float32))
    grid = (-(-rows.width // THREADS), tape.size.n_tokens)
    tape.launch(recurrent_ends.light, grid, THREADS, rows=rows.at, ends=ends, stride=rows.width, size=size)


@EMITTERS.of(Recur)
class RecurEmitter(OperationEmitter[Recur]):
    """Lets the matrices of heads take in tokens."""

    def __init__(self, operation: Recur, scope: Scope) -> None:
        super().__init__(operation, scope)
        self.place, self.state = operation.state, State(operation.heads.state, scope.options)

    def emit(self, tape: Tape) -> None:
        recur, heads, layout, state = self.operation, self.operation.heads, self.layout, self.state
        kind = recurrence.BY_CHANNEL if heads.is_by_channel else recurrence.BY_KEY if heads.is_by_key else recurrence.BY_HEAD
        row, y = layout.whole_row(recur.keys, tape), layout.rows(recur.out, tape)
        values = {"query_at": recur.queries, "key_at": recur.keys, "value_at": recur.values, "beta_at": recur.betas}
        arguments: Arguments = {each: layout.row(value)[1] for each, value in values.items()}
        arguments |= {"state": state.values, "saved": state.saved, "aside": state.aside, "added": state.added, "y": y.at}
        arguments |= {"n_heads": heads.n_heads, "n_key_heads": heads.n_key_heads, "n_rows": heads.key_dim}
        arguments |= {"value_dim": heads.value_dim, "is_tiled": heads.is_tiled, "n_aside": state.n_aside}
        if recur.a is not None:
            shape = recur.a.shapes[recur.a.weight]
            arguments["table"] = tape.weights.flat(recur.a.weight, shape, columns=recurrence.COLUMNS)
        steps = {"step_at": layout.row(recur.betas if recur.decays is None else recur.decays)[1], "n_steps": _n_steps(recur)}
        grid = (heads.n_heads * heads.value_dim // recurrence.COLUMNS, min(tape.size.n_tokens, state.n_slots))
        params = recurrence.RecurArgs(x=row.at, stride=row.width, **steps, **arguments)
        tape.launch(recurrence.RECUR[kind, heads.has_delta], grid, WARP, params=params)

    def emit_states(self, tape: Tape) -> None:
        self.emit(tape)

    def kept(self, tape: Tape) -> Any:
        """The arguments of `gate_groups` for inputs of drafted tokens, which are kept aside."""
        recur, layout = self.operation, self.layout
        row, n_keys = layout.whole_row(recur.keys, tape), recur.keys.width
        step_at = layout.row(recur.betas if recur.decays is None else recur.decays)[1]
        columns = (layout.row(recur.keys)[1], n_keys, step_at)
        return FedArgs(row.at, self.state.aside, row.width, *columns, self.state.n_aside, n_keys + _n_steps(recur))


def _n_steps(recur: Recur) -> int:
    heads = recur.heads
    return heads.value_dim if heads.is_by_channel else heads.n_heads * (heads.key_dim if heads.is_by_key else 1)


@EMITTERS.of(Gate)
class GateEmitter(OperationEmitter[Gate]):
    """Gates the output of a recurrence, and keeps aside the inputs of drafted tokens.

    Attributes:
        recurrence: The recurrence, if there is one.
    """

    recurrence: RecurEmitter | None = None

    def __init__(self, operation: Gate, scope: Scope) -> None:
        super().__init__(operation, scope)
        if operation.activation not in (Activation.SILU, GateKind.SIGMOID):
            raise UnsupportedError(
                f"gates through {operation.activation.name}, expected SILU or SIGMOID; use backend reference"
            )

    def emit(self, tape: Tape) -> None:
        operation, layout, norm, size = self.operation, self.layout, self.operation.norm, self.operation.y.width
        y, gates = (layout.rows(value, tape) for value in (operation.y, operation.gates))
        group = norm.size if norm is not None else size if size % WARP else WARP
        n_groups = size // group
        per_block = n_groups if group % WARP else THREADS // WARP
        arguments: Arguments = {"y": y.at, "size": size, "gates": gates.at, "gates_stride": gates.width}
        arguments |= {"group": group, "per_block": per_block, "is_gated_first": operation.is_gated_first}
        arguments["is_sigmoid"] = operation.activation is GateKind.SIGMOID
        if norm is not None:
            step = 0 if norm.weight_shape is None else norm.size
            weight = tape.weights.norm(norm, n_groups if step else 1)
            arguments |= {"weight": weight, "step": step, "has_norm": True, "eps": norm.eps}
        if operation.skip is not None and operation.values is not None:
            values = layout.rows(operation.values, tape)
            arguments |= {"values": values.at, "values_stride": values.width, "skip": _skip(operation.skip, size, tape)}
            arguments["has_skip"] = True
        to, fed = layout.operand(operation.out, tape).target, FedArgs(n_aside=1)
        if self.recurrence is not None:
            fed = self.recurrence.kept(tape)
        grid = (tape.size.n_tokens, -(-n_groups // per_block))
        tape.launch(recurrent_ends.gate_groups, grid, THREADS, params=GroupsArgs(**arguments), to=to, fed=fed)


def _skip(skip: Vector, size: int, tape: Tape) -> Pointer:
    """A factor for each value."""
    return tape.weights.flat(skip.weight, skip.shapes[skip.weight], size // skip.size)
