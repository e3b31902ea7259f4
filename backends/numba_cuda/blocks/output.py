"""`Output`: logits = W norm(x), of the rows that are asked for, and the best token of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.emitter import Emitter
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.sample import best_tokens, cap_logits
from augury.backends.numba_cuda.tape import Rows, Tape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Output

__all__ = ["OutputEmitter"]


class OutputEmitter(Emitter):
    """Computes logits, and tells of each row the best token and its logit."""

    known = ("softcap",)
    block: Output

    def buffers(self, n_splits: int) -> Mapping[str, int]:  # noqa: ARG002 - as its parent's
        """See `Emitter.buffers`."""
        return {
            "logits": 4 * MAX_TOKENS * self.block.weight.n_out,
            "best": 8 * MAX_TOKENS,
            **Tape.operand_buffers("normed", self.block.norm.size),
        }

    def emit(self, tape: Tape) -> None:
        """See `Emitter.emit`."""
        block, n_vocab = self.block, self.block.weight.n_out
        rows = tape.norm(block.norm, (block.weight,), is_output=True)
        logits, best = Rows(tape.buffers["logits"], n_vocab), tape.buffers["best"]
        tape.multiply(rows, ((block.weight, 0),), logits, is_output=True)
        if block.softcap is not None:
            grid = (-(-n_vocab // THREADS), tape.size.n_tokens)
            tape.add(cap_logits, grid, THREADS, logits.at, n_vocab, block.softcap)
        places = (logits.at, best, best, best.at(4 * MAX_TOKENS))
        tape.add(best_tokens, (tape.size.n_tokens,), THREADS, *places, n_vocab, n_vocab, 1, 1)
