"""The steps before and after a linear recurrence: keys and decays of tokens, and the gates of its output."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import sigmoid, silu, softplus
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, cuda, kernel, lane, record, together, warp_sum
from augury.backends.numba_cuda.kernels.inputs import CELLS, N_TOKENS, SLOTS, STATES
from augury.backends.numba_cuda.kernels.norm import inverse_root, squares
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, quantise, unit_of

_WARPS = THREADS // WARP
TimesArgs = record("TimesArgs", f="times betas dt a", i="times_stride betas_stride size n_betas has_dt has_betas", r="floor")
"""What decays and betas are made of: each t, (n, times_stride), and b, (n, betas_stride); `dt` and `a` are (size,)."""
DecayArgs = record("DecayArgs", f="rows", i="stride decay_at beta_at")
"""Rows (n, stride), in which decays and betas have their places."""
LengthArgs = record("LengthArgs", i="n n_scaled size", r="eps scale")
"""Heads, `n` of `size` values that rows begin with, which are divided by their lengths; of these the first are scaled, too."""
GroupsArgs = record(
    "GroupsArgs",
    f="y values skip gates weight",
    i="size values_stride gates_stride group step has_skip has_norm is_gated_first is_sigmoid per_block",
    r="eps",
)
"""Groups of y (n, size) that are normed and gated.

`values` are (n, values_stride), `gates` (n, gates_stride), `skip` (size,). `group` values are normed together; of the norm's
weights those of the next group come after `step`. A block has `per_block` groups, which are whole units unless it has all.
"""
FedArgs = record("FedArgs", f="x aside", i="stride key_at n_keys step_at n_aside n_kept")
"""Tokens' inputs: `x` (n, stride), from `key_at` on keys, from `step_at` on steps; `aside` is (slots, n_aside, n_kept)."""


@lane
def _scale(rows, start, size, i, factor):
    for j in range(start + i, start + size, WARP):
        rows[j] = gpu.mul(rows[j], np.float32(factor))


@together
def _scale_head(rows, stride, t, heads):
    """Divide a head of a token by its length, and multiply it by a scale: a warp, whose block has the head's number."""
    i, head = cuda.threadIdx.x, cuda.blockIdx.x
    start = t * stride + head * heads.size
    total = gpu.add(warp_sum(squares(rows, start, heads.size, i, WARP)), np.float32(heads.eps))
    scale = heads.scale if head < heads.n_scaled else np.float32(1)
    _scale(rows, start, heads.size, i, gpu.div(np.float32(scale), gpu.root(total)))


@kernel("j", TimesArgs, DecayArgs, LengthArgs)
def decay(inputs, of, to, heads):
    """Decays exp(a * s), s = softplus(t + dt), or exp(floor * sigmoid(a * t)), and betas sigmoid(b), or s; a thread for each.

    Before that, heads of length 1: a warp for each.
    """
    t, i = cuda.blockIdx.y, (cuda.blockIdx.x - heads.n) * WARP + cuda.threadIdx.x
    if t >= inputs[N_TOKENS] or i >= of.size:
        return
    if cuda.blockIdx.x < heads.n:
        _scale_head(to.rows, to.stride, t, heads)
        return
    step = of.times[t * of.times_stride + i]
    if of.has_dt:
        step = gpu.add(step, of.dt[i])
    if of.floor == 0:
        step = softplus(step)
    exponent = gpu.mul(step, of.a[i])
    if of.floor != 0:
        exponent = gpu.mul(np.float32(of.floor), sigmoid(exponent))
    to.rows[t * to.stride + to.decay_at + i] = gpu.exp(exponent)
    if i < of.n_betas:
        to.rows[t * to.stride + to.beta_at + i] = sigmoid(of.betas[t * of.betas_stride + i]) if of.has_betas else step


@kernel("jffii")
def light(inputs, rows, ends, stride, size):
    """Rows (n, stride) through SiLU; those values that come after `size` are the same for all; a thread for each."""
    t, i = cuda.blockIdx.y, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if t < inputs[N_TOKENS] and i < stride:
        rows[t * stride + i] = silu(rows[t * stride + i]) if i < size else ends[i - size]


@lane
def _gated(value, gate, is_sigmoid):
    return gpu.mul(value, sigmoid(gate) if is_sigmoid else silu(gate))


@lane
def _skip(params, t, first, i):
    """Y += skip * values of a group, gated if that comes first; a lane's share of the squares of that."""
    total, y_at, values_at, gates_at = np.float32(0), t * params.size, t * params.values_stride, t * params.gates_stride
    for j in range(first + i, first + params.group, WARP):
        value = params.y[y_at + j]
        if params.has_skip:
            value = gpu.fma(params.skip[j], params.values[values_at + j], value)
        if params.is_gated_first:
            value = _gated(value, params.gates[gates_at + j], params.is_sigmoid)
        params.y[y_at + j] = value
        total = gpu.fma(value, value, total)
    return total


@lane
def _norm_group(params, out, to, t, first, step, i, inverse):
    """Write a group, normed, and gated if that comes last."""
    y_at, gates_at = t * params.size + first, t * params.gates_stride + first
    for j in range(i, params.group, WARP):
        value = params.y[y_at + j]
        if params.has_norm:
            value = gpu.mul(gpu.mul(value, np.float32(inverse)), params.weight[step + j])
        if not params.is_gated_first:
            value = _gated(value, params.gates[gates_at + j], params.is_sigmoid)
        out[to + first + j] = value


@lane
def _keep_aside(inputs, fed, t, first, step):
    """Keep keys and steps of a drafted token aside, after the recurrence has read the old ones."""
    place = inputs[SLOTS + t] * fed.n_aside + gpu.remainder(inputs[CELLS + t], fed.n_aside)
    for i in range(first, fed.n_kept, step):
        at = fed.key_at + i if i < fed.n_keys else fed.step_at + i - fed.n_keys
        fed.aside[place * fed.n_kept + i] = fed.x[t * fed.stride + at]


@kernel("j", GroupsArgs, TargetArgs, FedArgs, most_registers=112)  # two blocks
def gate_groups(inputs, params, to, fed):
    """Y += skip * values; y = norm(y) times the activated gates, or the other way round; a block for some groups of a token.

    Besides, drafted tokens' inputs of the recurrence are kept aside, because this comes after it.

    Args:
        to: Always as floats, of which units are made.
    """
    t, thread, block = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockIdx.y
    if t >= inputs[N_TOKENS]:
        return
    size, group, per_block = params.size, params.group, params.per_block
    n_groups = size // group
    n_blocks = (n_groups + per_block - 1) // per_block
    if inputs[STATES + t] >= 0:
        own, step_of_all = block * THREADS + thread, n_blocks * THREADS
        _keep_aside(inputs, fed, t, own, step_of_all)
    i, out = thread % WARP, t * to.width
    end = min(n_groups, (block + 1) * per_block)
    for number in range(block * per_block + thread // WARP, end, _WARPS):
        first = number * group
        total = warp_sum(_skip(params, t, first, i))
        _norm_group(params, to.floats, out, t, first, number * params.step, i, inverse_root(total, group, params.eps))
    is_last = block == n_blocks - 1
    if is_last and thread < to.width - size:
        to.floats[out + size + thread] = np.float32(0)
    cuda.syncthreads()
    if to.as_bytes:
        last = to.width // WARP if is_last else end * group // WARP
        for unit in range(block * per_block * group // WARP + thread // WARP, last, _WARPS):
            quantise(to.floats[out + WARP * unit + i], i, to, unit_of(inputs, t, unit, to.width // WARP))
