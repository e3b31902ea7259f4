"""`Output`: logits = W norm(x), of the rows that are asked for, and the best token of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.choosing import Logits
from augury.backends.numba_cuda.kernels.dialect import THREADS
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.sample import cap_logits
from augury.backends.numba_cuda.rows import Rows
from augury.backends.numba_cuda.tape import Tape
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from augury.blocks import Output

__all__ = ["OutputEmitter"]


class OutputEmitter:
    """Computes logits, and tells of each row the best token and its logit."""

    def __init__(self, block: Output) -> None:
        self._block = block
        if block.tokens is not None:
            raise UnsupportedError("an output of some tokens of a vocabulary is not computed here; use backend numba-cpu")

    def buffers(self) -> Mapping[str, int]:
        """Bytes of memory that it works in, by name. Blocks share what has one name; the largest counts."""
        weight, best = self._block.weight, 8 * MAX_TOKENS
        if weight is None:
            return {"logits": 0, "best of chunks": 0, "best": best}
        made = {"logits": 4 * MAX_TOKENS * weight.n_out, "best of chunks": Logits.n_bytes, "best": best}
        return {**made, **Tape.operand_buffers("normed", weight.n_in)}

    def emit(self, tape: Tape) -> None:
        """Write its steps. May be called for any number of tapes."""
        block = self._block
        if block.weight is None:
            return
        n_vocab = block.weight.n_out
        normed, rows = tape.norm(block.norm, (block.weight,), is_output=True), Rows(tape.buffers["logits"], n_vocab)
        tape.multiply(normed, ((block.weight, 0),), rows, is_output=True)
        if block.softcap is not None:
            grid = (-(-n_vocab // THREADS), tape.size.n_tokens)
            tape.launch(cap_logits, grid, THREADS, logits=rows.at, n=n_vocab, cap=block.softcap)
        logits = Logits(tape.inputs, rows.at, tape.buffers["best of chunks"], n_vocab)
        n, best = tape.size.n_tokens, tape.buffers["best"]
        tape.steps += [logits.best_of_chunks(n, n_vocab), logits.best(n, n_vocab, 1, best, best.at(4 * MAX_TOKENS))]
