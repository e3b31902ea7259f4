"""`FeedForward`: down(activation(gate(n)) * up(n)) of n = norm(x)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.kernels.activation import gelu, silu
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64, mul
from augury.backends.numba_cpu.kernels.step import ENTRY_BYTES, LDY, PANEL_ROWS, Y, claim, multiply_panels
from augury.backends.numba_cpu.kernels.team import N_TOKENS
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes
from augury.blocks import Activation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.tape import Tape

__all__ = ["FeedForwardEmitter"]


def _gated(activation: Any, name: str) -> Any:
    def gated(record: int, state: int, thread: int, n_threads: int) -> None:
        entry, n_panels, out, n_rows = (
            get_i64(record + 16),
            get_i64(record + 32),
            get_i64(record + 40),
            get_i64(record + 48),
        )
        n = get_i64(state + N_TOKENS)
        while True:
            first, end = claim(state, n_panels, n_threads)
            if first == end:
                return
            multiply_panels(entry, first, end, n, state, thread)
            multiply_panels(entry + ENTRY_BYTES, first, end, n, state, thread)
            gate, up, ldy = get_i64(entry + Y), get_i64(entry + ENTRY_BYTES + Y), get_i64(entry + LDY)
            stop = min(PANEL_ROWS * end, n_rows)
            for t in range(n):
                for index in range(PANEL_ROWS * first, stop, 16):
                    place, left = 4 * (t * ldy + index), stop - index
                    value = mul(activation(load_part(gate + place, left)), load_part(up + place, left))
                    store_part(out + 4 * (t * n_rows + index), value, left)

    gated.__name__ = gated.__qualname__ = name
    gated.__doc__ = "out = activation(gate) * up. Operands: entries of gate and up, 2, panels of one, out, n_rows."
    return kernel(gated)


_GATED = {Activation.SILU: _gated(silu, "gated_silu"), Activation.GELU: _gated(gelu, "gated_gelu")}


class FeedForwardEmitter(Emitter):
    """Multiplies by gate and up in one record, and activates where the products are still near."""

    block: Any  # a FeedForward, with gate and norm: what else there could be, `KNOWN` refuses

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (_GATED[self.block.activation],)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        widths = {"gate": self.block.gate.n_out, "up": self.block.up.n_out, "hidden": self.block.down.n_in}
        return {name: row_bytes(width) for name, width in widths.items()}

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers = self.block, tape.buffers
        tape.norm(block.norm)
        entries = tape.entries(tape.space.normed, ((block.gate, buffers["gate"]), (block.up, buffers["up"])))
        matrices = [tape.weights.matrix(linear.weight) for linear in (block.gate, block.up)]
        operands = (entries.ctypes.data, 2, matrices[0].n_panels, buffers["hidden"], block.gate.n_out)
        tape.add(Work.of_matrices("gate, up", matrices), _GATED[block.activation], *operands)
        tape.multiply("down", Rows(buffers["hidden"], 0, block.down.n_in), ((block.down, tape.y),))
        tape.leave(block.post_norm)
