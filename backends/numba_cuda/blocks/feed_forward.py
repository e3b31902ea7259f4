"""`FeedForward`: down(activation(gate(n)) * up(n)) of n = norm(x), or down(activation(up(n)))."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels.dialect import WARP
from augury.backends.numba_cuda.kernels.gate import GATE
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.tape import WARPS, Operand, Rows, Tape, units_of, warps_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.blocks import Activation, FeedForward, Linear, Vector

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
        rows = Rows(tape.buffers["gate and up"], self._width)
        tape.multiply(normed, [(linear, i * size) for i, linear in enumerate(self.inputs)], rows)
        hidden = tape.operand("hidden", size, (block.down,))
        ups = None if block.gate is None else Rows(rows.at.at(4 * size), rows.width)
        activate(
            tape,
            block.activation,
            rows,
            ups,
            hidden.before(block.hidden_norm),
            size,
            divisors=block.divisors,
            limit=block.limit,
            limits_activated=block.limits_activated,
            constants=block.constants,
        )
        tape.norm_operand(block.hidden_norm, hidden, size)
        return hidden

    @property
    def _width(self) -> int:
        return self.block.down.n_in * (1 if self.block.gate is None else 2)


def activate(
    tape: Tape,
    activation: Activation,
    gates: Rows,
    ups: Rows | None,
    to: Operand,
    size: int,
    *,
    divisors: Vector | None = None,
    limit: float | None = None,
    limits_activated: bool = False,
    constants: Sequence[float] = (),
    per_token: int = 0,
) -> None:
    """Write that gates are activated, divided and multiplied with ups, as far as there are such; see `kernels.gate`."""
    of_up = gates if ups is None else ups
    places = (gates.at, of_up.at, gates.at if divisors is None else tape.weights.vector(divisors))
    sizes = (gates.width, of_up.width, size, to.width, per_token)
    has = (ups is not None, divisors is not None, limits_activated, to.as_floats, to.as_bytes)
    numbers = [math.inf if limit is None else limit, *constants]
    numbers += [0.0] * (5 - len(numbers))
    grid = (warps_of(units_of(size)), max(1, per_token) * tape.size.n_tokens)
    operand = (to.floats, to.quantised, to.factors, to.sums)
    tape.add(GATE[activation.value], grid, WARP * WARPS, *places, *operand, *sizes, *map(int, has), *numbers)
