"""Which experts the tokens of a pass go to, and by what weights; see `routes`."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import sigmoid, softplus
from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    add,
    better,
    cuda,
    div,
    exp,
    is_last_block,
    kernel,
    lane,
    larger,
    mul,
    quotient,
    remainder,
    root,
    slice_sums,
    together,
    warp_barrier,
    warp_best,
    warp_max,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, TOKENS
from augury.backends.numba_cuda.kernels.matmul import MOST_CUTS, STORE, put_rows
from augury.backends.numba_cuda.kernels.routes import EXPERTS, PLACES, SOURCES, STARTS
from augury.backends.numba_cuda.kernels.sums import TILES, add_cuts, sums_of_cut_of

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN, SQRT_SOFTPLUS = range(4)
_NEVER, _TAKEN = -1e30, -3e38
_LEAST_SUM = 2.0**-14  # that weights are divided by


@lane
def _largest(x, start, n, i):
    most = np.float32(_TAKEN)
    for j in range(start + i, start + n, WARP):
        most = larger(most, x[j])
    return most


@lane
def _powers(logits, start, values, to, n, i, top):
    """E^(logit - the largest of a token), and their sum."""
    total = np.float32(0)
    for j in range(i, n, WARP):
        power = exp(logits[start + j] - np.float32(top))
        values[to + j] = power
        total = add(total, power)
    return total


@lane
def _scores(logits, start, values, to, bias, n, i, gating, total, has_bias):
    """What weights are made of, and after them scores; one that is no number is never chosen before one that is."""
    for j in range(i, n, WARP):
        if gating == SOFTMAX:
            value = div(values[to + j], np.float32(total))
        elif gating == SIGMOID:
            value = sigmoid(logits[start + j])
        elif gating == SQRT_SOFTPLUS:
            value = root(softplus(logits[start + j]))
        else:
            value = logits[start + j]
        values[to + j] = value
        score = add(value, bias[j]) if has_bias else value
        values[to + n + j] = max(np.float32(_NEVER), score)


@lane
def _best(scores, start, n, i):
    """The largest of a lane's scores, the first of equal ones, and which it is."""
    value, index = np.float32(_TAKEN), np.int32(n)
    for j in range(i, n, WARP):
        value, index = better(value, index, scores[start + j], np.int32(j))
    return value, index


@lane
def _sums_of_groups(scores, start, sums, n_groups, size, i):
    """The sums of the two highest scores of groups."""
    for group in range(i, n_groups, WARP):
        first, second = scores[start + group * size], np.float32(_TAKEN)
        for j in range(start + group * size + 1, start + (group + 1) * size):
            if scores[j] > first:
                first, second = scores[j], first
            elif scores[j] > second:
                second = scores[j]
        scores[sums + group] = add(first, second) if size > 1 else first


@lane
def _rule_out(scores, start, sums, n, size, i):
    """Leave the scores of groups that were not taken."""
    for j in range(i, n, WARP):
        if scores[sums + quotient(j, size)] > np.float32(_TAKEN):
            scores[start + j] = np.float32(_NEVER)


@lane
def _weigh(weights, start, k, gating, is_normalised, factor):
    """Let a token's k values be weights."""
    total = np.float32(1)
    if gating == SOFTMAX_OF_CHOSEN:
        top = weights[start]
        for j in range(1, k):
            top = larger(top, weights[start + j])
        total = np.float32(0)
        for j in range(k):
            weights[start + j] = exp(weights[start + j] - top)
            total = add(total, weights[start + j])
    elif is_normalised:
        total = np.float32(0)
        for j in range(k):
            total = add(total, weights[start + j])
        total = larger(total, np.float32(_LEAST_SUM))
    for j in range(k):
        weights[start + j] = mul(div(weights[start + j], total), np.float32(factor))


@together
def _take_best(scores, start, n, i):
    """The best of a token's scores, which is then taken."""
    _, at = warp_best(*_best(scores, start, n, i))
    if i == at % WARP:
        scores[start + at] = np.float32(_TAKEN)
    return at


@lane
def _place(routes, n_most, n, tile, row):
    """Where a row comes to stand among n, and how many rows a tile has that begins with it."""
    expert, place, index, count = routes[EXPERTS * n_most + row], 0, 0, 0
    for other in range(n):
        found = routes[EXPERTS * n_most + other]
        is_before = found == expert and other < row
        place += 1 if found < expert or is_before else 0
        index += 1 if is_before else 0
        count += 1 if found == expert else 0
    routes[PLACES * n_most + row] = place
    routes[SOURCES * n_most + place] = row
    before = (place - index) & 1 if tile > TILES[-1] else 0  # tensor cores take tiles from even places on
    at = remainder(before + index, tile)
    routes[STARTS * n_most + place] = min(tile - at, count - index) if index == 0 or at == 0 else 0


@lane
def _list_tile(routes, n_most, n, place):
    """Write down the tile that begins at a place of n, if one does: after how many there are, an expert, and its places."""
    size, before, total = routes[STARTS * n_most + place], 0, 0
    if size == 0:
        return
    for other in range(n):
        is_start = 1 if routes[STARTS * n_most + other] > 0 else 0
        total += is_start
        before += is_start if other < place else 0
    routes[1 + 3 * before] = routes[EXPERTS * n_most + routes[SOURCES * n_most + place]]
    routes[2 + 3 * before] = place
    routes[3 + 3 * before] = place + size
    if before == total - 1:
        routes[0] = total


def _route(
    inputs,
    logits,
    values,
    bias,
    table,
    weights,
    routes,
    n_most,
    n_experts,
    width,
    k,
    gating,
    has_bias,
    has_table,
    is_normalised,
    n_groups,
    n_groups_used,
    n_alike,
    has_share,
    is_joined,
    tile,
    scale,
):
    """Choose the experts of all tokens, weigh them, and sort rows by expert. One block does it, whose warps take tokens.

    Args:
        inputs: Of the pass.
        logits: (n, width); what follows those of the experts is the shared one's, if `has_share`.
        values: (n, 2 * n_experts + n_groups), to work in.
        bias: (n_experts,) that is added to scores.
        table: (V, k), of tokens' ids what is chosen whatever the scores, if `has_table`.
        weights: (n, k + 1), at the end the shared expert's.
        routes: See `routes`.
        is_joined: Whether the shared expert is one more, after all others, that every token goes to.
        n_most: Rows of a pass.
        tile: Rows of a tile.
        scale: Of weights.
    """
    thread = cuda.threadIdx.x
    i, n, n_threads = thread % WARP, inputs[N_TOKENS], cuda.blockDim.x
    n_all = k + is_joined
    for t in range(thread // WARP, n, n_threads // WARP):
        start, to, at = t * width, t * (2 * n_experts + n_groups), t * (k + 1)
        top, total = warp_max(_largest(logits, start, n_experts, i)), np.float32(1)
        if gating == SOFTMAX:
            total = warp_sum(_powers(logits, start, values, to, n_experts, i, top))
        _scores(logits, start, values, to, bias, n_experts, i, gating, total, has_bias)
        warp_barrier()
        scores = to + n_experts
        if n_groups > 1:
            size, sums = quotient(n_experts, n_groups), to + 2 * n_experts
            _sums_of_groups(values, scores, sums, n_groups, size, i)
            warp_barrier()
            for _ in range(n_groups_used):
                _take_best(values, sums, n_groups, i)
            warp_barrier()
            _rule_out(values, scores, sums, n_experts, size, i)
        for j in range(k):
            best = table[inputs[TOKENS + t] * k + j] if has_table else _take_best(values, scores, n_experts, i)
            expert = quotient(best, n_alike)
            if i == 0:
                routes[EXPERTS * n_most + t * n_all + j] = expert
                weights[at + j] = values[to + expert]
        if i == 0:
            if is_joined:
                routes[EXPERTS * n_most + t * n_all + k] = quotient(n_experts, n_alike)
            factor = np.float32(scale) if top == top else top  # noqa: PLR0124 - of logits with a NaN comes NaN
            _weigh(weights, at, k, gating, is_normalised, factor)
            weights[at + k] = sigmoid(logits[start + n_experts]) if has_share else np.float32(1)
    cuda.syncthreads()
    if thread == 0:
        routes[0] = 0
    for row in range(thread, n * n_all, n_threads):
        _place(routes, n_most, n * n_all, tile, row)
    cuda.syncthreads()
    for place in range(thread, n * n_all, n_threads):
        _list_tile(routes, n_most, n * n_all, place)


_OF_ROUTE = "jfffjfj" + 14 * "i" + "r"


route, _route_together = kernel(_OF_ROUTE, name="route")(_route), together(_route)


def _multiply_and_route(fmt, n_tokens):
    sums_of_cut, n_staged = sums_of_cut_of(fmt, n_tokens), MOST_CUTS * WARP * n_tokens

    @kernel(_OF_ROUTE + "wwfw" + 7 * "i" + "r", name=f"route_{fmt.name}_{n_tokens}")
    def multiply_and_route(
        inputs,
        logits,
        values,
        bias,
        table,
        weights,
        routes,
        n_most,
        n_experts,
        width,
        k,
        gating,
        has_bias,
        has_table,
        is_normalised,
        n_groups,
        n_groups_used,
        n_alike,
        has_share,
        is_joined,
        tile,
        scale,
        w,
        x,
        product_bias,
        counters,
        n_rows,
        n_units,
        n_steps,
        n,
        n_cuts,
        has_product_bias,
        n_blocks,
        product_scale,
    ):
        """Write the logits, as `multiply` does; then the last block chooses experts by them, see `_route`.

        Args:
            counters: One.
            n_blocks: Along the rows of W.
        """
        t, n_there = cuda.blockIdx.y * n_tokens, inputs[N_TOKENS]
        if t >= n_there:
            return
        thread = cuda.threadIdx.x
        i = thread % WARP
        warp = cuda.blockIdx.x * (cuda.blockDim.x // WARP) + thread // WARP
        row_tile, cut = quotient(warp, n_cuts), remainder(warp, n_cuts)
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, np.int64)
        for token in range(n_tokens):
            rows[token] = t + token
        sums_of_cut(w, n, row_tile, cut, n_rows, n_steps, n_cuts, 0, n_units, x, x, x, rows, i, sums)
        staged = cuda.shared.array(n_staged, np.float32)
        if n_cuts > 1:
            add_cuts(sums, staged, cut, n_cuts, n_tokens)
        if cut == 0:
            slice_sums(sums, n_tokens)
            put_rows(
                sums,
                n_tokens,
                row_tile,
                i,
                n_rows,
                t,
                n_there,
                logits,
                width,
                0,
                product_bias,
                0,
                has_product_bias,
                STORE,
                product_scale,
            )
        if is_last_block(counters, 0, n_blocks * quotient(n_there + n_tokens - 1, n_tokens)):
            _route_together(
                inputs,
                logits,
                values,
                bias,
                table,
                weights,
                routes,
                n_most,
                n_experts,
                width,
                k,
                gating,
                has_bias,
                has_table,
                is_normalised,
                n_groups,
                n_groups_used,
                n_alike,
                has_share,
                is_joined,
                tile,
                scale,
            )

    return multiply_and_route


ROUTE = {n_tokens: _multiply_and_route(FORMATS["F32"], n_tokens) for n_tokens in TILES}
"""Kernels by how many tokens share a reading of the router's matrix, which has float32 in files of every type."""
