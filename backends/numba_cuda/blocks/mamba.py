"""`Mamba2` and `Mamba`: a gated linear recurrence whose steps, keys and queries depend on the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.asked import Asked, products
from augury.backends.numba_cuda.blocks.feed_forward import activate
from augury.backends.numba_cuda.blocks.recurrent import FedRow, RecurrentEmitter, Steps
from augury.backends.numba_cuda.kernels.formats import UNIT
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.recurrence import COLUMNS
from augury.backends.numba_cuda.kernels.recurrent_ends import decay
from augury.backends.numba_cuda.rows import Operand, Rows
from augury.backends.numba_cuda.tape import Gate, Tape, units_of
from augury.backends.numba_cuda.weights import rows_of
from augury.blocks import GateKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Mamba, Mamba2

__all__ = ["Mamba2Emitter", "MambaEmitter"]


class Mamba2Emitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: values, keys and queries as the convolution leaves them, then decays and betas.
    """

    known = ("out_norm",)
    block: Mamba2

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": block.inputs.n_out, "fed": self._width, "recurred": block.o.n_in}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    @property
    def asked(self) -> Asked:
        """See `Emitter.asked`."""
        return Asked("inputs", [(self.block.inputs, 0)], self.block.inputs.n_out)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, heads, buffers = self.block, self.block.recurrence, tape.buffers
        gates, fed = products(tape, tape.norm(block.norm, [block.inputs]), self.asked), Rows(buffers["fed"], self._width)
        self._emit_convolution(tape, gates)
        self._emit_recurrence(tape)
        y, mixed = Rows(buffers["recurred"], block.o.n_in), tape.operand("mixed", block.o.n_in, [block.o])
        skip = tape.weights.flat(block.d.weight, block.d.shapes[block.d.weight], heads.value_dim)
        self._gate(tape, y, gates, mixed, block.out_norm, values=fed, skip=skip, is_gated_first=True)
        tape.leave(mixed, block.o)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_convolution(tape, Rows(tape.buffers["inputs"], self.asked.width))
        self._emit_recurrence(tape)

    def _emit_convolution(self, tape: Tape, inputs: Rows) -> None:
        block, (dt, a) = self.block, (tape.weights.vector(part) for part in (self.block.dt, self.block.a))
        x, fed = Rows(inputs.at.at(4 * block.o.n_in), inputs.width), Rows(tape.buffers["fed"], self._width)
        steps = Steps(x.at.at(4 * block.conv.n_channels), dt, a, block.recurrence.n_heads, block.conv.n_channels)
        self._convolve(tape, block.conv, self._placed[0], x, fed, has_silu=True, steps=steps)

    def _emit_recurrence(self, tape: Tape) -> None:
        heads, n_values, n_channels = self.block.recurrence, self.block.o.n_in, self.block.conv.n_channels
        key = n_values + heads.n_key_heads * heads.key_dim
        rows = Rows(tape.buffers["fed"], self._width)
        row = FedRow(rows, key, n_values, 0, n_channels, n_channels + heads.n_heads)
        self._recur(tape, heads, self._placed[1], row, tape.buffers["recurred"])

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        return self.block.conv.n_channels + 2 * self.block.recurrence.n_heads


class MambaEmitter(RecurrentEmitter):
    """Keeps the last inputs of the convolution, and a matrix for each head.

    A token's row: values as the convolution leaves them, what steps are made of, keys, queries, betas, and decays, where these
    are by head.
    """

    known = ("t_norm", "key_norm", "query_norm", "post_norm")
    block: Mamba

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = {"inputs": 2 * block.o.n_in, "ends": block.dt.n_out}
        widths |= {"fed": self._width, "recurred": block.o.n_in}
        return {
            **{name: 4 * MAX_TOKENS * width for name, width in widths.items()},
            **Tape.operand_buffers("normed", block.norm.size),
            **Tape.operand_buffers("convolved", block.o.n_in),
            **Tape.operand_buffers("times", block.dt.n_in),
            **Tape.operand_buffers("mixed", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, size = self.block, tape.buffers, self.block.o.n_in
        inputs, fed = Rows(buffers["inputs"], 2 * size), Rows(buffers["fed"], self._width)
        normed = tape.norm(block.norm, (block.value, block.gate))
        tape.multiply(normed, ((block.value, 0), (block.gate, size)), inputs)
        mixed, t, (key, query) = (block.t, block.key, block.query), size, self._columns
        convolved, times = tape.operand("convolved", size, mixed), tape.operand("times", block.dt.n_in, [block.dt])
        self._emit_convolution(tape, convolved)
        tape.multiply(convolved, list(zip(mixed, (t, key, query), strict=True)), fed)
        parts = ((block.t_norm, t, block.t), (block.key_norm, key, block.key), (block.query_norm, query, block.query))
        tape.norm_parts(fed, [(norm, column, linear.n_out) for norm, column, linear in parts], times)
        self._emit_steps(tape, times, fed)
        self._emit_recurrence(tape)
        y, out = Rows(buffers["recurred"], size), tape.operand("mixed", size, [block.o])
        skip = tape.weights.flat(block.d.weight, block.d.shapes[block.d.weight], size // block.d.size)
        self._gate(tape, y, Rows(inputs.at.at(4 * size), inputs.width), out, None, values=fed, skip=skip)
        tape.leave(out, block.o, block.post_norm)

    def _emit_steps(self, tape: Tape, times: Operand, fed: Rows) -> None:
        """Write what makes betas, and decays where these are by head."""
        block, ends, beta = self.block, Rows(tape.buffers["ends"], self.block.dt.n_out), self._beta
        at, gate = fed.at.at(4 * beta), Gate(GateKind.SOFTPLUS)
        betas = Operand(at, at, at, at, fed.width, as_floats=True)
        if block.recurrence.is_by_channel and tape.multiply_gated(times, [block.dt], betas, gate):
            return
        tape.multiply(times, [(block.dt, 0)], ends)
        if block.recurrence.is_by_channel:
            activate(tape, gate, ends, None, betas, ends.width)
        else:
            a = tape.weights.vector(block.a)
            sizes = (fed.width, ends.width, ends.width, beta + ends.width, beta, 0, 0)
            self._add_decays(tape, decay, (fed.at, ends.at, a, a), sizes, ends.width)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_convolution(tape)
        self._emit_recurrence(tape)

    def _emit_convolution(self, tape: Tape, to: Operand | None = None) -> None:
        x, y = Rows(tape.buffers["inputs"], 2 * self.block.o.n_in), Rows(tape.buffers["fed"], self._width)
        self._convolve(tape, self.block.conv, self._placed[0], x, y, has_silu=True, to=to)

    def _emit_recurrence(self, tape: Tape) -> None:
        block, heads = self.block, self.block.recurrence
        step, (key, query) = self._beta + (0 if heads.is_by_channel else block.dt.n_out), self._columns
        rows = Rows(tape.buffers["fed"], self._width)
        row = FedRow(rows, query, key, 0, step, self._beta)
        table = (
            tape.weights.flat(block.a.weight, block.a.shapes[block.a.weight], columns=COLUMNS) if heads.is_by_channel else None
        )
        self._recur(tape, heads, self._placed[1], row, tape.buffers["recurred"], table)

    @property
    def _columns(self) -> tuple[int, int]:
        """Where keys and queries are in a token's row."""
        key = self.block.o.n_in + rows_of(self.block.t)
        return (key, key + rows_of(self.block.key))

    @property
    def _beta(self) -> int:
        """Where betas are."""
        return self._columns[1] + self.block.query.n_out

    @property
    def _width(self) -> int:
        """Floats of a token's row."""
        n_steps = self.block.dt.n_out
        return self._beta + (UNIT * units_of(n_steps) if self.block.recurrence.is_by_channel else 2 * n_steps)
