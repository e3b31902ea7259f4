"""Which experts the tokens of a pass go to.

The rows of a pass that go to one expert stand beside each other, a *group*: n tokens with k experts each make n * k rows,
sorted by expert, then by token. Where `route` and `group` leave them:

* `weights` (n, k) float32 and `places` (n, k) int64, which row is whose, by rank of the expert;
* `groups`: their number, then of each the expert, its first row, and how many;
* `sources` (n * k,) int64: which token a row is of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import simd
from augury.backends.numba_cpu.kernels.activation import exponential, sigmoid, softplus
from augury.backends.numba_cpu.kernels.jit import helper, kernel
from augury.backends.numba_cpu.kernels.simd import add, div, get_i64, load_part, put_i64, splat_f32, store_part
from augury.backends.numba_cpu.kernels.step import scratch_of, share
from augury.backends.numba_cpu.kernels.struct import nested, pointer_maker, pointer_to, struct
from augury.backends.numba_cpu.kernels.team import Record, StridedRows, row_of

f32 = np.float32
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN, SQRT_SOFTPLUS = range(4)
_NEVER, _TAKEN = f32(-1e30), f32(-3e38)
_LEAST_SUM = f32(2.0**-14)  # that weights are divided by


@struct
class Group:
    """The rows of one expert."""

    expert: int
    first: int
    n: int


groups_at = pointer_maker(Group)


@struct
class Routes:
    """The operands of a router, and where it leaves its choices, see above: addresses."""

    logits: Any = nested(StridedRows)  # (n, n_experts) float32
    n_experts: int
    n_used: int  # k
    gating: int
    bias: int  # (n_experts,) float32, added to choose, address; 0: none
    is_normalised: bool
    scale: float  # of weights
    n_groups: int  # of experts
    n_groups_used: int
    n_alike: int  # candidates that are one expert
    token_experts: int  # (V, k) int32, the experts of a token id, address; 0: chosen by scores
    chosen: int  # (n, k) int64
    weights: int
    places: int
    sources: int
    groups: int
    stride: int  # bytes from one thread's routes to the next; 0 where all share them


@struct
class Route(Record):
    routes: int = pointer_to(Routes)
    is_private: bool


@helper
def _top(first, end):
    """Where the largest of some float32 is, the first of equal ones."""
    best = first
    for place in range(first + 4, end, 4):
        if simd.get_f32(place) > simd.get_f32(best):
            best = place
    return best


@helper
def _rule_out_groups(scores, n, n_groups, n_used):
    """Leave the scores of the groups whose two highest have the greatest sums; sums come after the scores."""
    size = n // n_groups
    sums = scores + 4 * n
    for group in range(n_groups):
        first = scores + 4 * group * size
        end = first + 4 * size
        best = _top(first, end)
        top = simd.get_f32(best)
        second = f32(0)
        if size > 1:
            simd.put_f32(best, _TAKEN)
            second = simd.get_f32(_top(first, end))
            simd.put_f32(best, top)
        simd.put_f32(sums + 4 * group, top + second)
    for _ in range(n_used):
        simd.put_f32(_top(sums, sums + 4 * n_groups), _TAKEN)
    for group in range(n_groups):
        if simd.get_f32(sums + 4 * group) != _TAKEN:
            for place in range(scores + 4 * group * size, scores + 4 * (group + 1) * size, 4):
                simd.put_f32(place, _NEVER)


@helper
def _gate(row, probabilities, n, gating):
    """Logits (n,) → the scores of experts' weights."""
    if gating == SOFTMAX:
        top = splat_f32(simd.get_f32(_top(row, row + 4 * n)))
        total = simd.zero_f32()
        for index in range(0, n, 16):
            left = n - index
            power = exponential(simd.sub(load_part(row + 4 * index, left), top))
            store_part(probabilities + 4 * index, power, left)
            total = add(total, load_part(probabilities + 4 * index, left))
        sums = splat_f32(simd.sum_lanes(total))
        for index in range(0, n, 16):
            left = n - index
            store_part(probabilities + 4 * index, div(load_part(probabilities + 4 * index, left), sums), left)
    else:
        for index in range(0, n, 16):
            left = n - index
            value = load_part(row + 4 * index, left)
            if gating == SIGMOID:
                value = sigmoid(value)
            if gating == SQRT_SOFTPLUS:
                value = softplus(value)
            store_part(probabilities + 4 * index, value, left)
        if gating == SQRT_SOFTPLUS:
            for place in range(probabilities, probabilities + 4 * n, 4):
                simd.put_f32(place, f32(math.sqrt(simd.get_f32(place))))


@kernel(record=Route)
def route(record, state, thread, n_threads):
    """Choose the experts of each token and weigh them."""
    routes, private = record.routes, record.is_private
    n, k, gating = routes.n_experts, routes.n_used, routes.gating
    bias, n_groups, stride = routes.bias, routes.n_groups, routes.stride
    probabilities = scratch_of(state, thread)
    scores = probabilities + 4 * n
    scale, given = f32(routes.scale), routes.token_experts
    first, end = share(state.n_tokens, thread, n_threads, private)
    for t in range(first, end):
        row = row_of(routes.logits, t)
        _gate(row, probabilities, n, gating)
        factor = scale
        for place in range(0, 4 * n, 4):
            score = simd.get_f32(probabilities + place)
            if bias != 0:
                score += simd.get_f32(bias + place)
            logit = simd.get_f32(row + place)
            if math.isnan(logit):  # the choice does not matter, as long as it is an expert and NaN results
                factor, score = logit, _NEVER
            simd.put_f32(scores + place, score)
        if n_groups > 1:
            _rule_out_groups(scores, n, n_groups, routes.n_groups_used)
        chosen = routes.chosen + thread * stride + 8 * t * k
        weights = routes.weights + thread * stride + 4 * t * k
        top = total = f32(0)
        for j in range(k):
            if given != 0:
                choice = np.int64(simd.get_i32(given + 4 * (get_i64(state.tokens + 8 * t) * k + j)))
            else:
                best = _top(scores, scores + 4 * n)
                simd.put_f32(best, _TAKEN)
                choice = (best - scores) // 4
            expert = choice // routes.n_alike
            put_i64(chosen + 8 * j, expert)
            weight = simd.get_f32(probabilities + 4 * expert)
            if gating == SOFTMAX_OF_CHOSEN:
                if j == 0:
                    top = weight
                weight = simd.max_lanes(exponential(splat_f32(weight - top)))
            simd.put_f32(weights + 4 * j, weight)
            total += weight
        if gating == SOFTMAX_OF_CHOSEN:
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) / total)
            total = f32(1)
        if routes.is_normalised != 0:
            total = max(total, _LEAST_SUM)
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) / total)
        if factor != f32(1):
            for j in range(k):
                simd.put_f32(weights + 4 * j, simd.get_f32(weights + 4 * j) * factor)


@kernel(record=Route)
def group(record, state, thread, n_threads):
    """Sort the rows of all tokens by expert; one thread does, where they share the routes."""
    routes = record.routes
    if thread != 0 and record.is_private == 0:
        return
    n, k, n_experts = state.n_tokens, routes.n_used, routes.n_experts
    own = thread * routes.stride
    chosen, places = routes.chosen + own, routes.places + own
    sources, groups = routes.sources + own, routes.groups + own
    counts = scratch_of(state, thread)
    for expert in range(n_experts):
        put_i64(counts + 8 * expert, 0)
    for row in range(n * k):
        place = counts + 8 * get_i64(chosen + 8 * row)
        put_i64(place, get_i64(place) + 1)
    n_groups, start = 0, 0
    for expert in range(n_experts):
        count = get_i64(counts + 8 * expert)
        put_i64(counts + 8 * expert, start)
        if count != 0:
            made = groups_at(groups + 8)[n_groups]
            made.expert = expert
            made.first = start
            made.n = count
            n_groups, start = n_groups + 1, start + count
    put_i64(groups, n_groups)
    for row in range(n * k):
        place = counts + 8 * get_i64(chosen + 8 * row)
        at = get_i64(place)
        put_i64(place, at + 1)
        put_i64(places + 8 * row, at)
        put_i64(sources + 8 * at, row // k)
