"""`LayerInput`: o(activation(gate(x)) * e), and the e of all layers, which the embedding makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.blocks.feed_forward import activate
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Gate, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import LayerInput

__all__ = ["INPUTS", "LayerInputEmitter"]

INPUTS = "layer inputs"
"""The buffer of the e of all layers."""


class LayerInputEmitter(Emitter):
    """Two products, and what is between them."""

    block: LayerInput

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        return {
            "gate and up": 4 * MAX_TOKENS * block.gate.n_out,
            **Tape.operand_buffers("normed", block.gate.n_in),
            **Tape.operand_buffers("hidden", block.o.n_in),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, size = self.block, self.block.gate.n_out
        gates = Rows(tape.buffers["gate and up"], size)
        tape.multiply(tape.norm(None, (block.gate,)), ((block.gate, 0),), gates)
        e = Rows(tape.buffers[INPUTS].at(4 * block.index * size), block.n_layers * size)
        hidden = tape.operand("hidden", size, (block.o,))
        activate(tape, Gate(block.activation), gates, e, hidden, size)
        tape.leave(hidden, block.o, block.post_norm)
