"""How connections of `residual_streams` come onto a tape of the GPU backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from augury.backends.numba_cuda.operations import MAX_TOKENS, THREADS, Arguments, DeviceRows, Gate, Tape, activate
from augury.blocks import Activation, ModelPlan
from augury.errors import UnsupportedError
from augury.lowering import ConnectionEmitter
from augury.plugins.residual_streams import AttentionResidual, GatedHyperConnection, HyperConnection
from augury.plugins.residual_streams.connections import n_begun
from augury.plugins.residual_streams.kernels import numba_cuda as kernels

_NORMED, _LOW, _SEEN = "normed streams", "low streams", "seen streams"
_COEFFICIENTS, _WEIGHTS, _GATES = "coefficients of streams", "weights of streams", "gates of streams"


class AttentionResidualEmitter(ConnectionEmitter):
    """Mixes streams, which lie one after another in the buffer of x; x is the last of them."""

    connection: AttentionResidual

    def __init__(self, connection: AttentionResidual, plan: ModelPlan) -> None:
        super().__init__(connection, plan)
        _check("that layers begin", n_begun(plan) + 1, kernels.MAX_MIXED)

    def buffers(self) -> Mapping[str, int]:
        row = 4 * MAX_TOKENS * self.size
        return {"x": row * (1 + n_begun(self.plan)), _SEEN: row}

    def read(self, tape: Tape) -> None:
        x, size, norm = tape.x, self.size, self.connection.norm
        tape.add_pending()
        if norm is not None:
            n = 1 + (x.at.offset - tape.buffers["x"].offset) // (4 * MAX_TOKENS * size)
            tape.seen = DeviceRows(tape.buffers[_SEEN], size)
            arguments: Arguments = {"streams": tape.buffers["x"], "n": n, "size": size, "seen": tape.seen.at}
            arguments["norm"] = tape.weights.norm_arguments(norm)
            tape.launch(kernels.mix_streams, (tape.size.n_tokens,), THREADS, **arguments)
        if self.connection.begins:
            tape.x = DeviceRows(x.at.at(4 * MAX_TOKENS * size), size)
            tape.blend(tape.x, x, 0.0, 0.0)


class _Emitter(ConnectionEmitter):
    """The parts that connections with several streams from the embedding on share."""

    def __init__(self, connection: Any, plan: ModelPlan) -> None:
        super().__init__(connection, plan)
        _check("of the embedding", self.n_streams, kernels.MAX_STREAMS)

    def buffers(self) -> Mapping[str, int]:
        n, row = self.n_streams, 4 * MAX_TOKENS
        weights = dict.fromkeys((_COEFFICIENTS, _WEIGHTS), row * n * (2 + n))
        return {_SEEN: row * self.size, **weights, **Tape.operand_buffers(_NORMED, n * self.size)}

    def _read(self, tape: Tape, n_rounds: int = 0, **made: Any) -> None:
        tape.seen = DeviceRows(tape.buffers[_SEEN], self.size)
        shared = kernels.ShareArgs(coefficients=tape.buffers[_COEFFICIENTS], weights=tape.buffers[_WEIGHTS], **made)
        places = {"streams": tape.streams.at, "seen": tape.seen.at, "y": tape.x.at, "shared": shared}
        sizes = {"n": self.n_streams, "size": self.size, "n_rounds": n_rounds}
        tape.launch(kernels.read_streams, (tape.size.n_tokens,), THREADS, **places, **sizes)

    def _write(self, tape: Tape, stride: int, post: int, comb: int) -> None:
        grid = (-(-self.size // kernels.STREAM_THREADS), tape.size.n_tokens)
        places = {"streams": tape.streams.at, "weights": tape.buffers[_WEIGHTS], "y": tape.x.at}
        columns = {"stride": stride, "post": post, "comb": comb}
        tape.launch(kernels.write_streams, grid, kernels.STREAM_THREADS, n=self.n_streams, size=self.size, **places, **columns)


class HyperConnectionEmitter(_Emitter):
    """Reads streams by weights, and mixes them."""

    connection: HyperConnection

    def read(self, tape: Tape) -> None:
        each, made, streams = self.connection, self.connection.coefficients, tape.streams
        normed = tape.operand(_NORMED, streams.width, [made])
        tape.norm_groups(streams, streams.width, each.norm, normed)
        tape.multiply(normed, ((made, 0),), DeviceRows(tape.buffers[_COEFFICIENTS], made.n_out))
        vectors = {"scales": tape.weights.vector(each.scales), "base": tape.weights.vector(each.base)}
        numbers = {"eps": each.eps, "post_scale": each.post_scale, "post_eps": each.post_eps}
        self._read(tape, max(each.n_rounds, 1), n_made=made.n_out, **vectors, **numbers)

    def write(self, tape: Tape) -> None:
        n, n_made = self.n_streams, self.connection.coefficients.n_out
        self._write(tape, n_made, n, n if n_made > 2 * n else 0)


class GatedHyperConnectionEmitter(_Emitter):
    """Reads gated streams, and adds to all of them."""

    connection: GatedHyperConnection

    def buffers(self) -> Mapping[str, int]:
        low, row = self.connection.down.n_out, 4 * MAX_TOKENS
        gates = {_GATES: row * self.n_streams * self.size, _LOW: row * low}
        return {**super().buffers(), **gates, **Tape.operand_buffers(_LOW, low)}

    def read(self, tape: Tape) -> None:
        each, buffers, streams, inject = self.connection, tape.buffers, tape.streams, self.connection.inject
        normed = evolve(
            tape.operand(_NORMED, streams.width, [each.down, *([] if inject is None else [inject])]), as_floats=True
        )
        tape.join([(streams, streams.width, each.norm)], normed)
        low, coefficients = DeviceRows(buffers[_LOW], each.down.n_out), DeviceRows(buffers[_COEFFICIENTS], self.n_streams)
        tape.multiply(normed, ((each.down, 0),), low)
        if inject is not None:
            tape.multiply(normed, ((inject, 0),), coefficients)
        bent = tape.operand(_LOW, low.width, [each.up])
        activate(tape, Gate(Activation.SILU), low, None, bent, low.width)
        tape.multiply(bent, ((each.up, 0),), DeviceRows(buffers[_GATES], streams.width))
        tape.seen = DeviceRows(buffers[_SEEN], self.size)
        places = {"streams": normed.floats, "gates": buffers[_GATES], "weights": buffers[_WEIGHTS], "seen": tape.seen.at}
        grid = (-(-self.size // kernels.STREAM_THREADS), tape.size.n_tokens)
        made: Arguments = {"injected": coefficients.at, "has_weights": inject is not None, "y": tape.x.at}
        sizes = {"n": self.n_streams, "size": self.size, "stride": normed.width}
        tape.launch(kernels.read_gated_streams, grid, kernels.STREAM_THREADS, **sizes, **places, **made)

    def write(self, tape: Tape) -> None:
        if self.connection.inject is not None:
            self._write(tape, self.n_streams, 0, 0)


class StreamMeanEmitter(_Emitter):
    """Reads the mean of streams."""

    def read(self, tape: Tape) -> None:
        self._read(tape)


def _check(what: str, n: int, most: int) -> None:
    if n > most:
        raise UnsupportedError(f"{n} residual streams {what}, backend numba-cuda computes {most} at most; use another backend")
