"""The computation of recurrent blocks: one function each, over all tokens of a pass. `states` are the block's, in its order."""

import math

import numpy as np

from augury import blocks
from augury.backends.reference.formula import sigmoid
from augury.backends.reference.lowered import convolved, of_length_one, recurred, silu, softplus
from augury.backends.reference.weights import each_normed


def short_convolution(block, weights, states, batch, tree, x):
    """A gated short convolution's addition to x (n, E): o(c * conv(b * v))."""
    b, c, v = np.split(weights.product(block.inputs, each_normed(x, block.norm, weights)), 3, axis=1)
    return weights.product(block.o, c * convolved(block.conv, weights, states[0], batch, tree, b * v))


def gated_delta_net(block, weights, states, batch, tree, x):
    """A gated delta net's addition to x (n, E): o(norm(y) * silu(gate))."""
    normed, heads = each_normed(x, block.norm, weights), block.recurrence
    n, n_keys = len(x), heads.n_key_heads * heads.key_dim
    inputs = weights.product(block.inputs, normed)
    rows = silu(convolved(block.conv, weights, states[0], batch, tree, inputs))
    queries = of_length_one(rows[:, :n_keys].reshape(n, -1, heads.key_dim), block.eps) / math.sqrt(heads.key_dim)
    keys = of_length_one(rows[:, n_keys : 2 * n_keys].reshape(n, -1, heads.key_dim), block.eps)
    steps = softplus(weights.product(block.alpha, normed) + weights.vector(block.dt.weight))
    decays, betas = np.exp(weights.vector(block.a.weight) * steps), sigmoid(weights.product(block.beta, normed))
    fed = np.hstack([keys.reshape(n, -1), rows[:, 2 * n_keys :], decays, betas])
    y = each_normed(recurred(heads, states[1], batch, tree, queries, fed), block.out_norm, weights)
    gates = weights.product(block.gate, normed)
    return weights.product(block.o, y.reshape(n, -1) * (sigmoid(gates) if block.has_sigmoid else silu(gates)))


def kimi_delta_attention(block, weights, states, batch, tree, x):
    """Kimi delta attention's addition to x (n, E): o(norm(y) * sigmoid(gate))."""
    normed, heads, n = each_normed(x, block.norm, weights), block.recurrence, len(x)
    convolutions = zip((block.q, block.k, block.v), (block.q_conv, block.k_conv, block.v_conv), states[:3], strict=True)
    queries, keys, values = (
        silu(convolved(conv, weights, state, batch, tree, weights.product(linear, normed)))
        for linear, conv, state in convolutions
    )
    queries, keys = (of_length_one(rows.reshape(n, -1, heads.key_dim), block.eps) for rows in (queries, keys))
    times, gates = (
        weights.product(linear, normed if down is None else weights.product(down, normed))
        for linear, down in ((block.decay, block.decay_down), (block.gate, block.gate_down))
    )
    a = np.repeat(weights.vector(block.a.weight).reshape(-1), heads.key_dim)
    decays = np.exp(a * softplus(times) if block.floor is None else block.floor * sigmoid(a * times))
    fed = np.hstack([keys.reshape(n, -1), values, decays, sigmoid(weights.product(block.beta, normed))])
    y = recurred(heads, states[3], batch, tree, queries / math.sqrt(heads.key_dim), fed)
    y = each_normed(y, block.out_norm, weights).reshape(n, -1)
    return weights.product(block.o, y * sigmoid(gates))


def mamba2(block, weights, states, batch, tree, x):
    """A Mamba-2 block's addition to x (n, E): o(out_norm((y + d * value) * silu(gate)))."""
    heads, n = block.recurrence, len(x)
    n_values, n_keys = heads.n_heads * heads.value_dim, heads.n_key_heads * heads.key_dim
    inputs = weights.product(block.inputs, each_normed(x, block.norm, weights))
    gates, rows, times = np.split(inputs, [n_values, inputs.shape[1] - heads.n_heads], axis=1)
    values, keys, queries = np.split(
        silu(convolved(block.conv, weights, states[0], batch, tree, rows)), [n_values, n_values + n_keys], axis=1
    )
    steps = softplus(times + weights.vector(block.dt.weight))
    decays = np.exp(weights.vector(block.a.weight).reshape(-1) * steps)
    fed = np.hstack([keys, values, decays, steps])
    y = recurred(heads, states[1], batch, tree, queries.reshape(n, -1, heads.key_dim), fed)
    y += weights.vector(block.d.weight).reshape(-1, 1) * values.reshape(y.shape)
    return weights.product(block.o, each_normed(y.reshape(n, -1) * silu(gates), block.out_norm, weights))


def mamba(block, weights, states, batch, tree, x):
    """A Mamba block's addition to x (n, E): o((y + d * v) * silu(gate))."""
    heads, n, normed = block.recurrence, len(x), each_normed(x, block.norm, weights)
    values = weights.product(block.value, normed)
    values = silu(convolved(block.conv, weights, states[0], batch, tree, values))
    times, keys, queries = (
        each_normed(weights.product(linear, values), norm, weights)
        for linear, norm in ((block.t, block.t_norm), (block.key, block.key_norm), (block.query, block.query_norm))
    )
    steps = softplus(weights.product(block.dt, times))
    decays = [] if heads.is_by_channel else [np.exp(weights.vector(block.a.weight).reshape(-1) * steps)]
    fed = np.hstack([keys, values, *decays, steps])
    y = recurred(heads, states[1], batch, tree, queries[:, None], fed)
    skip = np.repeat(weights.vector(block.d.weight).reshape(-1), values.shape[1] // block.d.size)
    gates = silu(weights.product(block.gate, normed))
    return each_normed(weights.product(block.o, (y.reshape(n, -1) + skip * values) * gates), block.post_norm, weights)


def lightning_attention(block, weights, states, batch, tree, x):
    """Lightning attention's addition to x (n, E): o(out_norm(y) * sigmoid(gate))."""
    heads, n, normed = block.recurrence, len(x), each_normed(x, block.norm, weights)
    queries, keys, values = (silu(weights.product(linear, normed)) for linear in (block.q, block.k, block.v))
    fed = np.hstack([keys, values, np.tile(block.decays, (n, 1)), np.ones((n, heads.n_heads))])
    y = recurred(heads, states[0], batch, tree, queries.reshape(n, -1, heads.key_dim), fed).reshape(n, -1)
    return weights.product(block.o, each_normed(y, block.out_norm, weights) * sigmoid(weights.product(block.gate, normed)))


RECURRENT_BLOCKS = {
    blocks.ShortConvolution: short_convolution,
    blocks.GatedDeltaNet: gated_delta_net,
    blocks.KimiDeltaAttention: kimi_delta_attention,
    blocks.Mamba: mamba,
    blocks.Mamba2: mamba2,
    blocks.LightningAttention: lightning_attention,
}
"""The addition to x of recurrent blocks, by type."""
