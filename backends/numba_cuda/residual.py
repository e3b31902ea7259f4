"""How the connections of blocks with residual streams come onto a tape; see `augury.blocks.residual`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.streams import (
    MAX_MIXED,
    MAX_STREAMS,
    STREAM_THREADS,
    ShareArgs,
    mix_streams,
    read_gated_streams,
    read_streams,
    write_streams,
)
from augury.backends.numba_cuda.operations.rows import activate
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Gate, Tape
from augury.blocks import (
    Activation,
    AllStreams,
    AttentionResidual,
    Connection,
    GatedHyperConnection,
    HyperConnection,
    StreamMean,
)
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.device import Arguments, Pointer
    from augury.blocks import Block, Layer, ModelPlan

__all__ = ["Streams"]

_ALL, _NORMED, _LOW, _SEEN, _ADDED = "streams", "normed streams", "low streams", "seen streams", "added to streams"
_COEFFICIENTS, _WEIGHTS, _GATES = "coefficients of streams", "weights of streams", "gates of streams"


class Streams:
    """What a plan's connections need, and their steps.

    Where connections begin streams, these lie one after another, and x is the last of them. Where there are several from the
    beginning, all of a token lie side by side, and x is what a block adds to them.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self._connections, outputs = plan.connections, [plan.output, *(each.output for each in plan.nextn)]
        for unknown in (type(each).__name__ for each in self._connections if not isinstance(each, Connection)):
            raise UnsupportedError(f"connection {unknown}, which backend numba-cuda does not compute; use another backend")
        self._n_embd, self._n = plan.embedding.n_embd, plan.embedding.n_streams
        n_begun = sum(isinstance(each, AttentionResidual) and each.begins for each in self._connections)
        if self._n > MAX_STREAMS or n_begun >= MAX_MIXED:
            most = f"{MAX_STREAMS} of them, or {MAX_MIXED} that layers begin"
            raise UnsupportedError(f"{max(self._n, n_begun + 1)} residual streams, backend numba-cuda computes at most {most}")
        self._n_begun = n_begun
        if self._n > 1 and any(output.weight is not None and output.connection is None for output in outputs):
            raise UnsupportedError("several residual streams, of which the output reads one; use backend reference")
        for layer in plan.every_layer:
            _check(layer, self._n)

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that connections work in, by name."""
        row = 4 * MAX_TOKENS * self._n_embd
        if self._n == 1:
            return {"x": row * (1 + self._n_begun), _SEEN: row} if self._connections else {}
        low = max([each.down.n_out for each in self._connections if isinstance(each, GatedHyperConnection)], default=0)
        return {
            **dict.fromkeys((_SEEN, _ADDED), row),
            **dict.fromkeys((_ALL, _GATES), row * self._n),
            **dict.fromkeys((_COEFFICIENTS, _WEIGHTS), 4 * MAX_TOKENS * self._n * (2 + self._n)),
            _LOW: 4 * MAX_TOKENS * low,
            **Tape.operand_buffers(_LOW, low),
            **Tape.operand_buffers(_NORMED, self._n * self._n_embd),
        }

    def begin(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write that all streams begin as x, unless they are given."""
        if self._n == 1:
            return
        x, size = tape.x, self._n_embd
        tape.add_pending()
        for i in range(0 if takes_hidden else self._n):
            tape.blend(Rows(tape.buffers[_ALL].at(4 * i * size), self._n * size), x, 0.0, 1.0, width=size)
        tape.x = tape.seen = Rows(tape.buffers[_ADDED], size)

    def read(self, tape: Tape, connection: Block | None) -> None:
        """Write what the next block sees, and let it add to nothing where that is not what it sees."""
        match connection:
            case AttentionResidual():
                self._mix(tape, connection)
            case HyperConnection(norm=norm, coefficients=coefficients):
                normed = tape.operand(_NORMED, self._n * self._n_embd, [coefficients])
                tape.put(self._all(tape), self._n * self._n_embd, normed, norm)
                tape.multiply(normed, ((coefficients, 0),), Rows(tape.buffers[_COEFFICIENTS], coefficients.n_out))
                vectors = {name: tape.weights.vector(getattr(connection, name)) for name in ("scales", "base")}
                numbers = {name: getattr(connection, name) for name in ("eps", "post_scale", "post_eps")}
                self._read(tape, max(connection.n_rounds, 1), n_made=coefficients.n_out, **vectors, **numbers)
            case GatedHyperConnection():
                self._read_gated(tape, connection)
            case StreamMean():
                self._read(tape)
            case AllStreams():
                tape.x = tape.seen = self._all(tape)

    def write(self, tape: Tape, connection: Block | None) -> None:
        """Write what becomes of the streams with what a block added."""
        if connection is not None:
            tape.add_pending()
        match connection:
            case HyperConnection(coefficients=made, n_streams=n):
                self._write(tape, made.n_out, n, n if made.n_out > 2 * n else 0)
            case GatedHyperConnection(inject=inject) if inject is not None:
                self._write(tape, self._n, 0, 0)
            case AllStreams():
                tape.x = Rows(tape.buffers[_ADDED], self._n_embd)

    def _all(self, tape: Tape) -> Rows:
        return Rows(tape.buffers[_ALL], self._n * self._n_embd)

    def _mix(self, tape: Tape, connection: AttentionResidual) -> None:
        x, size, norm = tape.x, self._n_embd, connection.norm
        tape.add_pending()
        if norm is not None:
            n = 1 + (x.at.offset - tape.buffers["x"].offset) // (4 * MAX_TOKENS * size)
            tape.seen = Rows(tape.buffers[_SEEN], size)
            arguments: Arguments = {"streams": tape.buffers["x"], "n": n, "size": size, "seen": tape.seen.at}
            arguments["norm"] = tape.weights.norm_arguments(norm)
            tape.launch(mix_streams, (tape.size.n_tokens,), THREADS, **arguments)
        if connection.begins:
            tape.x = Rows(x.at.at(4 * MAX_TOKENS * size), size)
            tape.blend(tape.x, x, 0.0, 0.0)

    def _read(self, tape: Tape, n_rounds: int = 0, **made: Pointer | float) -> None:
        buffers = tape.buffers
        tape.seen = Rows(buffers[_SEEN], self._n_embd)
        shared = ShareArgs(coefficients=buffers[_COEFFICIENTS], weights=buffers[_WEIGHTS], **made)
        places = {"streams": buffers[_ALL], "seen": tape.seen.at, "y": tape.x.at, "shared": shared}
        sizes = {"n": self._n, "size": self._n_embd, "n_rounds": n_rounds}
        tape.launch(read_streams, (tape.size.n_tokens,), THREADS, **places, **sizes)

    def _read_gated(self, tape: Tape, connection: GatedHyperConnection) -> None:
        buffers, size, inject = tape.buffers, self._n_embd, connection.inject
        parts = [connection.down, *([] if inject is None else [inject])]
        normed = evolve(tape.operand(_NORMED, self._n * size, parts), as_floats=True)
        tape.join([(self._all(tape), self._n * size, connection.norm)], normed)
        low, coefficients = Rows(buffers[_LOW], connection.down.n_out), Rows(buffers[_COEFFICIENTS], self._n)
        tape.multiply(normed, ((connection.down, 0),), low)
        if inject is not None:
            tape.multiply(normed, ((inject, 0),), coefficients)
        bent = tape.operand(_LOW, low.width, [connection.up])
        activate(tape, Gate(Activation.SILU), low, None, bent, low.width)
        tape.multiply(bent, ((connection.up, 0),), Rows(buffers[_GATES], self._n * size))
        tape.seen = Rows(buffers[_SEEN], size)
        places = {"streams": normed.floats, "gates": buffers[_GATES], "weights": buffers[_WEIGHTS], "seen": tape.seen.at}
        grid = (-(-size // STREAM_THREADS), tape.size.n_tokens)
        made: Arguments = {"injected": coefficients.at, "has_weights": inject is not None, "y": tape.x.at}
        tape.launch(read_gated_streams, grid, STREAM_THREADS, n=self._n, size=size, stride=normed.width, **places, **made)

    def _write(self, tape: Tape, stride: int, post: int, comb: int) -> None:
        grid = (-(-self._n_embd // STREAM_THREADS), tape.size.n_tokens)
        places = {"streams": tape.buffers[_ALL], "weights": tape.buffers[_WEIGHTS], "y": tape.x.at}
        columns = {"stride": stride, "post": post, "comb": comb}
        tape.launch(write_streams, grid, STREAM_THREADS, n=self._n, size=self._n_embd, **places, **columns)


def _check(layer: Layer, n_streams: int) -> None:
    """Refuse what would see or be added to one of several streams."""
    odd = [f"{type(block).__name__}.is_parallel" for block in layer.blocks if block.is_parallel]
    odd += [f"{type(block).__name__} without a connection" for block in layer.blocks if block.connection is None]
    if n_streams > 1:
        odd += ["norm"] * (layer.norm is not None) + ["scale"] * (layer.scale != 1.0)
        routers = [block.router for block in layer.blocks if hasattr(block, "router")]
        odd += ["Router.is_early"] * any(router.is_early for router in routers)
    if odd and (n_streams > 1 or any(block.connection for block in layer.blocks)):
        raise UnsupportedError(f"several residual streams in a layer with {odd[0]}; use backend reference")
