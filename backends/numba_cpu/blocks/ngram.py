"""`NgramMemory`: what a table says of the last tokens, for all residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.numba_cpu.blocks.recurrent import RecurrentEmitter, convolve, place_convolution, place_taps
from augury.backends.numba_cpu.kernels import convolution, ngram
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS, add_rows
from augury.backends.numba_cpu.memory import bits, up
from augury.backends.numba_cpu.operations.layout import Place
from augury.backends.numba_cpu.profile import Work
from augury.backends.numba_cpu.tape import Rows, row_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from augury.backends.numba_cpu.memory import Arena
    from augury.backends.numba_cpu.tape import Tape
    from augury.backends.numba_cpu.weights import Weights
    from augury.blocks import NgramMemory

__all__ = ["NgramMemoryEmitter"]


class NgramMemoryEmitter(RecurrentEmitter):
    """Keeps the tokens before, and the last inputs of the convolution.

    A convolution whose channel j lets through what lies j tokens back tells each token those before it, along its branch of a
    tree, too.
    """

    block: NgramMemory

    def kernels(self) -> Sequence[Any]:
        """See `Emitter.kernels`."""
        return (convolution.convolve, ngram.put_tokens, ngram.look_up, ngram.give, add_rows)

    def buffers(self, n_threads: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block, n_all = self.block, self.block.conv.n_channels
        widths = dict.fromkeys(("tokens", "last tokens"), up(block.n_tokens, 16))
        widths |= {"rows of n-grams": block.key.n_in, "keys of n-grams": n_all, "values of n-grams": block.value.n_out}
        widths |= dict.fromkeys(("given by n-grams", "normed by n-grams", "convolved n-grams"), n_all)
        return {name: row_bytes(width) for name, width in widths.items()}

    def scratch_bytes(self) -> int:
        """See `Emitter.scratch_bytes`: of a stream also the norms of its key and query."""
        return max(super().scratch_bytes(), 8 * self.block.key_norm.size + 128)

    def place(self, weights: Weights, buffers: Mapping[str, int], arena: Arena) -> None:
        """See `Emitter.place`."""
        block, n, n_all = self.block, self.block.n_tokens, self.block.conv.n_channels
        tokens, inputs = self.place_states(arena)
        width = up(n, 16)
        x, y = Place(buffers["tokens"], width), Place(buffers["last tokens"], width)
        self._tokens = place_taps(np.eye(n, dtype=np.float32)[::-1], tokens, self.n_aside, arena, x=x, y=y)
        x, y = (Place(buffers[name], n_all) for name in ("normed by n-grams", "convolved n-grams"))
        self._conv = place_convolution(block.conv, inputs, self.n_aside, weights, arena, x=x, y=y, has_silu=True)
        numbers = [*block.multipliers, *block.first, *block.size]
        self._numbers = arena.keep(np.array(numbers, np.uint64).view(np.int64), "scratch")
        self._norms = [weights.norm(norm) for norm in (block.key_norm, block.query_norm, block.conv_norm)]
        self.layer = self._conv

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, n = self.block, tape.buffers, self.block.n_tokens
        x, size, n_all, matrix = tape.norm(None), block.key_norm.size, block.conv.n_channels, tape.weights.matrix(block.table)
        tape.add(Work("last tokens"), ngram.put_tokens, buffers["tokens"], up(n, 16), n)
        convolve(tape, self._tokens)
        found = buffers["rows of n-grams"]
        places = (tape.weights.address(matrix.kind, "embed"), matrix.address, block.table.n_in, found)
        numbers = (buffers["last tokens"], up(n, 16), n, len(block.size), self._numbers, block.eos)
        tape.add(Work("looking up n-grams"), ngram.look_up, *places, *numbers)
        products = ((block.key, buffers["keys of n-grams"]), (block.value, buffers["values of n-grams"]))
        tape.multiply("keys and values of n-grams", Rows(found, 0, block.key.n_in), products)
        given, normed = buffers["given by n-grams"], buffers["normed by n-grams"]
        rows = (products[0][1], up(n_all, PANEL_ROWS), products[1][1], up(size, PANEL_ROWS), x.address, x.stride)
        tape.add(Work("gates of n-grams"), ngram.give, *rows, n_all // size, size, *self._norms, given, normed)
        convolve(tape, self._conv)
        tape.add(Work("adding rows"), add_rows, given, 0, buffers["convolved n-grams"], 0, n_all, 0, bits(1.0))
        tape.leave(None, given)

    def emit_states(self, tape: Tape) -> None:
        """See `RecurrentEmitter.emit_states`."""
        convolve(tape, self._tokens)
        convolve(tape, self._conv)
