"""`FeedForward`: down(activation(gate(n)) * up(n)) of n = norm(x), or down(activation(up(n)))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels import gate as kernels
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import Operand, Rows
from augury.backends.numba_cuda.tape import WARPS, Gate, Tape, units_of, warps_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import FeedForward, Linear, Vector

__all__ = ["FeedForwardEmitter", "activate"]


class FeedForwardEmitter(Emitter):
    """Multiplies by gate and up at once, activates and quantises at once, and adds what `down` gives."""

    known = ("norm", "gate", "post_norm", "hidden_norm", "divisors", "limit", "limits_activated", "constants")
    block: FeedForward

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {
            "gate and up": 4 * MAX_TOKENS * self._width,
            **Tape.operand_buffers("normed", self.block.up.n_in),
            **Tape.operand_buffers("hidden", self.block.down.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        tape.leave(self.hidden(tape, tape.norm(block.norm, self.inputs)), block.down, block.post_norm)

    @property
    def inputs(self) -> list[Linear]:
        """What is multiplied with norm(x)."""
        return [self.block.up] if self.block.gate is None else [self.block.gate, self.block.up]

    def hidden(self, tape: Tape, normed: Operand) -> Operand:
        """Write what comes before the product of `down`."""
        block, size = self.block, self.block.down.n_in
        hidden = tape.operand("hidden", size, (block.down,))
        gate, to = (
            Gate(block.activation, block.limit, block.limits_activated, block.constants),
            hidden.before(block.hidden_norm),
        )
        if block.divisors is not None or not tape.multiply_gated(normed, self.inputs, to, gate):
            rows = Rows(tape.buffers["gate and up"], self._width)
            tape.multiply(normed, [(linear, i * size) for i, linear in enumerate(self.inputs)], rows)
            ups = None if block.gate is None else Rows(rows.at.at(4 * size), rows.width)
            activate(tape, gate, rows, ups, to, size, divisors=block.divisors)
        tape.norm_operand(block.hidden_norm, hidden, size)
        return hidden

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)


def activate(
    tape: Tape,
    gate: Gate,
    gates: Rows,
    ups: Rows | None,
    to: Operand,
    size: int,
    *,
    divisors: Vector | None = None,
    per_token: int = 0,
    n_apart: int = 0,
) -> None:
    """Write that gates are activated, divided and multiplied with ups, as far as there are such; see `kernels.gate`."""
    of_up = gates if ups is None else ups
    places = (gates.at, of_up.at, gates.at if divisors is None else tape.weights.vector(divisors))
    sizes = (gates.width, of_up.width, size, to.width, per_token, n_apart, gate.number)
    has = (ups is not None, divisors is not None, gate.limits_activated, to.as_floats, to.as_bytes)
    grid = (warps_of(units_of(size)), max(1, per_token) * tape.size.n_tokens)
    operand = (to.floats, to.quantised, to.factors, to.sums)
    tape.add(kernels.gate, grid, WARP * WARPS, *places, *operand, *sizes, *map(int, has), *gate.numbers)
