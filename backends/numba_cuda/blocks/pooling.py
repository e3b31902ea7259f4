"""`Pooling`: a row of every so many positions; a part of the emitters of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from augury.backends.numba_cuda.blocks.heads import Heads, prepare
from augury.backends.numba_cuda.cache import Cache
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP
from augury.backends.numba_cuda.kernels.heads import MAX_DIM
from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.kernels.pooling import keep_to_pool, pool_rows
from augury.backends.numba_cuda.rows import Rows
from augury.errors import UnsupportedError

if TYPE_CHECKING:
    from augury.backends.numba_cuda.device import Arguments
    from augury.backends.numba_cuda.tape import Tape
    from augury.blocks import Linear, Pooling
    from augury.types import ModelOptions

__all__ = ["Pooler"]

_ROWS = "pooled rows"


class Pooler:
    """Keeps what is pooled, and pooled rows, by the cells of the last positions of blocks.

    Attributes:
        linears: Whose products of norm(x) it needs, side by side.
        rows: The cache of pooled rows.
    """

    def __init__(self, pooling: Pooling, kept_as: str, options: ModelOptions) -> None:
        if pooling.width % 8 or pooling.width > MAX_DIM:
            expected = f"multiples of 8 up to {MAX_DIM}"
            raise UnsupportedError(
                f"pooled rows of {pooling.width} values, backend numba-cuda computes {expected}; choose another one"
            )
        self._pooling, self._n_ctx = pooling, options.n_ctx
        self.linears: list[Linear] = [pooling.values, *([] if pooling.weights is None else [pooling.weights])]
        self._kept, self.rows = Cache("f32", 1, pooling.n_kept, options), Cache(kept_as, 1, pooling.width, options)

    @property
    def caches(self) -> list[Cache]:
        """What it keeps."""
        return [self._kept, self.rows]

    def buffers(self) -> dict[str, int]:
        """See `Emitter.buffers`."""
        return {_ROWS: 4 * MAX_TOKENS * self._pooling.width}

    def emit(self, tape: Tape, products: Rows) -> None:
        """Write what becomes of rows that begin with its products."""
        pooling, n_tokens, kept, n_values = self._pooling, tape.size.n_tokens, self._kept.codes, self._pooling.values.n_out
        tape.norm_in_place(pooling.value_norm, products, n_values)
        sizes = {"n_kept": pooling.n_kept, "n_values": n_values, "size": pooling.size, "length": self._n_ctx}
        sizes["has_weights"] = pooling.weights is not None
        places: Arguments = {"rows": products.at, "stride": products.width, "kept": kept}
        if pooling.places is not None:
            places |= {"places": tape.weights.vector(pooling.places), "has_places": True}
        tape.launch(keep_to_pool, (-(-pooling.n_kept // THREADS), n_tokens), THREADS, **places, **sizes)
        rows, grid = Rows(tape.buffers[_ROWS], pooling.width), (-(-pooling.width // WARP), n_tokens)
        to: Arguments = {"rows": rows.at, "stride": rows.width, "width": pooling.width, "overlaps": pooling.overlaps}
        tape.launch(pool_rows, grid, WARP, kept=kept, **to, **sizes)
        heads = (Heads(0, pooling.width), Heads(1, pooling.width, pooling.norm, self.rows))
        prepare(tape, rows, self._n_ctx, *heads, rope=pooling.rope, lag=pooling.size - 1)
