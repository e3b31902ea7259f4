"""How connections of `residual_streams` come onto a tape of the CPU backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels.activation import activate_kernel, activating
from augury.backends.numba_cpu.kernels.rows import place_rows
from augury.backends.numba_cpu.operations import Tape, ThreadRows, Work, row_bytes
from augury.blocks import Linear, Norm
from augury.lowering import ConnectionEmitter
from augury.plugins.residual_streams import AttentionResidual, GatedHyperConnection, HyperConnection
from augury.plugins.residual_streams.connections import n_begun
from augury.plugins.residual_streams.kernels import numba_cpu as kernels

_SILU = activate_kernel(activation="silu", is_gated=False, is_limited=False, limits_activated=False)


class AttentionResidualEmitter(ConnectionEmitter):
    """Mixes streams, of which earlier ones lie aside, and x is the last."""

    connection: AttentionResidual
    kernels = (kernels.mix_rows,)

    def buffers(self) -> Mapping[str, int]:
        return dict.fromkeys(["mixed", *(f"stream {i}" for i in range(n_begun(self.plan)))], row_bytes(self.size))

    def scratch_bytes(self) -> int:
        """See `ConnectionEmitter.scratch_bytes`: a row, and the weights of its streams."""
        return 4 * (self.size + n_begun(self.plan) + 1) + 128

    def read(self, tape: Tape) -> None:
        x, norm = tape.space.x, self.connection.norm
        if norm is not None:
            tape.norm_x(None)
            tape.seen = seen = tape.space.named("mixed", self.size)
            rows = np.array(
                [(each.address, each.width, each.thread_stride) for each in (*tape.aside, x)], np.int64
            )  # `StridedRows`
            streams = {"streams": tape.arena.keep(rows, "scratch"), "n_streams": len(rows)}
            tape.add_by_rows(
                "mixing streams", kernels.mix_rows, **streams, size=self.size, norm=tape.weights.norm(norm), out=seen
            )
        if self.connection.begins:
            self._begin(tape, tape.space.named(f"stream {len(tape.aside)}", self.size))

    @staticmethod
    def _begin(tape: Tape, aside: ThreadRows) -> None:
        """Put x aside, which begins anew with the rows that are added next."""
        x = tape.space.x
        tape.norm_x(None)
        tape.copy(x, aside)
        if tape.seen is x:
            tape.seen = aside
        tape.aside.append(aside)
        tape.add_rows(tape.space.x, x, -1.0)


class _Emitter(ConnectionEmitter):
    """The parts that connections with several streams from the embedding on share."""

    def buffers(self) -> Mapping[str, int]:
        weights = dict.fromkeys(("coefficients", "weights of streams"), row_bytes(self._n_weights))
        return {**weights, "normed streams": row_bytes(self.n_streams * self.size)}

    def scratch_bytes(self) -> int:
        """See `ConnectionEmitter.scratch_bytes`: a vector of every stream."""
        return 64 * self.n_streams

    @property
    def _n_weights(self) -> int:
        return -(-self.n_streams * (2 + self.n_streams) // 16) * 16

    def _weights(self, tape: Tape) -> ThreadRows:
        return tape.space.named("weights of streams", self._n_weights)

    def _streams(self, tape: Tape) -> dict[str, Any]:
        return {"streams": tape.streams, "n_streams": self.n_streams, "size": self.size}

    def _normed(self, tape: Tape, norm: Norm) -> ThreadRows:
        normed = tape.space.named("normed streams", self.n_streams * self.size)
        tape.place("norm", tape.streams, normed, normed.width, norm, is_private=tape.space.is_private)
        return normed

    def _weigh(self, tape: Tape, made: Linear, n_gates: int, n_rounds: int = 0, eps: float = 0.0) -> None:
        numbers = tape.arena.shared(("weights of streams", self.connection), partial(self._numbers, tape), "weights")
        weights = {"weights": self._weights(tape), "numbers": numbers, "n_streams": self.n_streams}
        sizes = {"n_gates": n_gates, "n_rounds": n_rounds, "eps": eps}
        coefficients = tape.products("coefficients", made.n_out)
        tape.add_by_rows("weights of streams", kernels.weigh_streams, coefficients=coefficients, **weights, **sizes)

    def _numbers(self, tape: Tape) -> np.ndarray:  # noqa: ARG002 - others take some of the file
        """See `WeighStreams.numbers`: where nothing else is said, a weight is twice a sigmoid."""
        return np.repeat(np.array([[1.0], [0.0], [2.0], [0.0]], np.float32), self._n_weights, axis=1)

    def _read(self, tape: Tape, weights: ThreadRows) -> None:
        places = {**self._streams(tape), "weights": weights, "x": tape.space.x}
        tape.add_by_rows("reading streams", kernels.read_streams, **places)

    def _write(self, tape: Tape, post: int, comb: int) -> None:
        weights = {"weights": self._weights(tape), "post": post, "comb": comb}
        for y in tape.take_added():
            tape.add_by_rows("writing streams", kernels.write_streams, **self._streams(tape), **weights, y=y)


class HyperConnectionEmitter(_Emitter):
    """Reads streams by weights, and mixes them."""

    connection: HyperConnection
    kernels = (kernels.weigh_streams, kernels.write_streams, kernels.read_streams, place_rows)

    def read(self, tape: Tape) -> None:
        made = self.connection.coefficients
        normed = self._normed(tape, self.connection.norm)
        tape.multiply("connections", normed, [(made, tape.buffers["coefficients"])])
        self._weigh(tape, made, min(made.n_out, 2 * self.n_streams), self.connection.n_rounds, self.connection.eps)
        self._read(tape, self._weights(tape))

    def write(self, tape: Tape) -> None:
        self._write(tape, self.n_streams, 2 * self.n_streams if self.connection.n_rounds else -1)

    def _numbers(self, tape: Tape) -> np.ndarray:
        each, numbers = self.connection, super()._numbers(tape)
        scales, base = (tape.weights.values(part.weight, (part.size,)) for part in (each.scales, each.base))
        numbers[:2, : base.size] = np.repeat(scales, each.parts), base
        numbers[2:, : 2 * self.n_streams] = np.repeat(
            [[1.0, each.post_scale], [each.eps, each.post_eps]], self.n_streams, axis=1
        )
        return numbers


class GatedHyperConnectionEmitter(_Emitter):
    """Reads gated streams, and adds to all of them."""

    connection: GatedHyperConnection
    kernels = (kernels.weigh_streams, kernels.write_streams, place_rows, kernels.read_gated_streams, _SILU)

    def buffers(self) -> Mapping[str, int]:
        low = dict.fromkeys(("low streams", "activated streams"), row_bytes(self.connection.down.n_out))
        return {**super().buffers(), **low, "gates of streams": row_bytes(self.n_streams * self.size)}

    def read(self, tape: Tape) -> None:
        down, up, inject = self.connection.down, self.connection.up, self.connection.inject
        normed = self._normed(tape, self.connection.norm)
        low, bent, gates = (tape.buffers[f"{name} streams"] for name in ("low", "activated", "gates of"))
        written = [] if inject is None else [(inject, tape.buffers["coefficients"])]
        tape.multiply("connections", normed, [(down, low), *written])
        rows = {"x": tape.products("low streams", down.n_out), "up": ThreadRows(0, 0), "out": ThreadRows(bent, down.n_out)}
        tape.add(Work("activation"), _SILU, **rows, size=down.n_out, activation=activating(None, ()))
        tape.multiply("connections", rows["out"], [(up, gates)])
        if inject is not None:
            self._weigh(tape, inject, self.n_streams)
        read = {**self._streams(tape), "streams": normed, "gates": tape.products("gates of streams", up.n_out)}
        tape.add_by_rows("reading streams", kernels.read_gated_streams, **read, x=tape.space.x)

    def write(self, tape: Tape) -> None:
        self._write(tape, 0, -1)


class StreamMeanEmitter(_Emitter):
    """Reads the mean of streams."""

    kernels = (kernels.read_streams,)

    def read(self, tape: Tape) -> None:
        row = tape.arena.keep(np.full(16, 1 / self.n_streams, np.float32), "scratch")
        self._read(tape, ThreadRows(row, 0))
