"""`Embedding`: x = norm(scale * W[token] + positions[p])."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS, POSITIONS, TOKENS
from augury.backends.numba_cuda.operations.layout import INPUTS
from augury.backends.numba_cuda.operations.rows import look_up
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Embedding, LayerInputs

__all__ = ["EmbeddingEmitter"]

_ROWS = "rows of tables"


class EmbeddingEmitter(Emitter):
    """Looks up the rows of tokens, and of positions."""

    known = ("weight", "scale", "positions", "norm", "other", "layer_inputs", "n_streams")
    block: Embedding

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block, inputs = self.block, self.block.layer_inputs
        needed = {} if block.positions is None else {_ROWS: 4 * MAX_TOKENS * block.n_embd}
        if inputs is not None:
            n_bytes = 4 * MAX_TOKENS * inputs.table.n_in
            needed |= {INPUTS: n_bytes, _ROWS: n_bytes, **Tape.operand_buffers("normed", block.n_embd)}
        return needed

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        if block.weight is None:
            return
        look_up(tape, Linear(block.weight, block.n_embd, block.n_vocab), tape.x, tape.inputs.at(4 * TOKENS), scale=block.scale)
        if block.positions is not None:
            rows = Rows(tape.buffers[_ROWS], block.n_embd)
            look_up(tape, block.positions, rows, tape.inputs.at(4 * POSITIONS))
            tape.blend(tape.x, rows, 1.0, 1.0)
        tape.norm_in_place(block.norm, tape.x, block.n_embd)
        if block.layer_inputs is not None:
            self._emit_inputs(tape, block.layer_inputs)

    def _emit_inputs(self, tape: Tape, inputs: LayerInputs) -> None:
        """Write the inputs of all layers."""
        size = inputs.table.n_in
        e, rows = (Rows(tape.buffers[name], size) for name in (INPUTS, _ROWS))
        tape.multiply(tape.norm(None, (inputs.projection,)), ((inputs.projection, 0),), e)
        tape.norm_in_place(inputs.norm, e, inputs.norm.size, size // inputs.norm.size)
        look_up(tape, inputs.table, rows, tape.inputs.at(4 * TOKENS))
        tape.blend(e, rows, inputs.scale, inputs.scale * inputs.table_scale)
