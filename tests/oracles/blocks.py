"""The computation of every block of augury: one function each, over all tokens of a pass, that knows no operations."""

import math

import numpy as np
from oracles.compressed import compressed_attention
from oracles.recurrent_blocks import RECURRENT_BLOCKS

from augury import blocks
from augury.backends.reference.formula import activate, attend, gated, rotate, sigmoid, softcap, softmax
from augury.backends.reference.lowered import LoweredBlock
from augury.backends.reference.operations import lowered_block, routes, sum_of_experts
from augury.backends.reference.weights import each_normed
from augury.plugins.compressed_attention.deepseek4 import CompressedAttention


def embed(block, weights, batch):
    """Look up x = norm(scale * W[token] + positions[p]): n tokens → (n, E); zeros where there is nothing to look up."""
    if block.weight is None:
        return np.zeros((len(batch.tokens), block.n_embd))
    x = block.scale * weights.rows(block.weight, batch.tokens)
    if block.positions is not None:
        x = x + weights.rows(block.positions.weight, batch.positions)
    return each_normed(x, block.norm, weights)


def mtp_streams(block, weights, embedded, hidden):
    """The initial residual streams of a layer that predicts further tokens.

    Args:
        block: The layer's.
        weights: Of the plan.
        embedded: The tokens' embeddings, (n, E).
        hidden: The output of the layers before for the tokens before, (n, S * E), or (n, E) for all streams.

    Returns:
        (n, S, E), or (n, 1, E).
    """
    rows = each_normed(hidden.reshape(len(hidden), -1, block.hidden_norm.size), block.hidden_norm, weights)
    tokens = np.broadcast_to(each_normed(embedded, block.token_norm, weights)[:, None], rows.shape)
    joined = np.concatenate([tokens, rows], axis=2)
    return weights.product(block.projection, joined.reshape(-1, joined.shape[2])).reshape(rows.shape)


def layer_inputs(block, weights, batch, embedded):
    """An embedding's inputs for layers, beside x (n, E): (n, layers, P)."""
    inputs = block.layer_inputs
    if inputs is None:
        return np.empty((len(embedded), 0))
    made = weights.product(inputs.projection, embedded).reshape(len(embedded), -1, inputs.norm.size)
    rows = weights.rows(inputs.table.weight, batch.tokens).reshape(made.shape)
    return inputs.scale * (each_normed(made, inputs.norm, weights) + inputs.table_scale * rows)


def layer_input(block, weights, x, inputs):
    """The addition to x (n, E) of x and the values for its layer, of (n, layers, P)."""
    gates = activate(weights.product(block.gate, x), block.activation)
    return each_normed(weights.product(block.o, gates * inputs[:, block.index]), block.post_norm, weights)


def attention(block, weights, cache, batch, tree, x, embedded=None):
    """The addition of attention to x (n, E), with the embedding's rows (n, E): post_norm(o(softmax(scale * q k^T) v)).

    Keys and values of all tokens are stored first; then each token reads its slot up to its own position, in a tree along its
    path.
    """
    normed, positions = each_normed(x, block.norm, weights), batch.positions
    ends = positions if block.is_causal else np.array([positions[batch.slots == slot].max() for slot in batch.slots])
    if block.embedded_norm is not None and embedded is not None:
        normed = np.hstack([each_normed(embedded, block.embedded_norm, weights), normed])
    queries = _heads(block, block.q, block.q_norm, weights, normed, positions)
    cells = positions if tree is None else tree.cells
    if block.source is None:
        keys, values = _keys_and_values(block, weights, normed, positions)
        for token, (slot, cell) in enumerate(zip(batch.slots.tolist(), cells, strict=True)):
            _store(cache, slot, cell, keys[token], values[token])
    sinks = None if block.sinks is None else weights.vector(block.sinks.weight)
    mixed = np.empty((len(x), block.o.n_in))
    for token, (slot, position, end) in enumerate(zip(batch.slots.tolist(), positions.tolist(), ends.tolist(), strict=True)):
        first = 0 if block.window is None else max(0, position + 1 - block.window)
        first = first if block.chunk is None else max(first, position // block.chunk * block.chunk)
        seen = np.arange(first, end + 1) if tree is None else tree.seen(token)[first:]
        query = queries[token] if block.temperature is None else queries[token] * sharpness(block.temperature, position)
        keys_seen, values_seen = (cache.seen(part, slot, seen) for part in range(2))
        mixed[token] = attend(block, query, keys_seen, values_seen, sinks).reshape(-1)
    if block.gate is not None:
        gates = weights.product(block.gate, normed)
        gates = sigmoid(gates) if block.gate_kind is blocks.GateKind.SIGMOID else np.logaddexp(gates, 0.0)
        mixed *= np.repeat(gates, block.o.n_in // block.gate.n_out, axis=1)
    return each_normed(weights.product(block.o, each_normed(mixed, block.out_norm, weights)), block.post_norm, weights)


def latent_attention(block, weights, cache, batch, tree, x):
    """Latent attention's addition to x (n, E), see `augury.blocks.LatentAttention`."""
    normed, n_latent, n_plain = each_normed(x, block.norm, weights), block.latent_dim, block.keys.n_in
    asking = normed if block.q_down is None else each_normed(weights.product(block.q_down, normed), block.q_norm, weights)
    queries = weights.product(block.q, asking).reshape(len(x), block.n_heads, -1)
    kept = weights.product(block.kv, normed)
    latents = each_normed(kept[:, :n_latent], block.kv_norm, weights)
    to_turn = each_normed(kept[:, n_latent:], block.turned_norm, weights)
    cells = batch.positions if tree is None else tree.cells
    places = list(zip(batch.slots.tolist(), batch.positions.tolist(), cells.tolist(), strict=True))
    for token, (slot, position, cell) in enumerate(places):
        turned = _turned(to_turn[token : token + 1], position, block.rope)[0]
        cache.store(0, slot, cell, np.concatenate([latents[token], turned])[None])
    given = np.empty((len(x), block.o.n_in))
    sinks = [None] * block.n_heads if block.sinks is None else weights.vector(block.sinks.weight).tolist()
    for token, (slot, position, _) in enumerate(places):
        first = 0 if block.window is None else max(0, position + 1 - block.window)
        (seen,) = cache.seen(0, slot, np.arange(first, position + 1) if tree is None else tree.seen(token)[first:])
        turned = _turned(queries[token, :, n_plain:], position, block.rope)
        factor = block.scale * (1.0 if block.temperature is None else sharpness(block.temperature, position))
        heads = []
        for head, query in enumerate(queries[token, :, :n_plain]):
            asked = np.concatenate([weights.product_of(block.keys, head, query), turned[head]])
            mixed = softmax(factor * (seen @ asked), sinks[head]) @ np.ascontiguousarray(seen[:, :n_latent])
            heads.append(weights.product_of(block.values, head, mixed))
        given[token] = np.concatenate(heads)
    if block.gate is not None:
        given *= np.repeat(sigmoid(weights.product(block.gate, normed)), block.o.n_in // block.gate.n_out, axis=1)
    return weights.product(block.o, given)


def _turned(heads, position, rope):
    return heads if rope is None else rotate(heads, position, rope)


def inject(block, weights, cache, batch, x):
    """Keep the keys and values that an attention makes of x (n, E)."""
    keys, values = _keys_and_values(block.attention, weights, each_normed(x, block.norm, weights), batch.positions)
    for token, (slot, position) in enumerate(zip(batch.slots.tolist(), batch.positions.tolist(), strict=True)):
        _store(cache, slot, position, keys[token], values[token])


def _keys_and_values(block, weights, x, positions):
    """Keys (n, G, D) and values (n, G, D_v) of x (n, E), which is normed."""
    keys = _heads(block, block.k, block.k_norm, weights, x, positions)
    values = _clamped(weights.product(block.v, x), block.clamp).reshape(-1, block.n_kv_heads, block.value_dim)
    return keys, each_normed(values, block.v_norm, weights)


def projection(block, weights, x):
    """A projection's addition to x (n, E): o(norm(x))."""
    return weights.product(block.o, each_normed(x, block.norm, weights))


def feed_forward(block, weights, x):
    """A feed-forward's addition to x (n, E): post_norm(down(hidden_norm(activation(gate(n)) * up(n)))) with n = norm(x)."""
    normed = each_normed(x, block.norm, weights)
    ups = weights.product(block.up, normed)
    if block.gate is None:
        hidden = activate(ups, block.activation, block.constants)
    else:
        hidden = _limited(block, weights.product(block.gate, normed), ups)
    if block.divisors is not None:
        hidden = hidden / weights.vector(block.divisors.weight)
    return each_normed(weights.product(block.down, each_normed(hidden, block.hidden_norm, weights)), block.post_norm, weights)


def mixture(block, weights, batch, x, before):
    """A mixture of experts' addition to x (n, E), which was `before` at the beginning of its layer."""
    normed = each_normed(x, block.norm, weights)
    judged = before if block.router.is_early else normed
    judged = judged if block.router.norm is None else each_normed(x, block.router.norm, weights)
    logits = weights.product(block.router.logits, judged)
    seen = normed if block.latent_down is None else weights.product(block.latent_down, normed)
    added = sum_of_experts(block, weights, seen, *routes(block.router, weights, batch, logits))
    added = each_normed(added, block.sum_norm, weights)
    if block.latent_up is not None:
        added = weights.product(block.latent_up, added)
    if block.shared is not None:
        shared = feed_forward(block.shared, weights, normed if block.shared.norm is None else x)
        if block.shared_gate is not None:
            gate = weights.vector(block.shared_gate.weight)
            shared *= np.array([[sigmoid(gate @ seen)] for seen in normed])
        added += shared
    if block.adjugate is not None:
        added += sum_of_experts(block.adjugate, weights, added, *routes(block.adjugate.router, weights, batch, logits))
    return each_normed(added, block.post_norm, weights)


def output(block, weights, normed):
    """Logits (r, V) float32 = W norm(x), of the normed rows (r, E) that are asked for; (r, 0) without an output."""
    if block.weight is None:
        return np.zeros((len(normed), 0), np.float32)
    return softcap(weights.product(block.weight, normed), block.softcap).astype(np.float32)


def _heads(block, linear, norm, weights, x, positions):
    """Queries or keys (n, heads, D) of x (n, E), normed and turned."""
    heads = _clamped(weights.product(linear, x), block.clamp).reshape(len(x), -1, block.head_dim)
    before, after = (None, norm) if block.is_rope_first else (norm, None)
    heads = each_normed(heads, before, weights)
    if block.rope is not None:
        heads = rotate(heads, positions, block.rope)
    return each_normed(heads, after, weights)


def _clamped(x, limit):
    return x if limit is None else x.clip(-limit, limit)


def _limited(block, gate, up):
    """The hidden values (..., F), with their block's limits."""
    limit = math.inf if block.limit is None else block.limit
    if not block.limits_activated:
        gate, up, limit = np.minimum(gate, limit), up.clip(-limit, limit), math.inf
    return gated(gate, up, block.activation, limit, block.constants)


def sharpness(temperature, position):
    """The factor of a query; see `Temperature`."""
    return 1.0 + temperature.scale * math.log1p((position + temperature.offset) // temperature.period)


def _store(cache, slot, cell, *rows):
    for part, row in enumerate(rows):
        cache.store(part, slot, cell, row)


class FunctionBlock(LoweredBlock):
    """A block that remembers what it was before it was lowered."""

    def __init__(self, block, *loaded):
        super().__init__(block, *loaded)
        self.whole = block


def compute(run):
    """What a block adds to x (n, E), or `Run.given` of one at an end, by its function if it has one."""
    block, x = run.block.whole, run.get(run.block.x)
    function, chooses = FUNCTIONS.get(type(block)), getattr(block, "indexer", None) or getattr(block, "reuses_choice", 0)
    if function is None or (chooses and type(block) is not CompressedAttention):  # the others know no choice of positions
        return lowered_block(run)
    made = function(run, block, x)
    if isinstance(made, np.ndarray):
        return made
    run.given.extend(made)
    return run.added


def _mixed(function):
    """A mixer's function of a run; `embedded` goes to the one that reads it."""

    def mixed(run, block, x):
        source = getattr(block, "source", None)
        cache = run.block.cache if source is None else run.sources[source]
        embedded = [run.get(run.block.embedded)] if block.reads_embedding else []
        return function(block, run.weights, cache, run.batch, run.tree, x, *embedded)

    return mixed


def _embed(run, block, _):
    x = embed(block, run.weights, run.batch)
    return [layer_inputs(block, run.weights, run.batch, x).reshape(len(x), -1), x]


def _begin_mtp(run, block, x):
    return [*mtp_streams(block, run.weights, x, run.batch.hidden.astype(np.float64)).swapaxes(0, 1)]


def _inject(run, block, x):
    inject(block, run.weights, run.sources[block.layer], run.batch, x)
    return []


def _output(run, block, x):
    return [output(block, run.weights, each_normed(x, block.norm, run.weights)[run.batch.rows])]


def _recurrent(function):
    return lambda run, block, x: function(block, run.weights, run.block.states, run.batch, run.tree, x)


FUNCTIONS = {
    blocks.Embedding: _embed,
    blocks.MtpInput: _begin_mtp,
    blocks.Injection: _inject,
    blocks.Output: _output,
    blocks.Attention: _mixed(attention),
    blocks.LatentAttention: _mixed(latent_attention),
    CompressedAttention: _mixed(compressed_attention),
    blocks.FeedForward: lambda run, block, x: feed_forward(block, run.weights, x),
    blocks.Projection: lambda run, block, x: projection(block, run.weights, x),
    blocks.LayerInput: lambda run, block, x: layer_input(block, run.weights, x, run.inputs),
    blocks.MixtureOfExperts: lambda run, block, x: mixture(block, run.weights, run.batch, x, run.get(run.block.before)),
    **{kind: _recurrent(function) for kind, function in RECURRENT_BLOCKS.items()},
}
"""By type, of a run, a block and x: the addition to x, or the list of what a block at an end gives."""
