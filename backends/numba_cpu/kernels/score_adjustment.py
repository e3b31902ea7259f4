"""Adjustments of scores before their softmax, beside the scale."""

import numpy as np

from augury.backends.numba_cpu.kernels.activation import hyperbolic_tangent
from augury.backends.numba_cpu.kernels.attention_layer import AttentionLayer
from augury.backends.numba_cpu.kernels.jit import kernel
from augury.backends.numba_cpu.kernels.machine import count_from
from augury.backends.numba_cpu.kernels.simd import fma, load_f32, mul, repeat_f32, splat_f32, store_f32


@kernel(layer=AttentionLayer)
def adjust_scores(layer, scores, first, end, distance, head):
    """Cap scores and lower them by how far away they are: s → cap * tanh(s / cap) + slope * distance.

    Args:
        layer: its cap (0 if none), and slopes by head (0 if none).
        scores: of a row by position, of which `first` to `end` are changed, in whole blocks of 16.
        first: see `scores`.
        end: see `scores`.
        distance: of the first score's position from the row's own; of those before it less than 0.
        head: of queries.
    """
    cap, slopes = layer.cap, layer.slopes
    top, inverse = splat_f32(np.float32(cap)), splat_f32(np.float32(1 / cap))
    for p in range(first // 16 * 16, end, 16):
        score = load_f32(scores + 4 * p)
        if cap != 0:
            score = mul(hyperbolic_tangent(mul(score, inverse)), top)
        if slopes != 0:
            score = fma(count_from(distance + p), repeat_f32(slopes + 4 * head), score)
        store_f32(scores + 4 * p, score)
