"""Causal convolutions, a channel by itself, whose last inputs are kept per sequence.

A thread takes a channel of a run: accepted tokens, then certain ones, go into the state; drafted ones into a copy. Convolutions
over the tokens of a drafted block have weights of each token's own, and keep nothing.

Source: DFlash2, as llama.cpp computes it (`src/models/dflash.cpp`), for these.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import inputs as layout, instructions as gpu
from augury.backends.numba_cuda.kernels.activation import silu, softplus
from augury.backends.numba_cuda.kernels.dialect import SIMULATED, WARP, cuda, kernel, lane, record, together
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, SLOTS
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put, unit_of

MAX_SIZE = 16  # of a convolution, with the inputs that it passes over
CONVOLVE_THREADS = 32 if SIMULATED else 128
_WINDOWS = (MAX_SIZE - 1) * CONVOLVE_THREADS
ConvolveArgs = record(
    "ConvolveArgs",
    f="x gate_in gate_out taps bias state saved aside y",
    i="x_stride y_stride n_channels size n_aside has_gates has_bias has_silu",
)
"""The operands: `x` and gates (n, x_stride), by `taps` (n_channels, size) and `bias` (n_channels,), to `y` (n, y_stride).

The last inputs are in `state` and `saved` (slots, size - 1, n_channels), those of drafted tokens `aside` (slots, n_aside,
n_channels).
"""
StepArgs = record("StepArgs", f="ends dt a", i="stride n at")
"""The inputs of decays and betas: `ends` (n, stride) of n heads, `dt` and `a` (n,). They lie in rows of y from `at` on."""


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
    return gpu.mul(gate[at], x[at]) if has_gates else x[at]


@lane
def _output(window, i, value, taps, first, before):
    """The sum of the taps times the last inputs, the oldest first."""
    total = np.float32(0)
    for j in range(before):
        total = gpu.fma(window[i + j * CONVOLVE_THREADS], taps[first + j], total)
    return gpu.fma(value, taps[first + before], total)


@lane
def _convolve_run(inputs, run, window, i, c, params):
    """Take a run's tokens through channel c, if there is one."""
    n_channels, n_aside, state, has_gates = params.n_channels, params.n_aside, params.state, params.has_gates
    x, gate, x_stride, size, aside = params.x, params.gate_in, params.x_stride, params.size, params.aside
    if c >= n_channels:
        return
    slot, first, n = inputs[run + layout.SLOT], inputs[run + layout.FIRST] + layout.ORDER, inputs[run + layout.N]
    n_certain, save = inputs[run + layout.N_CERTAIN], inputs[run + layout.SAVE]
    before = size - 1
    own, kept = slot * before * n_channels + c, slot * n_aside * n_channels + c
    if inputs[run + layout.IS_START]:
        for j in range(before):
            window[i + j * CONVOLVE_THREADS] = np.float32(0)
    else:
        _load(window, i, params.saved if inputs[run + layout.IS_RESTORED] else state, own, n_channels, before)
    for j in range(-1, n):
        t = inputs[first + j] if j >= 0 else 0
        path = inputs[layout.STATES + t] if j >= 0 else inputs[run + layout.ACCEPTED]
        if path > 0:
            if j >= 0:
                _load(window, i, state, own, n_channels, before)
            for place in range(path + 1, path + 1 + inputs[path]):
                if inputs[place] < 0:
                    value = aside[kept + (-1 - inputs[place]) * n_channels]
                else:
                    value = _input(x, gate, inputs[place] * x_stride + c, has_gates)
                _push(window, i, value, before)
        if j >= 0:
            value = _input(x, gate, t * x_stride + c, has_gates)
            total = _output(window, i, value, params.taps, c * size, before)
            if params.has_bias:
                total = gpu.add(total, params.bias[c])
            if params.has_silu:
                total = silu(total)
            if has_gates:
                total = gpu.mul(total, params.gate_out[t * x_stride + c])
            params.y[t * params.y_stride + c] = total
            _push(window, i, value, before)
        if j + 1 == save:
            _store(window, i, params.saved, own, n_channels, before)
        if j + 1 == n_certain:
            _store(window, i, state, own, n_channels, before)
    for j in range(n_certain, n):  # perhaps in place of accepted ones
        t = inputs[first + j]
        place = kept + gpu.remainder(inputs[layout.CELLS + t], n_aside) * n_channels
        aside[place] = _input(x, gate, t * x_stride + c, has_gates)


@together
def _put_run(inputs, run, i, c, params, to):
    """Store channel c of a run's tokens where products read it; 0 beyond channels."""
    first = inputs[run + layout.FIRST] + layout.ORDER
    for j in range(inputs[run + layout.N]):
        t = inputs[first + j]
        value = params.y[t * params.y_stride + c] if c < params.n_channels else np.float32(0)
        put(value, i % WARP, to, t * to.width + c, unit_of(inputs, t, c // WARP, to.width // WARP))


@lane
def _step_run(inputs, run, i, y, y_stride, steps):
    """Head i of a run's tokens: decays exp(a * s), after those of all heads betas s, s = softplus(t + dt)."""
    first = inputs[run + layout.FIRST] + layout.ORDER
    for j in range(inputs[run + layout.N]):
        t = inputs[first + j]
        step, at = softplus(gpu.add(steps.ends[t * steps.stride + i], steps.dt[i])), t * y_stride + steps.at + i
        y[at] = gpu.exp(gpu.mul(step, steps.a[i]))
        y[at + steps.n] = step


@kernel("j", ConvolveArgs, TargetArgs, StepArgs)
def convolve(inputs, params, to, steps):
    """Convolve the tokens of all runs, and bring their states up to date: y = gate_out * silu(bias + conv(gate_in * x)).

    Blocks beyond those of channels make decays and betas of heads.

    Args:
        to: Rows of whole units, if products read y, too.
    """
    i, run = cuda.threadIdx.x, layout.RUNS + cuda.blockIdx.y * layout.RUN_FIELDS
    c = cuda.blockIdx.x * CONVOLVE_THREADS + i
    window = cuda.shared.array(_WINDOWS, np.float32)
    n_blocks = (params.n_channels + CONVOLVE_THREADS - 1) // CONVOLVE_THREADS
    if cuda.blockIdx.y < inputs[layout.N_RUNS] and cuda.blockIdx.x >= n_blocks and c < n_blocks * CONVOLVE_THREADS + steps.n:
        _step_run(inputs, run, c - n_blocks * CONVOLVE_THREADS, params.y, params.y_stride, steps)
    if cuda.blockIdx.y >= inputs[layout.N_RUNS] or c // WARP * WARP >= params.n_channels:
        return
    _convolve_run(inputs, run, window, i, c, params)
    if to.as_floats or to.as_bytes:
        _put_run(inputs, run, i, c, params, to)


@lane
def _before(inputs, t):
    """The token of the same slot before token t of a pass, or -1."""
    before = t - 1
    while before >= 0 and inputs[SLOTS + before] != inputs[SLOTS + t]:
        before -= 1
    return before


@lane
def _convolved(inputs, x, weights, base, t, i, x_stride, at, size, group, n_taps):
    """Value i of token t, whose weights begin at a place; 0 beyond `size`."""
    total = np.float32(0)
    if i >= size:
        return total
    n_groups, of, tap = gpu.quotient(size, group), t, 0
    at += gpu.quotient(i, group)
    while tap < n_taps and of >= 0:
        total = gpu.fma(gpu.add(base[tap * size + i], weights[at + tap * n_groups]), x[of * x_stride + i], total)
        of, tap = _before(inputs, of), tap + 1
    return total


@kernel("jfffiiiii", TargetArgs)
def convolve_block(inputs, x, weights, base, x_stride, weights_stride, size, group, n_taps, to):
    """Out[t] = the sum over taps j of (base[j] + weights[t, j]) * x of the j-th token before t; a warp takes 32 values.

    Values beyond `size` are 0.

    Args:
        x: (n, x_stride); before the first token that the pass has of a slot there are none.
        weights: (n, weights_stride), each beginning with (n_taps, size / group), each of `group` neighbouring values.
        base: (n_taps, size).
    """
    t = cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i // WARP * WARP >= size:
        return
    value = _convolved(inputs, x, weights, base, t, i, x_stride, t * weights_stride, size, group, n_taps)
    put(value, i % WARP, to, t * to.width + i, unit_of(inputs, t, i // WARP, to.width // WARP))
