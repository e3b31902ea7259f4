"""Attention in splits of logical positions: a token's sums depend neither on where its cells lie nor on the rest of the pass.

A split is 256 positions, counted from 0. Within it scores become weights relative to its own largest score; splits are then
merged, see `splits`. A split of which a token sees nothing takes no part.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import capped
from augury.backends.numba_cuda.kernels.cells import DOT, PAIR
from augury.backends.numba_cuda.kernels.dialect import (
    SIMULATED,
    WARP,
    add,
    cuda,
    exp,
    fma,
    is_last_block,
    kernel,
    lane,
    larger,
    mul,
    quotient,
    remainder,
    warp_max,
)
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of, first_of_chunk, first_seen
from augury.backends.numba_cuda.kernels.norm import sum_of_block
from augury.backends.numba_cuda.kernels.splits import merge_heads, n_joined

SPLIT = 256  # positions
ATTEND_THREADS = 32 if SIMULATED else 128
_WARPS = ATTEND_THREADS // WARP
_STAGED = 2 * ATTEND_THREADS  # values of groups of threads; of heads of 256 there is one group
_REGISTERS = 80  # so that a multiprocessor has room for six blocks
_NONE = float("-inf")


@lane
def _own(position, size):
    """The position whose cell has a row."""
    return position


@lane
def _end(block, size):
    """The position whose cell has the row that a block of positions was pooled to: its last."""
    return (block + 1) * size - 1


def _scores(dot, place):
    @lane
    def scores_of(
        inputs,
        t,
        q,
        start,
        keys,
        halves,
        base,
        dim,
        chosen,
        chosen_at,
        block_size,
        pool,
        scale,
        cap,
        slope,
        split,
        first,
        last,
        thread,
        scores,
    ):
        """The scores of a thread's positions of a split, and the largest of them."""
        most = np.float32(_NONE)
        for i in range(thread, SPLIT, ATTEND_THREADS):
            position = split * SPLIT + i
            scores[i] = np.float32(_NONE)
            is_seen = first <= position <= last
            if is_seen and (block_size == 0 or chosen[chosen_at + quotient(position, block_size)] != 0):
                cell = base + cell_of(inputs, t, place(position, pool))
                score = mul(dot(q, start, keys, halves, cell, dim), np.float32(scale))
                scores[i] = fma(-np.float32(slope), np.float32(last - position), capped(score, cap))
                most = larger(most, scores[i])
        return most

    return scores_of


@lane
def _weights_of(scores, most, thread):
    """Make weights of a thread's scores; returns their sum."""
    most = np.float32(most)
    total = np.float32(0)
    for i in range(thread, SPLIT, ATTEND_THREADS):
        weight = np.float32(0) if scores[i] == np.float32(_NONE) else exp(scores[i] - most)
        scores[i] = weight
        total = add(total, weight)
    return total


def _mix(pair, place):
    @lane
    def mixed(inputs, t, scores, values, halves, base, dim, i, split, first, last, pool, group, n_groups):
        """Values 2 i and 2 i + 1 of the mix of a group's positions: every n-th, of n groups."""
        a, b = np.float32(0), np.float32(0)
        start = split * SPLIT
        begin = max(first, start)
        position, end = begin + group - remainder(begin, n_groups), min(last + 1, start + SPLIT)
        if position < begin:
            position += n_groups
        while position < end:  # of a range that steps by a variable, numba divides to know its length
            low, high = pair(values, halves, base + cell_of(inputs, t, place(position, pool)), dim, i)
            a, b = fma(scores[position - start], low, a), fma(scores[position - start], high, b)
            position += n_groups
        return a, b

    return mixed


def _attend(type_k, type_v, *, is_pooled=False):
    place = _end if is_pooled else _own
    scores_of, mixed = _scores(DOT[type_k], place), _mix(PAIR[type_v], place)

    @kernel(
        "jfwhwhfjfwffbfjf" + 23 * "i" + "rr",
        most_registers=None if is_pooled else _REGISTERS,
        name=f"attend_{'pooled' if is_pooled else type_k}_{type_v}",
    )
    def attend(
        inputs,
        rows,
        keys,
        key_halves,
        values,
        value_halves,
        slopes,
        chosen,
        parts,
        counters,
        sinks,
        out,
        quantised,
        factors,
        sums,
        gates,
        stride,
        n_heads,
        n_kv_heads,
        head_dim,
        value_dim,
        length,
        window,
        chunk,
        n_splits,
        has_slopes,
        block_size,
        chosen_stride,
        group_stride,
        pool,
        first_token,
        first_split,
        width,
        has_sinks,
        gate_stride,
        gate_size,
        is_softplus,
        as_floats,
        as_bytes,
        scale,
        cap,
    ):
        """What one split gives one head of one token: (value_dim,) mixed, the largest score, and the sum of the weights.

        The last block of a head, or of as many as have whole units, merges what all splits gave: of pooled rows also those of
        the tokens' own rows, which come before them.

        Args:
            inputs: Of the pass.
            rows: (n, stride), each beginning with the heads of queries.
            keys, key_halves, values, value_halves: Planes of caches, see `cells`, (slots, n_kv_heads, length, …) each.
            slopes: (n_heads,) what a score loses for each position that lies between.
            chosen: (n, chosen_stride), of each group of heads `group_stride` further on, or of all the same, not 0 for blocks
                of `block_size` positions that are seen; 0: all are.
            parts: (tokens from `first_token` on, n_heads, n_splits, value_dim + 2), from split `first_split` on.
            counters: One for each token and what is merged of it.
            sinks, out, quantised, factors, sums, gates: And what is said of them, see `merge_heads`; with a width of 0 nothing
                is merged.
            pool: Of pooled rows, how many positions one stands for; what is said of positions is true of them instead.
            window: How many positions a token sees; 0: all. Of pooled rows it sees all.
            chunk: It sees none before the last multiple of that; 0: all.
            cap: Scores s become cap * tanh(s / cap); 0: they stay.
        """
        split, head, t = cuda.blockIdx.x, cuda.blockIdx.y, first_token + cuda.blockIdx.z
        if t >= inputs[N_TOKENS]:
            return
        position = last = inputs[POSITIONS + t]
        first = first_own = max(first_seen(position, window), first_of_chunk(position, chunk))
        if is_pooled:
            first, last = np.int32(0), quotient(position + 1, pool) - 1
        is_seen = split * SPLIT <= last and (split + 1) * SPLIT > first
        if not is_seen and (last >= 0 or split > 0):  # where no pooled row is seen, one block comes to merge the others
            return
        scores = cuda.shared.array(SPLIT, np.float32)
        parts_of_warps = cuda.shared.array(_WARPS, np.float32)
        most_of_warps = cuda.shared.array(_WARPS, np.float32)
        staged = cuda.shared.array(_STAGED, np.float32)
        thread = cuda.threadIdx.x
        group = quotient(head, quotient(n_heads, n_kv_heads))
        base = (inputs[SLOTS + t] * n_kv_heads + group) * length
        chosen_at = t * chosen_stride + group * group_stride
        start = t * stride + head * head_dim
        slope = slopes[head] if has_slopes else np.float32(0)
        most = scores_of(
            inputs,
            t,
            rows,
            start,
            keys,
            key_halves,
            base,
            head_dim,
            chosen,
            chosen_at,
            block_size,
            pool,
            scale,
            cap,
            slope,
            split,
            first,
            last,
            thread,
            scores,
        )
        most = warp_max(most)
        if thread % WARP == 0:
            most_of_warps[thread // WARP] = most
        cuda.syncthreads()
        for warp in range(_WARPS):
            most = larger(most, most_of_warps[warp])
        total = sum_of_block(_weights_of(scores, most, thread), parts_of_warps)  # all weights are there when it ends
        n_pairs = value_dim >> 1
        n_groups = max(1, quotient(ATTEND_THREADS, n_pairs))
        to = (((t - first_token) * n_heads + head) * n_splits + first_split + split) * (value_dim + 2)
        if n_groups > 1:
            group = quotient(thread, n_pairs)
            if group < n_groups:
                i = remainder(thread, n_pairs)
                a, b = mixed(
                    inputs, t, scores, values, value_halves, base, value_dim, i, split, first, last, pool, group, n_groups
                )
                staged[group * value_dim + 2 * i] = a
                staged[group * value_dim + 2 * i + 1] = b
            cuda.syncthreads()
            for i in range(thread, value_dim, ATTEND_THREADS):
                value = staged[i]
                for group in range(1, n_groups):
                    value = add(value, staged[group * value_dim + i])
                parts[to + i] = value
        else:
            for i in range(thread, n_pairs, ATTEND_THREADS):
                a, b = mixed(inputs, t, scores, values, value_halves, base, value_dim, i, split, first, last, pool, 0, 1)
                parts[to + 2 * i] = a
                parts[to + 2 * i + 1] = b
        if thread == 0:
            parts[to + value_dim] = most
            parts[to + value_dim + 1] = total
        if width == 0:
            return
        n_alike, n_seen = n_joined(value_dim), quotient(last + SPLIT, SPLIT) - first // SPLIT
        first_head = head // n_alike * n_alike
        n, counter = min(n_alike, n_heads - first_head), t * quotient(n_heads + n_alike - 1, n_alike) + head // n_alike
        if not is_last_block(counters, counter, n * max(1, n_seen)):
            return
        other_first = other_end = 0
        if is_pooled:
            other_first, other_end = first_split, first_split + n_seen
        merge_heads(
            inputs,
            t,
            t - first_token,
            first_head,
            n,
            first_own // SPLIT,
            position // SPLIT + 1,
            other_first,
            other_end,
            parts,
            sinks,
            out,
            quantised,
            factors,
            sums,
            gates,
            n_heads,
            value_dim,
            n_splits,
            width,
            has_sinks,
            gate_stride,
            gate_size,
            is_softplus,
            as_floats,
            as_bytes,
        )

    return attend


ATTEND = {(type_k, type_v): _attend(type_k, type_v) for type_k in DOT for type_v in PAIR}
"""Kernels by the types of caches."""
ATTEND_POOLED = {kind: _attend(kind, kind, is_pooled=True) for kind in DOT}
"""Kernels by the type of a cache whose rows are keys and values both, and stand for blocks of positions."""
