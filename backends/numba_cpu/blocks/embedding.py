"""`Embedding`: x = norm(scale * W[token] + positions[p])."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import add_rows, scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS, POSITIONS, TOKENS
from augury.backends.numba_cpu.memory import bits
from augury.backends.numba_cpu.profile import Work
from augury.blocks import Linear

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from augury.backends.numba_cpu.tape import Rows, Tape
    from augury.blocks import Embedding

__all__ = ["EmbeddingEmitter"]


@kernel
def embed(record: int, state: int, thread: int, n_threads: int) -> None:
    """x[t] = scale * W[id t]. Operands: kernel, W, E, x, stride, is_private, scale, offset of the ids' address in the state."""
    size = get_i64(record + 32)
    x = get_i64(record + 40) + thread * get_i64(record + 48)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 56))
    scale = splat_f32(np.float32(get_f64(record + 64)))
    for t in range(first, end):
        row = x + 4 * t * size
        row_id = get_i64(get_i64(state + get_i64(record + 72)) + 8 * t)
        invoke(get_i64(record + 16), (get_i64(record + 24), row_id, size, row, scratch_of(state, thread)))
        for index in range(0, size, 16):
            left = size - index
            store_part(row + 4 * index, mul(load_part(row + 4 * index, left), scale), left)


class EmbeddingEmitter(Emitter):
    """Looks up the rows of tokens, and of positions."""

    block: Embedding

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (embed,) if self.block.positions is None else (embed, add_rows)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block = self.block
        self._look_up(tape, Linear(block.weight, block.n_embd, block.n_vocab), tape.space.x, TOKENS, block.scale)
        if block.positions is not None:
            self._look_up(tape, block.positions, tape.space.normed, POSITIONS)
            tape.add_to_x(tape.space.normed)
        tape.norm_x(block.norm)

    @staticmethod
    def _look_up(tape: Tape, table: Linear, to: Rows, ids: int, scale: float = 1.0) -> None:
        """Write that rows of a matrix are looked up."""
        matrix, private = tape.weights.matrix(table), tape.space.is_private
        operands = (tape.weights.address(matrix.kind, "embed"), matrix.address, table.n_in, to.address, to.stride)
        tape.add(Work("embedding"), embed, *operands, int(private), bits(scale), ids, is_private=private)
