"""`Embedding`: x = norm(scale * W[token] + positions[p])."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class EmbeddingEmitter:
    """Looks up the rows of tokens, and of positions."""

    def __init__(self, block: Embedding) -> None:
        self._block = block

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that it works in, by name. Blocks share what has one name; the largest counts."""
        block, inputs = self._block, self._block.layer_inputs
        needed = {} if block.positions is None else {_ROWS: 4 * MAX_TOKENS * block.n_embd}
        if inputs is not None:
            n_bytes = 4 * MAX_TOKENS * inputs.table.n_in
            needed |= {INPUTS: n_bytes, _ROWS: n_bytes, **Tape.operand_buffers("normed", block.n_embd)}
        return needed

    def emit(self, tape: Tape) -> None:
        """Write its steps. May be called for any number of tapes."""
        block = self._block
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
