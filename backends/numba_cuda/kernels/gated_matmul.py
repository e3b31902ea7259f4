"""Products of gate and up with a few tokens, activated in the same launch: see `sums` for the order of additions."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import GateArgs
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, lane, slice_sums
from augury.backends.numba_cuda.kernels.formats import FORMATS, TILE_ROWS, TILE_UNITS, UNIT
from augury.backends.numba_cuda.kernels.gate import put_gated
from augury.backends.numba_cuda.kernels.matmul import OF_TOKENS, kind_of_rows_of, list_rows, product_of, tile_of_block
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.sums import TILES, MatrixArgs, SourceArgs, bring_near_of, sums_of_cut_of

GATED_WARPS = UNIT // TILE_ROWS  # of a block, which multiplies 32 rows of gate, then those of up


@lane
def _tile_of(warp, half, unit, size):
    """The tile of rows that a warp multiplies for a unit of `size` gates, or of the ups after them; -1 beyond them."""
    n_tiles, tile = size // TILE_ROWS, GATED_WARPS * unit + warp
    return np.int32(n_tiles * half + tile) if tile < n_tiles else np.int32(-1)


def _multiply(fmt, n_tokens):
    sums_of_cut, n_staged = sums_of_cut_of(fmt, n_tokens, 1), 2 * UNIT * n_tokens
    bring_tiles_near, kind_of_rows = bring_near_of(fmt), kind_of_rows_of(n_tokens)
    name = f"multiply_{fmt.name}_gated_{n_tokens}"

    @kernel("j", MatrixArgs, SourceArgs, "iiii", GateArgs, TargetArgs, name=name)
    def multiply(inputs, w, x, column, which, n_most, per_token, how, to):
        """Activate gates, and multiply them with ups, as they are made; the upper half of the rows of W are gates.

        Without `has_up` all are gates. A warp takes four rows of each half and `n_tokens` tokens, a block a whole unit; rows
        are not cut. The products of several matrices for a token may be side by side: `column` is how many there are.

        Args:
            inputs, w, x: See `matmul`.
            n_most, per_token: Of routes, see `token_at`.
            how: See `GateArgs`.
            to: See `TargetArgs`.
        """
        i, warp, unit = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP, cuda.blockIdx.x
        size = w.n_rows // (1 + how.has_up)
        if which == OF_TOKENS and cuda.blockIdx.y == 0:
            for half in range(1 + how.has_up):
                bring_tiles_near(w, size // TILE_ROWS * half + GATED_WARPS * unit, GATED_WARPS)
        gpu.wait_for_launch()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)
        if t >= n_wanted:
            return
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, kind_of_rows)
        list_rows(rows, n_tokens, inputs, which, n_most, per_token, t, n_wanted)
        staged = cuda.shared.array(n_staged, np.float32)
        for half in range(1 + how.has_up):
            tile = _tile_of(warp, half, unit, size)
            sums_of_cut(w, tile, 0, 1, matrix, x, rows, i, sums)
            slice_sums(sums, n_tokens)
            if tile >= 0:
                row, at = matrix * w.n_rows + TILE_ROWS * tile + i % TILE_ROWS, UNIT * half + TILE_ROWS * warp + i % TILE_ROWS
                for token in range(n_tokens):
                    if i // TILE_ROWS == token % TILE_UNITS:
                        staged[2 * UNIT * token + at] = product_of(sums[token], w, row)
        cuda.syncthreads()
        matrix, t, n_wanted = tile_of_block(inputs, which, cuda.blockIdx.y, n_tokens)  # anew: to keep them takes registers
        place = matrix if column else t
        put_gated(staged, min(n_tokens, n_wanted - t), place, max(1, column), unit, size, how, to)

    return multiply


MULTIPLY_GATED = {(name, n_tokens): _multiply(fmt, n_tokens) for name, fmt in FORMATS.items() for n_tokens in TILES}
"""Kernels by the weights' type, and how many tokens share a reading of them."""
