"""`NgramMemory`: what a table says of the last tokens, for all residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cuda.blocks.embedding import look_up
from augury.backends.numba_cuda.blocks.recurrent import RecurrentEmitter, convolve
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.ngram import find_ngrams, give, put_tokens
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape, norm_kind
from augury.blocks import Convolution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.backends.numba_cuda.device import Arguments, Pointer
    from augury.blocks import NgramMemory

__all__ = ["NgramMemoryEmitter"]

_GIVEN, _NORMED, _CONVOLVED = "given by n-grams", "normed by n-grams", "convolved n-grams"


class NgramMemoryEmitter(RecurrentEmitter):
    """Keeps the tokens before, and the last inputs of the convolution.

    A convolution whose channel j lets through the token j places back tells each token the ones before it, also along its
    branch of a tree.
    """

    block: NgramMemory

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        block = self.block
        widths = dict.fromkeys((_GIVEN, _NORMED, _CONVOLVED, "keys of n-grams"), block.conv.n_channels)
        widths |= dict.fromkeys(("tokens", "last tokens"), block.n_tokens)
        widths |= {"numbers of n-grams": len(block.size), "values of n-grams": block.value.n_out, "n-grams": block.key.n_in}
        needed = {name: 4 * MAX_TOKENS * width for name, width in widths.items()}
        return needed | Tape.operand_buffers("rows of n-grams", block.key.n_in)

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, buffers, n_tokens, n_heads = self.block, tape.buffers, tape.size.n_tokens, len(self.block.size)
        size, n_all, streams = block.key_norm.size, block.conv.n_channels, tape.seen
        tape.launch(put_tokens, (n_tokens,), WARP, x=buffers["tokens"], n=block.n_tokens)
        self._emit_tokens(tape)
        places = {"tokens": buffers["last tokens"], "numbers": self._numbers(tape), "rows": buffers["numbers of n-grams"]}
        grid, sizes = (-(-n_heads // WARP), n_tokens), {"n": block.n_tokens, "n_heads": n_heads}
        tape.launch(find_ngrams, grid, WARP, eos=block.eos, **places, **sizes)
        found = Rows(buffers["n-grams"], block.key.n_in)
        look_up(tape, block.table, found, buffers["numbers of n-grams"], per_token=n_heads)
        rows = tape.operand("rows of n-grams", block.key.n_in, [block.key, block.value])
        tape.put(found, found.width, rows)
        tape.multiply(rows, ((block.key, 0),), Rows(buffers["keys of n-grams"], n_all))
        tape.multiply(rows, ((block.value, 0),), Rows(buffers["values of n-grams"], size))
        arguments: Arguments = {"keys": buffers["keys of n-grams"], "values": buffers["values of n-grams"]}
        arguments |= {
            "streams": streams.at,
            "given": buffers[_GIVEN],
            "out": buffers[_NORMED],
            "n": n_all // size,
            "size": size,
        }
        for prefix, norm in (("key_", block.key_norm), ("query_", block.query_norm), ("", block.conv_norm)):
            arguments |= {f"{prefix}weight": tape.weights.norm(norm, n_all // size), f"{prefix}kind": norm_kind(norm)}
            arguments[f"{prefix}eps"] = norm.eps
        tape.launch(give, (n_tokens, n_all // size), THREADS, **arguments)
        self._emit_convolution(tape)
        for name in (_GIVEN, _CONVOLVED):
            tape.blend(tape.x, Rows(buffers[name], n_all), 1.0, 1.0)

    def emit_states(self, tape: Tape) -> None:
        """See `Emitter.emit_states`."""
        self._emit_tokens(tape)
        self._emit_convolution(tape)

    def _emit_tokens(self, tape: Tape) -> None:
        n = self.block.n_tokens
        rows = [Rows(tape.buffers[name], n) for name in ("tokens", "last tokens")]
        taps = tape.weights.constant(("last tokens", n), lambda: np.ascontiguousarray(np.eye(n, dtype=np.float32)[::-1]))
        convolve(tape, Convolution("", n, n), self._placed[0], *rows, taps=taps)

    def _emit_convolution(self, tape: Tape) -> None:
        conv = self.block.conv
        rows = [Rows(tape.buffers[name], conv.n_channels) for name in (_NORMED, _CONVOLVED)]
        convolve(tape, conv, self._placed[1], *rows, has_silu=True)

    def _numbers(self, tape: Tape) -> Pointer:
        """What `find_ngrams` is told of multipliers and heads."""
        numbers = (*self.block.multipliers, *self.block.first, *self.block.size)
        return tape.weights.constant(("n-grams", numbers), lambda: np.array([each % 2**64 for each in numbers], np.uint64))
