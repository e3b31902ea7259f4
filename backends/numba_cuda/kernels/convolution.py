"""Causal convolutions, a channel by itself, whose last inputs are kept per sequence.

A thread takes a channel of a run: what was accepted, then certain tokens, go into the state; drafted ones into a copy.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import silu, softplus
from augury.backends.numba_cuda.kernels.dialect import (
    SIMULATED,
    WARP,
    add,
    cuda,
    exp,
    fma,
    kernel,
    lane,
    mul,
    remainder,
    together,
)
from augury.backends.numba_cuda.kernels.inputs import (
    ACCEPTED,
    CELLS,
    FIRST,
    IS_RESTORED,
    IS_START,
    N_CERTAIN,
    N_RUNS,
    ORDER,
    RUN_FIELDS,
    RUNS,
    SAVE,
    SLOT,
    STATES,
    N,
)
from augury.backends.numba_cuda.kernels.quantise import quantise, unit_of

MAX_SIZE = 16  # of a convolution, with the inputs that it passes over
CONVOLVE_THREADS = 32 if SIMULATED else 128
_WINDOWS = (MAX_SIZE - 1) * CONVOLVE_THREADS


@lane
def _load(window, i, source, at, step, before):
    for j in range(before):
        window[i + j * CONVOLVE_THREADS] = source[at + j * step]


@lane
def _store(window, i, to, at, step, before):
    for j in range(before):
        to[at + j * step] = window[i + j * CONVOLVE_THREADS]


@lane
def _push(window, i, value, before):
    """Let a value be the last of a window, and the first one go."""
    for j in range(before - 1):
        window[i + j * CONVOLVE_THREADS] = window[i + (j + 1) * CONVOLVE_THREADS]
    window[i + (before - 1) * CONVOLVE_THREADS] = value


@lane
def _input(x, gate, at, has_gates):
    return mul(gate[at], x[at]) if has_gates else x[at]


@lane
def _output(window, i, value, taps, first, before):
    """The sum of the taps times the last inputs, the oldest first."""
    total = np.float32(0)
    for j in range(before):
        total = fma(window[i + j * CONVOLVE_THREADS], taps[first + j], total)
    return fma(value, taps[first + before], total)


@lane
def _convolve_run(
    inputs,
    run,
    window,
    i,
    c,
    x,
    gate_in,
    gate_out,
    taps,
    bias,
    state,
    saved,
    aside,
    y,
    x_stride,
    y_stride,
    n_channels,
    size,
    n_aside,
    has_gates,
    has_bias,
    has_silu,
):
    """Take a run's tokens through channel c, if there is one."""
    if c >= n_channels:
        return
    slot, first, n = inputs[run + SLOT], inputs[run + FIRST] + ORDER, inputs[run + N]
    n_certain, save = inputs[run + N_CERTAIN], inputs[run + SAVE]
    before = size - 1
    own, kept = slot * before * n_channels + c, slot * n_aside * n_channels + c
    if inputs[run + IS_START]:
        for j in range(before):
            window[i + j * CONVOLVE_THREADS] = np.float32(0)
    else:
        _load(window, i, saved if inputs[run + IS_RESTORED] else state, own, n_channels, before)
    for j in range(-1, n):
        t = inputs[first + j] if j >= 0 else 0
        path = inputs[STATES + t] if j >= 0 else inputs[run + ACCEPTED]
        if path > 0:
            if j >= 0:
                _load(window, i, state, own, n_channels, before)
            for place in range(path + 1, path + 1 + inputs[path]):
                if inputs[place] < 0:
                    value = aside[kept + (-1 - inputs[place]) * n_channels]
                else:
                    value = _input(x, gate_in, inputs[place] * x_stride + c, has_gates)
                _push(window, i, value, before)
        if j >= 0:
            value = _input(x, gate_in, t * x_stride + c, has_gates)
            total = _output(window, i, value, taps, c * size, before)
            if has_bias:
                total = add(total, bias[c])
            if has_silu:
                total = silu(total)
            if has_gates:
                total = mul(total, gate_out[t * x_stride + c])
            y[t * y_stride + c] = total
            _push(window, i, value, before)
        if j + 1 == save:
            _store(window, i, saved, own, n_channels, before)
        if j + 1 == n_certain:
            _store(window, i, state, own, n_channels, before)
    for j in range(n_certain, n):  # in place of what was accepted, maybe
        t = inputs[first + j]
        place = kept + remainder(inputs[CELLS + t], n_aside) * n_channels
        aside[place] = _input(x, gate_in, t * x_stride + c, has_gates)


@together
def _quantise_run(inputs, run, i, c, y, y_stride, n_channels, out, quantised, factors, sums, width, as_floats, as_bytes):
    """Store what a run's tokens have in channel c where products read it, as floats, as units, or both; 0 beyond channels."""
    first = inputs[run + FIRST] + ORDER
    for j in range(inputs[run + N]):
        t = inputs[first + j]
        value = y[t * y_stride + c] if c < n_channels else np.float32(0)
        if as_floats:
            out[t * width + c] = value
        if as_bytes:
            quantise(value, i % WARP, quantised, factors, sums, unit_of(inputs, t, c // WARP, width // WARP))


@lane
def _step_run(inputs, run, i, ends, dt, a, y, ends_stride, y_stride, n_steps, step_at):
    """What a run's tokens have in head i: decays exp(a * s), after those of all heads betas s, s = softplus(t + dt)."""
    first = inputs[run + FIRST] + ORDER
    for j in range(inputs[run + N]):
        t = inputs[first + j]
        step = softplus(add(ends[t * ends_stride + i], dt[i]))
        y[t * y_stride + step_at + i] = exp(mul(step, a[i]))
        y[t * y_stride + step_at + n_steps + i] = step


@kernel("jfffffffffiiiiiiii" + "fbfjiii" + "fffiii")
def convolve(
    inputs,
    x,
    gate_in,
    gate_out,
    taps,
    bias,
    state,
    saved,
    aside,
    y,
    x_stride,
    y_stride,
    n_channels,
    size,
    n_aside,
    has_gates,
    has_bias,
    has_silu,
    out,
    quantised,
    factors,
    sums,
    width,
    as_floats,
    as_bytes,
    ends,
    dt,
    a,
    ends_stride,
    n_steps,
    step_at,
):
    """Convolve the tokens of all runs, and bring their states up to date: y = gate_out * silu(bias + conv(gate_in * x)).

    Blocks beyond those of channels make decays and betas of heads, which are in rows of y, too, from `step_at` on.

    Args:
        inputs: Of the pass.
        x, gate_in, gate_out: (n, x_stride).
        taps: (n_channels, size).
        bias: (n_channels,).
        state, saved: (slots, size - 1, n_channels), the last input last.
        aside: (slots, n_aside, n_channels).
        y: (n, y_stride).
        out: (n, width), of whole units, if products read y, too; as floats, as units, or both.
        ends: (n, ends_stride), of n_steps heads.
        dt, a: (n_steps,).
    """
    i, run = cuda.threadIdx.x, RUNS + cuda.blockIdx.y * RUN_FIELDS
    c = cuda.blockIdx.x * CONVOLVE_THREADS + i
    window = cuda.shared.array(_WINDOWS, np.float32)
    n_blocks = (n_channels + CONVOLVE_THREADS - 1) // CONVOLVE_THREADS
    if cuda.blockIdx.y < inputs[N_RUNS] and cuda.blockIdx.x >= n_blocks and c < n_blocks * CONVOLVE_THREADS + n_steps:
        _step_run(inputs, run, c - n_blocks * CONVOLVE_THREADS, ends, dt, a, y, ends_stride, y_stride, n_steps, step_at)
    if cuda.blockIdx.y >= inputs[N_RUNS] or c // WARP * WARP >= n_channels:
        return
    _convolve_run(
        inputs,
        run,
        window,
        i,
        c,
        x,
        gate_in,
        gate_out,
        taps,
        bias,
        state,
        saved,
        aside,
        y,
        x_stride,
        y_stride,
        n_channels,
        size,
        n_aside,
        has_gates,
        has_bias,
        has_silu,
    )
    if as_floats or as_bytes:
        _quantise_run(inputs, run, i, c, y, y_stride, n_channels, out, quantised, factors, sums, width, as_floats, as_bytes)
