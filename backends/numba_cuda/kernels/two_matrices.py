"""Products of the same few tokens and two matrices of different types, in one launch; see `matmul`."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, kernel, slice_sums
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS
from augury.backends.numba_cuda.kernels.matmul import MOST_STAGED, STORE, put_rows
from augury.backends.numba_cuda.kernels.sums import TILES, MatrixArgs, SourceArgs, add_cuts, bring_near_of, sums_of_cut_of

MOST_REGISTERS = {4: 112, 8: 112}  # by tokens: so that 16 warps have room, where the compiler takes more for 8.0


def _multiply_two(fmt, other, n_tokens):
    sums_of_one, sums_of_other = sums_of_cut_of(fmt, n_tokens), sums_of_cut_of(other, n_tokens)
    bring_one_near, bring_other_near, n_staged = bring_near_of(fmt), bring_near_of(other), MOST_STAGED * n_tokens
    name, most_registers = f"multiply_{fmt.name}_{other.name}_{n_tokens}", MOST_REGISTERS.get(n_tokens)

    @kernel("j", SourceArgs, "ii", *2 * (MatrixArgs, "f"), name=name, most_registers=most_registers)
    def multiply_two(inputs, x, stride, n_blocks, w, y, other_w, other_y):
        """Multiply the same rows by two matrices of different types, as `multiply` does, one after the other.

        The first `n_blocks` blocks multiply by W, the others by the other matrix; rows of products, which begin with y and
        `other_y`, are as far apart.
        """
        t, block, is_other = cuda.blockIdx.y * n_tokens, cuda.blockIdx.x, cuda.blockIdx.x >= n_blocks
        words, bias, n_rows, n_units, n_steps, n, n_cuts, has_bias, scale = w
        if is_other:
            words, bias, n_rows, _, _, n, n_cuts, has_bias, scale = other_w  # whose rows are as long
            block, y = block - n_blocks, other_y
        own = MatrixArgs(words, bias, n_rows, n_units, n_steps, n, n_cuts, has_bias, scale)
        if cuda.blockIdx.y == 0:
            n_tiles = gpu.quotient(cuda.blockDim.x // WARP, n_cuts)
            if is_other:
                bring_other_near(own, block * n_tiles, n_tiles)
            else:
                bring_one_near(own, block * n_tiles, n_tiles)
        gpu.wait_for_launch()
        if t >= inputs[N_TOKENS]:
            return
        i = cuda.threadIdx.x % WARP
        warp = block * (cuda.blockDim.x // WARP) + cuda.threadIdx.x // WARP
        tile, cut = gpu.quotient(warp, n_cuts), gpu.remainder(warp, n_cuts)
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, np.int64)
        for token in range(n_tokens):
            rows[token] = t + token
        if is_other:
            sums_of_other(own, tile, cut, n_cuts, 0, x, rows, i, sums)
        else:
            sums_of_one(own, tile, cut, n_cuts, 0, x, rows, i, sums)
        staged = cuda.shared.array(n_staged, np.float32)
        if n_cuts > 1:
            add_cuts(sums, staged, cut, n_cuts, n_tokens)
        if cut > 0:
            return
        slice_sums(sums, n_tokens)
        put_rows(sums, n_tokens, tile, own, 0, t, inputs[N_TOKENS], y, stride, 0, STORE)

    return multiply_two


MULTIPLY_TWO = {
    (name, other, n_tokens): _multiply_two(FORMATS[name], FORMATS[other], n_tokens)
    for name, other in (
        *(("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"), ("Q4_K", "Q5_K")),
        *(("Q3_K", "Q5_K"), ("Q3_K", "Q4_K"), ("IQ4_XS", "Q5_K")),
    )
    for n_tokens in TILES
}
"""Kernels for two matrices, by their types and tokens: for q and k, and v, as files of type Q4_K_M and the like have them."""
