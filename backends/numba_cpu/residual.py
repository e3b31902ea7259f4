"""How the connections of blocks with residual streams come onto a tape; see `augury.blocks.residual`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.kernels import mix, step, streams
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.kernels.struct import dtype, table
from augury.backends.numba_cpu.kernels.team import ThreadRows
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.operations.layout import Place
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.blocks import AllStreams, AttentionResidual, Connection, GatedHyperConnection, HyperConnection, StreamMean
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Block, Layer, Linear, ModelPlan, Norm

__all__ = ["Streams"]


class Streams:
    """What a plan's connections need, and their records.

    Of connections that begin streams, earlier ones lie in banks, and x is the last. Otherwise all lie side by side, and x is
    what the next block sees.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self._connections = plan.connections
        self._n_embd, self._n = plan.embedding.n_embd, plan.embedding.n_streams
        self._n_banks = sum(isinstance(each, AttentionResidual) and each.begins for each in self._connections)
        for layer in plan.every_layer:
            _check(layer, self._n)
        for name in (type(each).__name__ for each in self._connections if not isinstance(each, Connection)):
            raise UnsupportedError(f"residual streams are read by {name}, which backend numba-cpu does not; use another one")

    def kernels(self) -> Sequence[Any]:
        """The kernels of connections."""
        kinds = {type(each) for each in self._connections}
        found = [mix.mix_rows] * (AttentionResidual in kinds) + [streams.repeat_rows] * (self._n > 1)
        if kinds & {HyperConnection, GatedHyperConnection}:
            found += [streams.norm_streams, streams.weigh_streams, streams.write_streams]
        if GatedHyperConnection in kinds:
            found += [streams.read_gated_streams, streams.silu_rows]
        return [*found, *[streams.read_streams] * bool(kinds & {HyperConnection, StreamMean})]

    def scratch_bytes(self) -> int:
        """Bytes that each thread needs for itself."""
        return max(mix.scratch_bytes(self._n_banks + 1, self._n_embd), streams.scratch_bytes(self._n))

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that connections work in, by name."""
        if self._n_banks:
            return dict.fromkeys(["seen", *(f"bank {i}" for i in range(self._n_banks))], row_bytes(self._n_embd))
        if self._n == 1:
            return {}
        low = [each.down.n_out for each in self._connections if isinstance(each, GatedHyperConnection)]
        widths = dict.fromkeys(("streams", "normed streams", *["gates of streams"] * bool(low)), self._n * self._n_embd)
        widths |= dict.fromkeys(("coefficients", "weights of streams"), self._n_weights)
        widths |= dict.fromkeys(("low streams", "activated streams"), max(low)) if low else {}
        return {name: row_bytes(width) for name, width in widths.items()}

    @property
    def _n_weights(self) -> int:
        return up(self._n * (2 + self._n), 16)

    def on(self, tape: Tape, arena: Arena) -> TapeStreams:
        """Their records on a tape."""
        return TapeStreams(tape, arena, self._n, self._n_weights)


class TapeStreams:
    """The streams of a tape in the making."""

    def __init__(self, tape: Tape, arena: Arena, n_streams: int, n_weights: int) -> None:
        self._tape, self._arena, self._n = tape, arena, n_streams
        self._banks: list[Rows] = []
        self._private = tape.space.is_private
        self._size = tape.space.x.width
        if n_streams == 1:
            return
        self._all, self._normed = (self._rows(name, n_streams * self._size) for name in ("streams", "normed streams"))
        self._weights = self._rows("weights of streams", n_weights)
        tape.streams = self._all
        self._streams: dict[str, Any] = {"streams": self._all, "n_streams": n_streams, "size": self._size}

    def begin(self, *, takes_hidden: bool) -> None:
        """Write what they begin as: hidden states, or each as x."""
        tape = self._tape
        if takes_hidden:
            tape.take_hidden(tape.space.x if self._n == 1 else self._all)
        elif self._n > 1:
            tape.norm_x(None)
            self._add("streams", streams.repeat_rows, x=tape.space.x, **self._streams)

    def all(self) -> Rows:
        """What goes on to the next layer: x with all that was left to be added to it, or the streams one after the other."""
        return self._tape.norm(None) if self._n == 1 else self._all

    def read(self, connection: Block | None) -> None:
        """Write what the next block sees."""
        tape = self._tape
        tape.seen = x = tape.space.x
        match connection:
            case AttentionResidual(norm=norm, begins=begins):
                if norm is not None:
                    self._mix(norm)
                if begins:
                    self._bank(x)
            case HyperConnection():
                self._norm(connection.norm, 1)
                made = connection.coefficients
                tape.multiply("connections", self._normed, [(made, tape.buffers["coefficients"])])
                self._weigh(made, self._weighing(connection))
                self._read(self._weights)
            case GatedHyperConnection(norm=norm, down=down, up=back, inject=inject):
                self._norm(norm, self._n)
                written = [] if inject is None else [(inject, tape.buffers["coefficients"])]
                tape.multiply("connections", self._normed, [(down, tape.buffers["low streams"]), *written])
                low, bent, gates = (tape.buffers[f"{name} streams"] for name in ("low", "activated", "gates of"))
                x_low = Place(low, up(down.n_out, PANEL_ROWS))
                tape.add(Work("activation"), streams.silu_rows, x=x_low, y=bent, size=down.n_out)
                tape.multiply("connections", Rows(bent, 0, down.n_out), [(back, gates)])
                if inject is not None:
                    self._weigh(inject, self._weighing(connection))
                read = {**self._streams, "streams": self._normed, "gates": Place(gates, up(back.n_out, PANEL_ROWS))}
                self._add("reading streams", streams.read_gated_streams, **read, x=x)
            case AllStreams():
                tape.seen = self._all
            case StreamMean():
                row = self._arena.keep(np.full(16, 1 / self._n, np.float32), "scratch")
                self._read(Rows(row, 0, 0))

    def write(self, connection: Block | None) -> None:
        """Write what becomes of the streams with what the block left."""
        tape = self._tape
        tape.seen = tape.space.x
        n = self._n
        match connection:
            case HyperConnection(n_rounds=n_rounds):
                post, comb = n, 2 * n if n_rounds else -1
            case GatedHyperConnection():
                post, comb = 0, -1
            case AllStreams():
                for y, _ in tape.take_pending():
                    rows = {"x": self._all, "y": Rows(y, 0, self._all.width), "size": self._all.width}
                    tape.add(Work("adding rows"), step.add_rows, **rows, factor=1.0, is_private=self._private)
                return
            case _:
                return
        for y, _ in tape.take_pending():
            weights = {"weights": self._weights, "ldw": self._weights.width, "post": post, "comb": comb}
            left = Place(y, up(self._size, PANEL_ROWS))
            self._add("writing streams", streams.write_streams, **self._streams, **weights, y=left)

    def _mix(self, norm: Norm) -> None:
        tape, x = self._tape, self._tape.space.x
        tape.norm_x(None)
        tape.seen = seen = self._rows("seen", self._size)
        rows = [(each.address, each.stride) for each in (*self._banks, x)]
        places = {"streams": self._arena.keep(np.array(rows, dtype(ThreadRows)), "scratch"), "n_streams": len(rows)}
        self._add("mixing streams", mix.mix_rows, **places, size=self._size, norm=tape.weights.norm(norm), out=seen)

    def _bank(self, x: Rows) -> None:
        """Put x aside, which begins anew with what is added next."""
        tape, bank = self._tape, self._rows(f"bank {len(self._banks)}", self._size)
        tape.norm_x(None)
        tape.copy(x, bank)
        if tape.seen is x:
            tape.seen = bank
        self._banks.append(bank)
        tape.add_to_x(x, -1.0)

    def _norm(self, norm: Norm, n_parts: int) -> None:
        parts = {"n_parts": n_parts, "size": norm.size, "norm": self._tape.weights.norm(norm)}
        self._add("norm", streams.norm_streams, x=self._all, out=self._normed, **parts)

    def _weigh(self, made: Linear, weighing: int) -> None:
        coefficients = Place(self._tape.buffers["coefficients"], up(made.n_out, PANEL_ROWS))
        weights = {"weights": self._weights, "ldw": self._weights.width, "weighing": weighing}
        self._add("weights of streams", streams.weigh_streams, coefficients=coefficients, **weights)

    def _read(self, weights: Rows) -> None:
        places = {**self._streams, "weights": weights, "ldw": weights.width, "x": self._tape.space.x}
        self._add("reading streams", streams.read_streams, **places)

    def _weighing(self, connection: HyperConnection | GatedHyperConnection) -> int:
        """The address of how a connection makes weights."""
        return self._arena.shared(("weights of streams", connection), partial(self._make_weighing, connection), "scratch")

    def _make_weighing(self, connection: HyperConnection | GatedHyperConnection) -> np.ndarray:
        n, values = self._n, self._tape.weights.values
        if isinstance(connection, HyperConnection):
            n_gates, n_rounds, eps = min(connection.coefficients.n_out, 2 * n), connection.n_rounds, connection.eps
            scales = np.repeat(values(connection.scales.weight, (connection.scales.size,)), connection.parts)
            base = values(connection.base.weight, (connection.base.size,))
            factors, offsets = np.repeat([[1.0, connection.post_scale], [eps, connection.post_eps]], n, axis=1)
        else:
            n_gates, n_rounds, eps, base, offsets = n, 0, 0.0, *np.zeros((2, n))
            scales, factors = np.full(n, 1.0), np.full(n, 2.0)
        numbers = {"scales": scales, "base": base, "factors": factors, "offsets": offsets}
        kept = {name: self._arena.keep(np.array(each, np.float32), "weights") for name, each in numbers.items()}
        return table([streams.Weighing(n_streams=n, n_gates=n_gates, **kept, eps=eps, n_rounds=n_rounds)])

    def _add(self, work: str, kernel: Any, **fields: Any) -> None:
        """Write a record of what happens to rows, by every thread for its own where it has such."""
        self._tape.add(Work(work), kernel, **fields, is_private=self._private)

    def _rows(self, name: str, width: int) -> Rows:
        return self._tape.space.named(name, width)


def _check(layer: Layer, n_streams: int) -> None:
    """Refuse what would be added to one of several streams."""
    odd = [f"{type(block).__name__}.is_parallel" for block in layer.blocks if block.is_parallel]
    odd += [f"{type(block).__name__} without a connection" for block in layer.blocks if block.connection is None]
    odd += ["norm"] * (layer.norm is not None) + ["scale"] * (layer.scale != 1.0)
    odd += [f"{type(block).__name__}.post_norm" for block in layer.blocks if getattr(block, "post_norm", None) is not None]
    if n_streams > 1 and odd:
        raise UnsupportedError(f"several residual streams in a layer with {odd[0]}; use backend reference")
