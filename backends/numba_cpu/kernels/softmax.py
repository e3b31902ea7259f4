"""The softmax of a row of scores, chunk by chunk: adjustments, exponentials and their sum, and how chunks come together."""

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential, hyperbolic_tangent
from augury.backends.numba_cpu.kernels.attention_layer import HEAD, TOTAL, AttentionLayer
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import count_from
from augury.backends.numba_cpu.kernels.simd import add, fma, load_f32, maximum, mul, repeat_f32, splat_f32, store_f32, sub

f32 = np.float32
MASKED = f32(-1e30)


@helper
def soften(scores, first, end, low, high):
    """Scores → exponentials in place, over whole blocks that hold first..end; of them only low..high count.

    Returns the maximum and the sum.
    """
    begin, stop = first // 16 * 16, (end + 15) // 16 * 16
    for p in range(begin, min(low, stop)):
        simd.put_f32(scores + 4 * p, MASKED)
    for p in range(max(high, begin), stop):
        simd.put_f32(scores + 4 * p, MASKED)
    a = b = simd.splat_f32(MASKED)
    p = begin
    while p + 32 <= stop:
        a, b = maximum(simd.load_f32(scores + 4 * p), a), maximum(simd.load_f32(scores + 4 * p + 64), b)
        p += 32
    if p < stop:
        a = maximum(simd.load_f32(scores + 4 * p), a)
    top = simd.max_lanes(maximum(a, b))
    limit = simd.splat_f32(top)
    total = simd.zero_f32()
    for p in range(begin, stop, 16):
        weight = exponential(sub(simd.load_f32(scores + 4 * p), limit))
        simd.store_f32(scores + 4 * p, weight)
        total = add(total, weight)
    return top, simd.sum_lanes(total)


@helper
def begin(layer, kept, head, bytes_of_part):
    """Begin a row of which nothing is known yet, or that its head's sink alone has been seen: a score without a value."""
    sinks = layer.sinks
    if sinks == 0:
        simd.put_f32(kept, MASKED)
        simd.put_f32(kept + TOTAL, f32(0))
    else:
        simd.put_f32(kept, simd.get_f32(sinks + 4 * head))
        simd.put_f32(kept + TOTAL, f32(1))
    for i in range(HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, simd.zero_f32())


@helper
def merge(kept, part, bytes_of_part):
    """Add a chunk's part of one row to the row's parts so far."""
    if simd.get_f32(part + TOTAL) < 0:
        return
    before, top = simd.get_f32(kept), simd.get_f32(part)
    one = simd.splat_f32(f32(1))
    if before < top:  # of the two factors the one is exp(0)
        old, new = exponential(simd.splat_f32(before - top)), one
        simd.put_f32(kept, top)
    else:
        old, new = one, exponential(simd.splat_f32(top - before))
    total = fma(simd.repeat_f32(part + TOTAL), new, mul(simd.repeat_f32(kept + TOTAL), old))
    simd.put_f32(kept + TOTAL, simd.max_lanes(total))
    for i in range(HEAD, bytes_of_part, 64):
        simd.store_f32(kept + i, fma(simd.load_f32(part + i), new, mul(simd.load_f32(kept + i), old)))


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
