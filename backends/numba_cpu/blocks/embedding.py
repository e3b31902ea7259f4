"""`Embedding`: x = scale * W[token]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.blocks.emitter import Emitter
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, invoke, load_part, store_part
from augury.backends.numba_cpu.kernels.simd import get_i64, mul, splat_f32
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.team import N_TOKENS, TOKENS
from augury.backends.numba_cpu.memory import bits
from augury.backends.numba_cpu.profile import Work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from augury.backends.numba_cpu.tape import Tape
    from augury.blocks import Embedding

__all__ = ["EmbeddingEmitter"]


@kernel
def embed(record: int, state: int, thread: int, n_threads: int) -> None:
    """x[t] = scale * W[token t]. Operands: kernel, W, E, x, stride, is_private, scale."""
    size = get_i64(record + 32)
    x = get_i64(record + 40) + thread * get_i64(record + 48)
    first, end = share(get_i64(state + N_TOKENS), thread, n_threads, get_i64(record + 56))
    scale = splat_f32(np.float32(get_f64(record + 64)))
    for t in range(first, end):
        row = x + 4 * t * size
        token = get_i64(get_i64(state + TOKENS) + 8 * t)
        invoke(get_i64(record + 16), (get_i64(record + 24), token, size, row, scratch_of(state, thread)))
        for index in range(0, size, 16):
            left = size - index
            store_part(row + 4 * index, mul(load_part(row + 4 * index, left), scale), left)


class EmbeddingEmitter(Emitter):
    """Looks up the rows of tokens."""

    block: Embedding

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (embed,)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        matrix, x, private = tape.weights.matrix(self.block.weight), tape.space.x, tape.space.is_private
        operands = (tape.weights.address(matrix.kind, "embed"), matrix.address, self.block.n_embd, x.address, x.stride)
        tape.add(Work("embedding"), embed, *operands, int(private), bits(self.block.scale), is_private=private)
