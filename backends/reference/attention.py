"""The operations of attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from augury.backends.reference.formula import attend, rotate
from augury.backends.reference.lowered import Run
from augury.backends.reference.weights import each_normed
from augury.blocks import Preparation, Temperature
from augury.lowering import Attend, Choose, ChooseByHead, MultiplyHeads, Operation, PrepareHeads, PrepareLatents


def _prepare_heads(run: Run, each: PrepareHeads) -> None:
    for x, size, steps, cache, out in zip(each.x, each.dims, each.steps, each.caches, each.out, strict=True):
        rows = run.get(x)
        heads = _prepared(run, rows.reshape(len(rows), -1, size), steps)
        run.arrays[out] = heads.reshape(rows.shape)
        if cache is not None:
            run.keep(cache, heads, each.source)


def _prepared(run: Run, heads: np.ndarray, steps: Preparation) -> np.ndarray:
    """Heads (n, H, D), prepared by steps."""
    positions = run.batch.positions
    if steps.clamp is not None:
        heads = heads.clip(-steps.clamp, steps.clamp)
    before, after = (None, steps.norm) if steps.is_rope_first else (steps.norm, None)
    heads = each_normed(heads, before, run.weights)
    if steps.rope is not None:
        heads = rotate(heads, np.maximum(positions - steps.lag, 0), steps.rope)
    heads = each_normed(heads, after, run.weights)
    if steps.temperature is None:
        return heads
    return heads * np.array([_sharpness(steps.temperature, p) for p in positions.tolist()])[:, None, None]


def _sharpness(temperature: Temperature, position: int) -> float:
    """The factor of a query; see `Temperature`."""
    periods = (position + temperature.offset) // temperature.period
    return 1.0 + temperature.scale * math.log1p(periods)


def _prepare_latents(run: Run, each: PrepareLatents) -> None:
    n_heads, n_plain, n_latent, positions = each.keys.n, each.keys.n_in, each.norm.size, run.batch.positions
    latents = run.get(each.latents)
    turned = each_normed(latents[:, n_latent:], each.turned_norm, run.weights)[:, None]
    turned = turned if each.rope is None else rotate(turned, positions, each.rope)
    run.keep(each.cache, np.concatenate([each_normed(latents[:, :n_latent], each.norm, run.weights)[:, None], turned], axis=2))
    queries = run.get(each.queries).reshape(len(latents), n_heads, -1)
    asked = [run.weights.product_of(each.keys, head, queries[:, head, :n_plain]) for head in range(n_heads)]
    turned = queries[:, :, n_plain:] if each.rope is None else rotate(queries[:, :, n_plain:], positions, each.rope)
    made = np.concatenate([np.stack(asked, axis=1), turned], axis=2)
    if each.temperature is not None:
        made *= np.array([_sharpness(each.temperature, p) for p in positions.tolist()])[:, None, None]
    run.arrays[each.out] = made.reshape(len(latents), -1)


def _multiply_heads(run: Run, each: MultiplyHeads) -> None:
    parts = np.split(run.get(each.x), each.matrices.n, axis=1)
    run.arrays[each.out] = np.hstack([run.weights.product_of(each.matrices, i, part) for i, part in enumerate(parts)])


def _attend(run: Run, each: Attend) -> None:
    queries = run.get(each.queries).reshape(len(run.added), each.n_heads, -1)
    value_dim = each.out.width // each.n_heads
    sinks = None if each.sinks is None else run.weights.vector(each.sinks.weight)
    cache = run.block.cache if each.source is None else run.sources[each.source]
    mixed = np.empty((len(queries), each.n_heads, value_dim))
    for token, (slot, position, _, path) in enumerate(run.tokens()):
        first = 0 if each.window is None else max(0, position + 1 - each.window)
        first = first if each.chunk is None else max(first, position // each.chunk * each.chunk)
        seen = path if each.is_causal else np.arange(run.batch.positions[run.batch.slots == slot].max() + 1)
        keys, chosen = cache.seen(each.keys, slot, seen[first:]), None
        values = keys[:, :, :value_dim] if each.values is None else cache.seen(each.values, slot, seen[first:])
        if each.choice is not None:
            places, ends = run.choice(each.choice)[token]
            chosen = places[:, first:]
            if each.pooled is not None:
                rows = cache.seen(each.pooled, slot, path[ends])
                keys, values = np.concatenate([keys, rows], axis=1), np.concatenate([values, rows[:, :, :value_dim]], axis=1)
                chosen = np.hstack([chosen, np.ones((len(chosen), len(ends)), bool)])
        mixed[token] = attend(each, queries[token], keys, values, sinks, chosen)
    run.arrays[each.out] = mixed.reshape(len(mixed), -1)


def _choose(run: Run, each: Choose) -> None:
    size, window, made = each.out.size, each.out.window, []
    for token, (slot, position, _, path) in enumerate(run.tokens()):
        n_blocks, places = (position + 1) // size, np.arange(position + 1)
        best = np.arange(n_blocks)
        if each.queries is not None and each.keys is not None:
            (keys,) = run.block.cache.seen(each.keys, slot, path[size - 1 :: size])
            heads = run.get(each.queries)[token].reshape(-1, keys.shape[1])
            equal = np.full(len(heads), 1.0 / math.sqrt(keys.shape[1]))
            shares = equal if each.weights is None else run.get(each.weights)[token]
            scores = sum(share * np.maximum(keys @ query, 0.0) for share, query in zip(shares, heads, strict=True))
            best = _best(np.asarray(scores), each.n_chosen)
        chosen = np.isin(places // size, [*best, n_blocks]) if window is None else places > position - window
        made.append((chosen[None], (best + 1) * size - 1))
    run.choose(each.out, made)


def _best(scores: np.ndarray, n: int) -> np.ndarray:
    """The places, rising, of the n highest of some scores, of equal ones the first."""
    return np.sort(np.argsort(-scores, kind="stable")[:n])


def _choose_by_head(run: Run, each: ChooseByHead) -> None:
    queries, made = run.get(each.queries), []
    for token, (slot, _, _, path) in enumerate(run.tokens()):
        (keys,) = run.block.cache.seen(each.keys, slot, path)
        blocks, chosen = np.arange(len(keys)) // each.out.size, []
        for query in queries[token].reshape(-1, keys.shape[1]):
            scores = np.full(blocks[-1] + 1, -np.inf)
            np.maximum.at(scores, blocks, keys @ query)
            scores[max(len(scores) - each.n_local, 0) :] = np.inf
            chosen.append(np.isin(blocks, _best(scores, each.n_chosen)))
        made.append((np.array(chosen), np.empty(0, np.int64)))
    run.choose(each.out, made)


ATTENTION: Mapping[type[Operation], Callable[[Run, Any], None]] = {
    PrepareHeads: _prepare_heads,
    PrepareLatents: _prepare_latents,
    MultiplyHeads: _multiply_heads,
    Attend: _attend,
    Choose: _choose,
    ChooseByHead: _choose_by_head,
}
"""The functions of operations of attention."""
