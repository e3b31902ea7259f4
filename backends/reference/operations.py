"""The function of each operation, over all tokens of a pass: it computes each row as if it were alone; see `formula`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from augury import lowering as op
from augury.backends.reference.attention import ATTENTION
from augury.backends.reference.formula import activate, choose_experts, gated, products, sigmoid, softcap
from augury.backends.reference.lowered import Run, convolved, of_length_one, recurred, silu, softplus
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch
from augury.blocks import Activation, Block, Experts, GateKind, Linear, Norm, Router, Vector
from augury.errors import UnsupportedError
from augury.lowering import CachedRows, Operation, Value
from augury.lowering.rewrites import AddLowRank


def check_operations(block: Block, n_embd: int) -> None:
    """Refuse a block with operations that are not computed here.

    Raises:
        UnsupportedError: It has one, or does not say how it is computed.
        PluginError: They do not fit each other.
    """
    for each in block.lowered(n_embd).operations:
        if type(each) not in _OPERATIONS and "reference" not in each.kernels:
            raise UnsupportedError(
                f"block {type(block).__name__} has the operation {type(each).__name__}, which backend reference does not "
                "compute; use another backend"
            )


def lowered_block(run: Run) -> np.ndarray:
    """The sum that a block's operations add to x, (n, E)."""
    for each in run.block.operations:
        _OPERATIONS.get(type(each), _by_row)(run, each)
    return run.added


def _look_up(run: Run, each: op.LookUp) -> None:
    ids = run.batch.positions if each.is_by_position else run.batch.tokens
    run.arrays[each.out] = each.scale * run.weights.rows(each.table.weight, ids)


def _normalize(run: Run, each: op.Normalize) -> None:
    run.arrays[each.out] = each_normed(run.get(each.x), each.norm, run.weights)


def _multiply(run: Run, each: op.Multiply) -> None:
    for linear, out in zip(each.linears, each.out, strict=True):
        run.arrays[out] = run.weights.product(linear, run.get(each.x))


def _add_low_rank(run: Run, each: AddLowRank) -> None:
    if run.batch.scales is None:
        return
    low_rank, y = each.low_rank, run.get(each.y)
    scales = run.batch.scales[run.batch.slots][:, low_rank.adapters].astype(np.float64)
    low = scales * products(low_rank.down.astype(np.float64), run.get(each.x))
    for row, up in enumerate(low_rank.up):
        counts = scales[:, row] != 0
        y[counts] += low[counts, row, None] * up


def _add(run: Run, each: op.Add) -> None:
    np.add(run.added, each_normed(run.get(each.y), each.norm, run.weights), out=run.added)


def _add_stream(run: Run, each: op.AddStream) -> None:
    z = run.get(run.block.embedded)
    np.add(run.added, each.factor * (z if each.first is None else run.weights.vector(each.first.weight)), out=run.added)
    if each.swaps:
        z[:] = run.get(run.block.x)


def _activate(run: Run, each: op.Activate) -> None:
    y = _hidden(each, run.get(each.x), None if each.up is None else run.get(each.up))
    run.arrays[each.out] = y if each.divisors is None else y / run.weights.vector(each.divisors.weight)


def _hidden(part: op.Activate | Experts, x: np.ndarray, up: np.ndarray | None = None) -> np.ndarray:
    """activation(x) * up, or activation(x), (..., F) with their limits."""
    limit, most = math.inf if part.limit is None else part.limit, math.inf
    if part.limits_activated:
        most = limit
    else:
        x = np.minimum(x, limit)
    up = None if up is None else up.clip(-limit, limit)
    if isinstance(part.activation, GateKind):
        return _activated(x, part.activation) * (1.0 if up is None else up)
    if up is None:
        return activate(x, part.activation, part.constants)
    return gated(x, up, part.activation, most, part.constants)


def _route(run: Run, each: op.Route) -> None:
    run.routes[each.out] = routes(each.router, run.weights, run.batch, run.get(each.logits))


def _feed_experts(run: Run, each: op.FeedExperts) -> None:
    run.arrays[each.out] = sum_of_experts(each.experts, run.weights, run.get(each.x), *run.routes[each.routes])


def routes(router: Router, weights: Weights, batch: Batch, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The experts and their weights, (n, n_used) each, chosen by logits (n, experts) or by the ids of tokens."""
    bias = 0.0 if router.bias is None else weights.vector(router.bias.weight)
    table = router.token_experts
    from_table = [None] * len(logits) if table is None else weights.rows(table.weight, batch.tokens).astype(np.int64)
    made = [choose_experts(router, row, bias, given) for row, given in zip(logits, from_table, strict=True)]
    return np.array([each for each, _ in made]), np.array([share for _, share in made])


def sum_of_experts(
    experts: Experts, weights: Weights, normed: np.ndarray, chosen: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """The weighted sum (n, E) of the outputs of experts for normed rows, by experts and their weights (n, n_used)."""
    shares = shares[:, :, None]
    added = np.empty((*chosen.shape, experts.down.n_out))
    for index in set(chosen.ravel().tolist()):
        tokens, places = np.nonzero(chosen == index)
        taken = shares[tokens, places] * normed[tokens] if experts.weighs_input else normed[tokens]
        gate_and_up = [weights.product_of(part, index, taken) for part in (experts.gate, experts.up) if part is not None]
        added[tokens, places] = weights.product_of(experts.down, index, _hidden(experts, *gate_and_up))
    total: np.ndarray = (added if experts.weighs_input else shares * added).sum(axis=1)
    return total


def _add_weighed(run: Run, each: op.AddWeighed) -> None:
    other = run.get(each.other)
    if each.gate is not None and each.x is not None:
        gate = run.weights.vector(each.gate.weight)
        other = other * np.array([[sigmoid(gate @ x)] for x in run.get(each.x)])
    run.arrays[each.out] = run.get(each.y) + other


def _read_input(run: Run, each: op.ReadInput) -> None:
    run.arrays[each.out] = run.inputs[:, each.index]


def _read_hidden(run: Run, each: op.ReadHidden) -> None:
    assert run.batch.hidden is not None
    run.arrays[each.out] = run.batch.hidden.astype(np.float64)


def _join(run: Run, each: op.Join) -> None:
    run.arrays[each.out] = np.hstack([run.get(value) for value in each.x])


def _begin_streams(run: Run, each: op.InitStreams) -> None:
    run.given.extend(run.get(value) for value in each.y)


def _give_inputs(run: Run, each: op.SetLayerInputs) -> None:
    run.given.append(each.scale * (run.get(each.x) + each.factor * run.get(each.other)))


def _give_logits(run: Run, each: op.ComputeLogits) -> None:
    rows = each_normed(run.get(each.x)[run.batch.rows], each.norm, run.weights)
    run.given.append(softcap(run.weights.product(each.linear, rows), each.softcap))


def _constant(run: Run, each: op.Constant) -> None:
    run.arrays[each.out] = np.tile(each.numbers, (len(run.added), 1))


def _gate(run: Run, each: op.Gate) -> None:
    y, gates = run.get(each.y), _activated(run.get(each.gates), each.activation)
    gates = np.repeat(gates, y.shape[1] // gates.shape[1], axis=1)
    if each.skip is not None:
        values = y if each.values is None else run.get(each.values)
        skip = run.weights.vector(each.skip.weight).reshape(-1)
        y = y + np.repeat(skip, y.shape[1] // len(skip)) * values
    if each.is_gated_first:
        run.arrays[each.out] = each_normed(y * gates, each.norm, run.weights)
    else:
        run.arrays[each.out] = each_normed(y, each.norm, run.weights) * gates


def _activated(x: np.ndarray, activation: Activation | GateKind) -> np.ndarray:
    if isinstance(activation, Activation):
        return activate(x, activation)
    return sigmoid(x) if activation is GateKind.SIGMOID else softplus(x)


def _convolve_block(run: Run, each: op.ConvolveBlock) -> None:
    x, shape = run.get(each.x), (2, each.n_taps, -1)
    base = run.weights.vector(each.base.weight).reshape(shape)[each.side]
    own = run.get(each.weights).reshape(len(x), *shape)[:, each.side]
    factors = base + np.repeat(own, x.shape[1] // own.shape[2], axis=2)
    y = factors[:, 0] * x
    for slot in np.unique(run.batch.slots):
        (places,) = np.nonzero(run.batch.slots == slot)
        for tap in range(1, each.n_taps):
            y[places[tap:]] += factors[places[tap:], tap] * x[places[:-tap]]
    run.arrays[each.out] = y


def _convolve(run: Run, each: op.Convolve) -> None:
    made = []
    for value, conv, state in zip(each.x, each.convs, each.states, strict=True):
        x = run.get(value) if each.before is None else run.get(each.before) * run.get(value)
        made.append(convolved(conv, run.weights, run.block.states[state], run.batch, run.tree, x))
    y = silu(np.hstack(made)) if each.has_silu else np.hstack(made)
    run.arrays[each.out] = y if each.after is None else run.get(each.after) * y


def _scale_to_length(run: Run, each: op.ScaleToLength) -> None:
    x = run.get(each.x)
    heads = of_length_one(x.reshape(len(x), -1, each.size), each.eps)
    heads[:, : each.n_scaled] *= each.scale
    x[:] = heads.reshape(x.shape)


def _decay(run: Run, each: op.Decay) -> None:
    t = run.get(each.t)
    steps = softplus(t if each.dt is None else t + run.weights.vector(each.dt.weight).reshape(-1))
    *decays, betas = each.out
    if each.a is not None:
        run.arrays[decays[0]] = np.exp(run.weights.vector(each.a.weight).reshape(-1) * steps)
    run.arrays[betas] = steps if each.b is None else sigmoid(run.get(each.b))


def _decay_by_key(run: Run, each: op.DecayByKey) -> None:
    a, t = np.repeat(run.weights.vector(each.a.weight).reshape(-1), each.key_dim), run.get(each.t)
    decays, betas = each.out
    run.arrays[decays] = np.exp(a * softplus(t) if each.floor is None else each.floor * sigmoid(a * t))
    run.arrays[betas] = sigmoid(run.get(each.b))


def _recur(run: Run, each: op.Recur) -> None:
    queries = run.get(each.queries)
    fed = [run.get(value) for value in (each.keys, each.values, each.decays, each.betas) if value is not None]
    state, heads = run.block.states[each.state], queries.reshape(len(queries), -1, each.heads.key_dim)
    run.arrays[each.out] = recurred(each.heads, state, run.batch, run.tree, heads, np.hstack(fed)).reshape(len(queries), -1)


def _read_tokens(run: Run, each: op.ReadTokens) -> None:
    run.arrays[each.out] = run.batch.tokens[:, None].astype(np.float64)


def _by_row(run: Run, each: Operation) -> None:
    """An operation that a package computes row by row; see `Operation.kernels`."""
    made, cache = [np.empty((len(run.added), value.width)) for value in each.made], run.block.cache
    given, compute = [_known(one, run.weights) for one in each.operands], each.kernel_for("reference")
    with np.errstate(over="ignore"):  # e^-x may become infinite
        for t, (slot, _, cell, path) in enumerate(run.tokens()):
            kept = {one.cache: cache.seen(one.cache, slot, path)[0] for one in given if isinstance(one, CachedRows)}
            operands = [run.get(one)[t] if isinstance(one, Value) else one for one in given]
            operands = [kept[one.cache] if isinstance(one, CachedRows) else one for one in operands]
            compute(*operands, *(rows[t] for rows in made))
            for place in each.cached():
                cache.store(place, slot, cell, kept[place][-1:])
    run.arrays.update(zip(each.made, made, strict=True))


def _known(operand: Any, weights: Weights) -> Any:
    """The argument of a function of one row for an operand that is the same for all rows; values as they are."""
    match operand:
        case Vector():
            return weights.vector(operand.weight).reshape(-1)
        case Linear():
            return weights.matrix(operand)
        case Norm():
            return lambda row: each_normed(row[None], operand, weights)[0]
    return operand


_OPERATIONS: Mapping[type[Operation], Callable[[Run, Any], None]] = {
    op.Normalize: _normalize,
    op.Multiply: _multiply,
    AddLowRank: _add_low_rank,
    op.Add: _add,
    op.AddStream: _add_stream,
    op.Activate: _activate,
    op.Route: _route,
    op.FeedExperts: _feed_experts,
    op.AddWeighed: _add_weighed,
    op.ReadInput: _read_input,
    op.ReadHidden: _read_hidden,
    op.Join: _join,
    op.InitStreams: _begin_streams,
    op.LookUp: _look_up,
    op.SetLayerInputs: _give_inputs,
    op.ComputeLogits: _give_logits,
    op.Constant: _constant,
    op.Gate: _gate,
    op.Convolve: _convolve,
    op.ConvolveBlock: _convolve_block,
    op.ScaleToLength: _scale_to_length,
    op.Decay: _decay,
    op.DecayByKey: _decay_by_key,
    op.Recur: _recur,
    op.ReadTokens: _read_tokens,
    **ATTENTION,
}
"""The functions of all operations."""
