"""A memory of n-grams: rows of a table by the last tokens, and their additions to residual streams."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from augury.backends.numba_cuda.operations import MAX_TOKENS, THREADS, WARP, Arguments, OperationEmitter, Tape, look_up
from augury.plugins.ngram_memory.block import GateStreams, LookUpNgrams
from augury.plugins.ngram_memory.kernels.numba_cuda import Strides, find_ngrams, give

_NUMBERS = "numbers of n-grams"


class LookUpNgramsEmitter(OperationEmitter[LookUpNgrams]):
    """Looks up rows by the last tokens."""

    def buffers(self) -> Mapping[str, int]:
        return {_NUMBERS: 4 * MAX_TOKENS * len(self.operation.size)}

    def emit(self, tape: Tape) -> None:
        operation, n_heads, found = self.operation, len(self.operation.size), tape.buffers[_NUMBERS]
        numbers, tokens = (*operation.multipliers, *operation.first, *operation.size), self.scope.cache(operation.tokens.cache)
        known = tape.weights.constant(("n-grams", numbers), lambda: np.array([each % 2**64 for each in numbers], np.uint64))
        sizes: Arguments = {"n": len(operation.multipliers), "n_heads": n_heads, "eos": operation.eos}
        sizes["length"] = self.scope.options.n_ctx
        grid = (-(-n_heads // WARP), tape.size.n_tokens)
        tape.launch(find_ngrams, grid, WARP, tokens=tokens.codes, numbers=known, rows=found, **sizes)
        look_up(tape, operation.table, self.layout.rows(operation.out, tape), found, per_token=n_heads)


class GateStreamsEmitter(OperationEmitter[GateStreams]):
    """Gates values for each stream, and norms the results."""

    def emit(self, tape: Tape) -> None:
        operation, layout, size = self.operation, self.layout, self.operation.key_norm.size
        n, (given, out) = operation.x.width // size, operation.out
        values = {"keys": operation.keys, "values": operation.values, "streams": operation.x, "given": given, "out": out}
        rows = {name: layout.rows(value, tape) for name, value in values.items()}
        arguments: Arguments = {name: each.at for name, each in rows.items()}
        arguments |= {
            name: tape.weights.norm_arguments(getattr(operation, name), n) for name in ("key_norm", "query_norm", "norm")
        }
        strides = Strides(**{name: each.width for name, each in rows.items()})
        tape.launch(give, (tape.size.n_tokens, n), THREADS, n=n, size=size, strides=strides, **arguments)
