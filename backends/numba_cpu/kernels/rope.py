"""Rotary position embedding of one head."""

from augury.backends.numba_cpu.kernels.jit import helper
from augury.backends.numba_cpu.kernels.machine import load_doubled, load_part, negate_even, store_part, swap_pairs
from augury.backends.numba_cpu.kernels.simd import fma, fnma, mul


@helper
def rotate(x, turns, n_pairs, is_interleaved):
    """Turn the first 2 * n_pairs floats at `x` in place; `turns` has the pairs' cosines, then their sines."""
    sines = turns + 4 * n_pairs
    if is_interleaved != 0:
        for index in range(0, 2 * n_pairs, 16):
            left = 2 * n_pairs - index
            value = load_part(x + 4 * index, left)
            turned = mul(value, load_doubled(turns + 2 * index))
            turned = fma(swap_pairs(value), negate_even(load_doubled(sines + 2 * index)), turned)
            store_part(x + 4 * index, turned, left)
        return
    second = x + 4 * n_pairs
    for index in range(0, n_pairs, 16):
        left = n_pairs - index
        a = load_part(x + 4 * index, left)
        b = load_part(second + 4 * index, left)
        cosine = load_part(turns + 4 * index, left)
        sine = load_part(sines + 4 * index, left)
        store_part(x + 4 * index, fnma(b, sine, mul(a, cosine)), left)
        store_part(second + 4 * index, fma(a, sine, mul(b, cosine)), left)
