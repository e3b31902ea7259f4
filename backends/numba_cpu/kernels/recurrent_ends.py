"""What comes before and after a linear recurrence: keys and decays of tokens, and the gates of what it yields."""

from __future__ import annotations

import math

import numpy as np

from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, softplus
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.machine import get_f64, load_part, store_part
from augury.backends.numba_cpu.kernels.norm import inverse_deviation, normalise
from augury.backends.numba_cpu.kernels.simd import (
    add,
    fma,
    get_i64,
    mul,
    splat_f32,
)
from augury.backends.numba_cpu.kernels.team import N_TOKENS

f32 = np.float32

# Offsets into the record of how decays and betas are made; see `decay`.
ROWS, LDR, T, LDT, B, LDB, DT, A, N_DECAYS, DECAY_TO, BETA_TO = (8 * field for field in range(11))
# Offsets into the record of a gate; see `gate`.
Y, LDY, SIZE, SKIP, VALUES, LDV, GATES, LDG, NORM, GROUP, IS_GATED_FIRST, IS_SIGMOID = (8 * field for field in range(12))


@kernel
def decay(record, state, thread, n_threads):
    """Decays exp(a * s), s = softplus(t + dt), and betas of all tokens: sigmoid(b), or s. Operand: a record; 0: no dt, a, b."""
    made = get_i64(record + 16)
    size = get_i64(made + N_DECAYS)
    n_blocks = (size + 15) // 16
    n_items = get_i64(state + N_TOKENS) * n_blocks
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        i = item // n_blocks
        block = item - i * n_blocks
        at, left = 64 * block, size - 16 * block
        row = get_i64(made + ROWS) + 4 * i * get_i64(made + LDR)
        step = load_part(get_i64(made + T) + 4 * i * get_i64(made + LDT) + at, left)
        if get_i64(made + DT) != 0:
            step = add(step, load_part(get_i64(made + DT) + at, left))
        step = softplus(step)
        if get_i64(made + A) != 0:
            store_part(
                row + get_i64(made + DECAY_TO) + at, exponential(mul(step, load_part(get_i64(made + A) + at, left))), left
            )
        if get_i64(made + B) != 0:
            step = sigmoid(load_part(get_i64(made + B) + 4 * i * get_i64(made + LDB) + at, left))
        store_part(row + get_i64(made + BETA_TO) + at, step, left)


@kernel
def decay_keys(record, state, thread, n_threads):
    """Decays by key of all tokens, their keys times these, and betas sigmoid(b).

    A decay is exp(a * softplus(t)), or exp(floor * sigmoid(a * t)). Operands: rows, floats from one to the next, t, likewise,
    b, likewise, a, keys of all heads, heads, bytes of a row before keys, decays, the product and betas, floor (or 0).
    """
    rows, ldr, ts, ldt = get_i64(record + 16), 4 * get_i64(record + 24), get_i64(record + 32), 4 * get_i64(record + 40)
    bs, ldb, a, size = get_i64(record + 48), 4 * get_i64(record + 56), get_i64(record + 64), get_i64(record + 72)
    n_heads, floor = get_i64(record + 80), get_f64(record + 120)
    n_blocks = (size + 15) // 16
    n_items = get_i64(state + N_TOKENS) * n_blocks
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        i = item // n_blocks
        block = item - i * n_blocks
        row, at, left = rows + i * ldr, 64 * block, size - 16 * block
        step, factor = load_part(ts + i * ldt + at, left), load_part(a + at, left)
        step = mul(factor, softplus(step)) if floor == 0.0 else mul(splat_f32(f32(floor)), sigmoid(mul(factor, step)))
        step = exponential(step)
        store_part(row + get_i64(record + 96) + at, step, left)
        store_part(row + get_i64(record + 104) + at, mul(step, load_part(row + get_i64(record + 88) + at, left)), left)
        if 16 * block < n_heads:
            beta = sigmoid(load_part(bs + i * ldb + at, n_heads - 16 * block))
            store_part(row + get_i64(record + 112) + at, beta, n_heads - 16 * block)


@kernel
def place_rows(record, state, thread, n_threads):
    """Copy rows, or their norms. Operands: rows, floats from one to the next, to, likewise, size, norm (or 0)."""
    x, ldx, y, ldy = get_i64(record + 16), 4 * get_i64(record + 24), get_i64(record + 32), 4 * get_i64(record + 40)
    size, norm, n = get_i64(record + 48), get_i64(record + 56), get_i64(state + N_TOKENS)
    for t in range(n * thread // n_threads, n * (thread + 1) // n_threads):
        if norm != 0:
            normalise(x + t * ldx, norm, y + t * ldy, size, 0, 0)
        else:
            for index in range(0, size, 16):
                left = size - index
                store_part(y + t * ldy + 4 * index, load_part(x + t * ldx + 4 * index, left), left)


@kernel
def unit_heads(record, state, thread, n_threads):
    """Divide the heads of all rows by their lengths, and multiply the first of them by a scale.

    Operands: rows, floats from one to the next, heads, how many of them are scaled, their size, what is added to the square of
    a length, scale.
    """
    n_heads, n_scaled, size = get_i64(record + 32), get_i64(record + 40), get_i64(record + 48)
    n_items = get_i64(state + N_TOKENS) * n_heads
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        t = item // n_heads
        head = item - t * n_heads
        place = get_i64(record + 16) + 4 * (t * get_i64(record + 24) + head * size)
        factor = np.float64(inverse_deviation(place, size, f32(0), get_f64(record + 56) / size)) / math.sqrt(float(size))
        if head < n_scaled:
            factor *= get_f64(record + 64)
        scale = splat_f32(f32(factor))
        for index in range(0, size, 16):
            left = size - index
            store_part(place + 4 * index, mul(load_part(place + 4 * index, left), scale), left)


@helper
def gated(made, y, gates, size):
    """Multiply a row by the SiLU, or the sigmoid, of its gates."""
    for index in range(0, size, 16):
        at, left = 4 * index, size - index
        value = load_part(gates + at, left)
        factor = sigmoid(value)
        if get_i64(made + IS_SIGMOID) == 0:
            factor = mul(factor, value)
        store_part(y + at, mul(load_part(y + at, left), factor), left)


@kernel
def gate(record, state, thread, n_threads):
    """Y += skip * values; y = norm(y) times the gates, or the other way round, by groups. Operand: a record."""
    made = get_i64(record + 16)
    size, group = get_i64(made + SIZE), get_i64(made + GROUP)
    n_groups = (size + group - 1) // group
    n_items = get_i64(state + N_TOKENS) * n_groups
    for item in range(n_items * thread // n_threads, n_items * (thread + 1) // n_threads):
        i = item // n_groups
        number = item - i * n_groups
        first, n = 4 * number * group, min(group, size - number * group)
        y = get_i64(made + Y) + 4 * i * get_i64(made + LDY) + first
        gates = get_i64(made + GATES) + 4 * i * get_i64(made + LDG) + first
        if get_i64(made + SKIP) != 0:
            values, skip = get_i64(made + VALUES) + 4 * i * get_i64(made + LDV) + first, get_i64(made + SKIP) + first
            for index in range(0, n, 16):
                at, left = 4 * index, n - index
                store_part(y + at, fma(load_part(skip + at, left), load_part(values + at, left), load_part(y + at, left)), left)
        if get_i64(made + IS_GATED_FIRST) != 0:
            gated(made, y, gates, n)
        if get_i64(made + NORM) != 0:
            normalise(y, get_i64(made + NORM), y, n, number, 0)
        if get_i64(made + IS_GATED_FIRST) == 0:
            gated(made, y, gates, n)
