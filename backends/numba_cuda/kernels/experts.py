"""Which experts the tokens of a pass go to, and with which weights; see `routes`."""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import sigmoid, softplus
from augury.backends.numba_cuda.kernels.dialect import (
    WARP,
    better,
    cuda,
    is_last_block,
    kernel,
    lane,
    record,
    together,
    warp_barrier,
    warp_best,
    warp_max,
    warp_sum,
)
from augury.backends.numba_cuda.kernels.formats import FORMATS
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, TOKENS
from augury.backends.numba_cuda.kernels.matmul import MOST_STAGED, STORE, multiply_tile_of, put_rows
from augury.backends.numba_cuda.kernels.routes import EXPERTS, PLACES, SOURCES, STARTS
from augury.backends.numba_cuda.kernels.sums import TILES, MatrixArgs, SourceArgs

SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN, SQRT_SOFTPLUS = range(4)
_NEVER, _TAKEN = -1e30, -3e38
_LEAST_SUM = 2.0**-14  # that weights are divided by
RouteArgs = record(
    "RouteArgs",
    f="logits values bias weights",
    j="table routes",
    i="n_most n_experts width k gating n_groups n_groups_used n_alike tile "
    "has_bias has_table is_normalised has_share is_joined",
    r="scale",
)
"""How experts are chosen.

`logits` (n, width) are of experts, then of the shared one, if `has_share`. `values` (n, 2 * n_experts + n_groups) are work
space. `bias` (n_experts,) is added to scores. By `table` (V, k) tokens' ids choose, instead of the scores, if `has_table`.
`weights` (n, k + 1) are written, at the end the shared expert's, and `routes`. The shared expert is one more, after all others,
that every token goes to, if `is_joined`. A pass has `n_most` rows at most, a tile `tile` of them. Weights are times `scale`.
"""


@lane
def _largest(x, start, n, i):
    most = np.float32(_TAKEN)
    for j in range(start + i, start + n, WARP):
        most = gpu.larger(most, x[j])
    return most


@lane
def _powers(logits, start, values, to, n, i, top):
    """E^(logit - the largest of a token), and their sum."""
    total = np.float32(0)
    for j in range(i, n, WARP):
        power = gpu.exp(logits[start + j] - np.float32(top))
        values[to + j] = power
        total = gpu.add(total, power)
    return total


@lane
def _scores(params, start, to, i, total):
    """The inputs of weights, and after them scores; NaN is never chosen before a number."""
    for j in range(i, params.n_experts, WARP):
        if params.gating == SOFTMAX:
            value = gpu.div(params.values[to + j], np.float32(total))
        elif params.gating == SIGMOID:
            value = sigmoid(params.logits[start + j])
        elif params.gating == SQRT_SOFTPLUS:
            value = gpu.root(softplus(params.logits[start + j]))
        else:
            value = params.logits[start + j]
        params.values[to + j] = value
        score = gpu.add(value, params.bias[j]) if params.has_bias else value
        params.values[to + params.n_experts + j] = max(np.float32(_NEVER), score)


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
        scores[sums + group] = gpu.add(first, second) if size > 1 else first


@lane
def _rule_out(scores, start, sums, n, size, i):
    """Leave the scores of groups that were not taken."""
    for j in range(i, n, WARP):
        if scores[sums + gpu.quotient(j, size)] > np.float32(_TAKEN):
            scores[start + j] = np.float32(_NEVER)


@lane
def _weigh(weights, start, k, gating, is_normalised, factor):
    """Let a token's k values be weights."""
    total = np.float32(1)
    if gating == SOFTMAX_OF_CHOSEN:
        top = weights[start]
        for j in range(1, k):
            top = gpu.larger(top, weights[start + j])
        total = np.float32(0)
        for j in range(k):
            weights[start + j] = gpu.exp(weights[start + j] - top)
            total = gpu.add(total, weights[start + j])
    elif is_normalised:
        total = np.float32(0)
        for j in range(k):
            total = gpu.add(total, weights[start + j])
        total = gpu.larger(total, np.float32(_LEAST_SUM))
    for j in range(k):
        weights[start + j] = gpu.mul(gpu.div(weights[start + j], total), np.float32(factor))


@together
def _take_best(scores, start, n, i):
    """The best of a token's scores, which is then taken."""
    _, at = warp_best(*_best(scores, start, n, i))
    if i == at % WARP:
        scores[start + at] = np.float32(_TAKEN)
    return at


@lane
def _four(routes, section, row, n):
    """Four neighbours of a section of n rows, which are read at once; -1 beyond them."""
    a, b, c, d = routes[section + row], routes[section + row + 1], routes[section + row + 2], routes[section + row + 3]
    nothing = np.int32(-1)
    return a, b if row + 1 < n else nothing, c if row + 2 < n else nothing, d if row + 3 < n else nothing


@lane
def _place(routes, n_most, n, tile, expert):
    """Where the rows of an expert come to stand among n, and which tile begins at a place, see `routes`."""
    first, count, index = 0, 0, 0
    for row in range(0, n, 4):
        for found in _four(routes, EXPERTS * n_most, row, n):
            first += 1 if 0 <= found < expert else 0
            count += 1 if found == expert else 0
    before = first & 1 if tile > TILES[-1] else 0  # tensor cores take tiles from even places on
    for row in range(0, n if count else 0, 4):
        four = _four(routes, EXPERTS * n_most, row, n)
        for j in range(4):
            if four[j] == expert:
                place, at = first + index, gpu.remainder(before + index, tile)
                routes[PLACES * n_most + row + j] = place
                routes[SOURCES * n_most + place] = row + j
                begins = index == 0 or at == 0
                routes[STARTS * n_most + place] = WARP * expert + min(tile - at, count - index) if begins else 0
                index += 1


@lane
def _list_tiles(routes, n_most, n, expert):
    """Write down the tiles of an expert among all of n rows: after how many there are, the expert, and its places."""
    total = 0
    for place in range(0, n, 4):
        four = _four(routes, STARTS * n_most, place, n)
        for j in range(4):
            if four[j] > 0:
                if four[j] // WARP == expert:
                    routes[1 + 3 * total] = expert
                    routes[2 + 3 * total] = place + j
                    routes[3 + 3 * total] = place + j + four[j] % WARP
                total += 1
    if expert == 0:
        routes[0] = total


def _route(inputs, params):
    """Choose the experts of all tokens, weigh them, and sort rows by expert. One block does it, whose warps take tokens."""
    logits, values, weights, routes, n_most = params.logits, params.values, params.weights, params.routes, params.n_most
    n_experts, k, n_groups, gating = params.n_experts, params.k, params.n_groups, params.gating
    thread = cuda.threadIdx.x
    i, n, n_threads = thread % WARP, inputs[N_TOKENS], cuda.blockDim.x
    n_all = k + params.is_joined
    for t in range(thread // WARP, n, n_threads // WARP):
        start, to, at = t * params.width, t * (2 * n_experts + n_groups), t * (k + 1)
        top, total = warp_max(_largest(logits, start, n_experts, i)), np.float32(1)
        if gating == SOFTMAX:
            total = warp_sum(_powers(logits, start, values, to, n_experts, i, top))
        _scores(params, start, to, i, total)
        warp_barrier()
        scores = to + n_experts
        if n_groups > 1:
            size, sums = gpu.quotient(n_experts, n_groups), to + 2 * n_experts
            _sums_of_groups(values, scores, sums, n_groups, size, i)
            warp_barrier()
            for _ in range(params.n_groups_used):
                _take_best(values, sums, n_groups, i)
            warp_barrier()
            _rule_out(values, scores, sums, n_experts, size, i)
        for j in range(k):
            best = params.table[inputs[TOKENS + t] * k + j] if params.has_table else _take_best(values, scores, n_experts, i)
            expert = gpu.quotient(best, params.n_alike)
            if i == 0:
                routes[EXPERTS * n_most + t * n_all + j] = expert
                weights[at + j] = values[to + expert]
        if i == 0:
            if params.is_joined:
                routes[EXPERTS * n_most + t * n_all + k] = gpu.quotient(n_experts, params.n_alike)
            factor = np.float32(params.scale) if top == top else top  # noqa: PLR0124 - of logits with a NaN comes NaN
            _weigh(weights, at, k, gating, params.is_normalised, factor)
            weights[at + k] = sigmoid(logits[start + n_experts]) if params.has_share else np.float32(1)
    cuda.syncthreads()
    n_kinds = gpu.quotient(n_experts, params.n_alike) + params.is_joined
    for expert in range(thread, n_kinds, n_threads):
        _place(routes, n_most, n * n_all, params.tile, expert)
    cuda.syncthreads()
    for expert in range(thread, n_kinds, n_threads):
        _list_tiles(routes, n_most, n * n_all, expert)


route, _route_together = kernel("j", RouteArgs, name="route")(_route), together(_route)


def _multiply_and_route(fmt, n_tokens):
    multiply_tile, n_staged = multiply_tile_of(fmt, n_tokens), MOST_STAGED * n_tokens

    @kernel("j", RouteArgs, MatrixArgs, SourceArgs, "wi", name=f"route_{fmt.name}_{n_tokens}")
    def multiply_and_route(inputs, params, w, x, counters, n_blocks):
        """Write the logits, as `multiply` does; then the last block chooses experts by them, see `_route`.

        Args:
            counters: One.
            n_blocks: Along the rows of W.
        """
        t, n_there = cuda.blockIdx.y * n_tokens, inputs[N_TOKENS]
        if t >= n_there:
            return
        sums, rows = cuda.local.array(n_tokens, np.float32), cuda.local.array(n_tokens, np.int64)
        for token in range(n_tokens):
            rows[token] = t + token
        staged = cuda.shared.array(n_staged, np.float32)
        tile = multiply_tile(w, cuda.blockIdx.x, 0, x, rows, staged, sums)
        put_rows(sums, n_tokens, tile, w, 0, t, n_there, params.logits, params.width, 0, STORE)
        if is_last_block(counters, 0, n_blocks * gpu.quotient(n_there + n_tokens - 1, n_tokens)):
            _route_together(inputs, params)

    return multiply_and_route


ROUTE = {n_tokens: _multiply_and_route(FORMATS["F32"], n_tokens) for n_tokens in TILES}
"""Kernels by how many tokens share a reading of the router's matrix, which has float32 in files of every type."""
