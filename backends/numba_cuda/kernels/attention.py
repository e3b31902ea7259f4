"""Attention in splits of logical positions: a token's sums depend neither on where its cells lie nor on the rest of the pass.

A split is 256 positions, counted from 0. Within it scores become weights relative to its own largest score; splits are then
merged, see `splits`. A split of which a token sees nothing takes no part.
"""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.activation import capped
from augury.backends.numba_cuda.kernels.cells import DOT, EIGHT, CacheArgs
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
    record,
    remainder,
    warp_max,
)
from augury.backends.numba_cuda.kernels.heads import MAX_DIM
from augury.backends.numba_cuda.kernels.inputs import BRANCHES, N_TOKENS, POSITIONS, SLOTS, cell_of, first_of_chunk, first_seen
from augury.backends.numba_cuda.kernels.norm import sum_of_block
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.splits import MergeArgs, merge_heads, n_joined

SPLIT = 256  # positions
ATTEND_THREADS = 32 if SIMULATED else 128
_WARPS = ATTEND_THREADS // WARP
_STAGED = max(8 * ATTEND_THREADS, MAX_DIM)  # values of groups of threads
_AHEAD = 4  # positions whose values a thread asks for before it mixes them
_NONE = float("-inf")
ChoiceArgs = record("ChoiceArgs", j="chosen", i="block_size stride group_stride")
"""What tokens see: `chosen` (tokens, stride), of each group of heads `group_stride` further on, or of all the same.

It is not 0 for blocks of `block_size` positions that are seen; with a size of 0 all are.
"""
AttendArgs = record(
    "AttendArgs",
    f="rows slopes parts",
    w="counters",
    i="stride n_heads n_kv_heads head_dim value_dim length window chunk sees_block n_splits has_slopes pool first_token"
    " first_split",
    r="scale cap",
)
"""What attends, and to how much.

`rows` (tokens, stride) each begin with the heads of queries. `slopes` (n_heads,) are what a score loses for each position that
lies between. `parts` (tokens from `first_token` on, n_heads, n_splits, value_dim + 2) are what splits give, from `first_split`
on, and `counters` one for each token and what is merged of it. A token sees `window` positions (0: all; and all pooled rows),
and none before the last multiple of `chunk` (0: all). If it `sees_block`, it sees the later tokens of its slot in the pass,
too. Of pooled rows one stands for `pool` positions; what is said of positions is true of them instead. Scores s become
cap * tanh(s / cap), unless cap is 0.
"""


@lane
def _own(position, size):
    """The position whose cell has a row."""
    return position


@lane
def _end(block, size):
    """The position whose cell has the row that a block of positions was pooled to: its last."""
    return (block + 1) * size - 1


@lane
def is_chosen(choice, at, position):
    """Whether a position is one of those that a list shows, see `ChoiceArgs`."""
    return choice.block_size == 0 or choice.chosen[at + quotient(position, choice.block_size)] != 0


def _scores(dot, place):
    @lane
    def scores_of(inputs, t, how, start, keys, base, choice, chosen_at, slope, seen, thread, scores):
        """The scores of a thread's positions of a split, and the largest of them."""
        most, (split, first, last) = np.float32(_NONE), seen
        for i in range(thread, SPLIT, ATTEND_THREADS):
            position = split * SPLIT + i
            scores[i] = np.float32(_NONE)
            is_seen = first <= position <= last
            if is_seen and is_chosen(choice, chosen_at, position):
                cell = base + cell_of(inputs, t, place(position, how.pool))
                score = mul(dot(how.rows, start, keys, cell, how.head_dim), np.float32(how.scale))
                scores[i] = fma(-np.float32(slope), np.float32(last - position), capped(score, how.cap))
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


def _of_several(read_eight, eight, place, n):
    """Two lane functions: one reads eight values of n positions, the other adds them to sums, times their weights."""
    if n == 1:

        @lane
        def read(inputs, t, values, base, dim, i, position, step, pool):
            return read_eight(values, base + cell_of(inputs, t, place(position, pool)), dim, i)

        @lane
        def add_to(sums, held, i, weights, at, step):
            a, b, c, d, e, f, g, h = eight(held, i)
            weight = weights[at]
            sums[0], sums[1], sums[2] = fma(weight, a, sums[0]), fma(weight, b, sums[1]), fma(weight, c, sums[2])
            sums[3], sums[4], sums[5] = fma(weight, d, sums[3]), fma(weight, e, sums[4]), fma(weight, f, sums[5])
            sums[6], sums[7] = fma(weight, g, sums[6]), fma(weight, h, sums[7])

        return read, add_to
    m = n // 2
    read_half, add_half = _of_several(read_eight, eight, place, m)

    @lane
    def read_both(inputs, t, values, base, dim, i, position, step, pool):
        first = read_half(inputs, t, values, base, dim, i, position, step, pool)
        return first, read_half(inputs, t, values, base, dim, i, position + m * step, step, pool)

    @lane
    def add_both(sums, held, i, weights, at, step):
        add_half(sums, held[0], i, weights, at, step)
        add_half(sums, held[1], i, weights, at + m * step, step)

    return read_both, add_both


def _mix(read_eight, eight, place):
    read, add_to = _of_several(read_eight, eight, place, 1)
    read_several, add_several = _of_several(read_eight, eight, place, _AHEAD)

    @lane
    def mix(inputs, t, weights, values, base, dim, i, seen, pool, group, n_groups, sums):
        """Make `sums` eight values, from the i-th on, of the mix of a group's positions: every n-th, of n groups."""
        split, first, last = seen
        for j in range(8):
            sums[j] = np.float32(0)
        start = split * SPLIT
        begin = max(first, start)
        position, end = begin + group - remainder(begin, n_groups), min(last + 1, start + SPLIT)
        if position < begin:
            position += n_groups
        while position + (_AHEAD - 1) * n_groups < end:
            held = read_several(inputs, t, values, base, dim, i, position, n_groups, pool)
            add_several(sums, held, i, weights, position - start, n_groups)
            position += _AHEAD * n_groups
        while position < end:  # of a range that steps by a variable, numba divides to know its length
            held = read(inputs, t, values, base, dim, i, position, n_groups, pool)
            add_to(sums, held, i, weights, position - start, n_groups)
            position += n_groups

    return mix


def _attend(type_k, type_v, *, is_pooled=False):
    place = _end if is_pooled else _own
    scores_of, mix = _scores(DOT[type_k], place), _mix(*EIGHT[type_v], place)
    name = f"attend_{'pooled' if is_pooled else type_k}_{type_v}"

    @kernel("j", AttendArgs, CacheArgs, CacheArgs, ChoiceArgs, MergeArgs, TargetArgs, name=name)
    def attend(inputs, how, keys, values, choice, merge, to):
        """What one split gives one head of one token: (value_dim,) mixed, the largest score, and the sum of the weights.

        The last block of a head, or of as many as have whole units, merges what all splits gave: of pooled rows also those of
        the tokens' own rows, which come before them.

        Args:
            inputs: Of the pass.
            how: See `AttendArgs`.
            keys, values: Caches (slots, n_kv_heads, length, …).
            choice: What tokens see.
            merge: See `MergeArgs`.
            to: With a width of 0 nothing is merged.
        """
        split, head, t = cuda.blockIdx.x, cuda.blockIdx.y, how.first_token + cuda.blockIdx.z
        if t >= inputs[N_TOKENS]:
            return
        position = last = last_own = inputs[POSITIONS + t]
        if how.sees_block and not is_pooled:
            last = last_own = np.int32(inputs[BRANCHES + t] - 1)
        first = first_own = max(first_seen(position, how.window), first_of_chunk(position, how.chunk))
        if is_pooled:
            first, last = np.int32(0), quotient(position + 1, how.pool) - 1
        is_seen = split * SPLIT <= last and (split + 1) * SPLIT > first
        if not is_seen and (last >= 0 or split > 0):  # where no pooled row is seen, one block comes to merge the others
            return
        scores = cuda.shared.array(SPLIT, np.float32)
        parts_of_warps = cuda.shared.array(_WARPS, np.float32)
        most_of_warps = cuda.shared.array(_WARPS, np.float32)
        staged = cuda.shared.array(_STAGED, np.float32)
        mixed = cuda.local.array(8, np.float32)
        thread, parts, n_heads, value_dim, n_splits = cuda.threadIdx.x, how.parts, how.n_heads, how.value_dim, how.n_splits
        group = quotient(head, quotient(n_heads, how.n_kv_heads))
        base = (inputs[SLOTS + t] * how.n_kv_heads + group) * how.length
        chosen_at, start = t * choice.stride + group * choice.group_stride, t * how.stride + head * how.head_dim
        slope = how.slopes[head] if how.has_slopes else np.float32(0)
        seen = (split, first, last)
        most = warp_max(scores_of(inputs, t, how, start, keys, base, choice, chosen_at, slope, seen, thread, scores))
        if thread % WARP == 0:
            most_of_warps[thread // WARP] = most
        cuda.syncthreads()
        for warp in range(_WARPS):
            most = larger(most, most_of_warps[warp])
        total = sum_of_block(_weights_of(scores, most, thread), parts_of_warps)  # all weights are there when it ends
        n_eights = value_dim >> 3
        n_groups = max(1, quotient(ATTEND_THREADS, n_eights))
        at_part = (((t - how.first_token) * n_heads + head) * n_splits + how.first_split + split) * (value_dim + 2)
        for at in range(thread, n_groups * n_eights, ATTEND_THREADS):
            group, j = quotient(at, n_eights), remainder(at, n_eights)
            mix(inputs, t, scores, values, base, value_dim, 8 * j, seen, how.pool, group, n_groups, mixed)
            for i in range(8):
                staged[group * value_dim + i * n_eights + j] = mixed[i]
        cuda.syncthreads()
        for i in range(thread, value_dim, ATTEND_THREADS):
            at = i % 8 * n_eights + i // 8
            value = staged[at]
            for group in range(1, n_groups):
                value = add(value, staged[group * value_dim + at])
            parts[at_part + i] = value
        if thread == 0:
            parts[at_part + value_dim] = most
            parts[at_part + value_dim + 1] = total
        if to.width == 0:
            return
        n_alike, n_seen = n_joined(value_dim), quotient(last + SPLIT, SPLIT) - first // SPLIT
        first_head = head // n_alike * n_alike
        n, counter = min(n_alike, n_heads - first_head), t * quotient(n_heads + n_alike - 1, n_alike) + head // n_alike
        if not is_last_block(how.counters, counter, n * max(1, n_seen)):
            return
        own, other_first, other_end = (first_own // SPLIT, last_own // SPLIT + 1), 0, 0
        if is_pooled:
            other_first, other_end = how.first_split, how.first_split + n_seen
        row, other = (t - how.first_token) * n_heads + first_head, (other_first, other_end)
        merge_heads(inputs, t, row, first_head, n, own, other, parts, value_dim, n_splits, merge, to)

    return attend


ATTEND = {(type_k, type_v): _attend(type_k, type_v) for type_k in DOT for type_v in EIGHT}
"""Kernels by the types of caches."""
ATTEND_POOLED = {kind: _attend(kind, kind, is_pooled=True) for kind in DOT}
"""Kernels by the type of a cache whose rows are keys and values both, and stand for blocks of positions."""
