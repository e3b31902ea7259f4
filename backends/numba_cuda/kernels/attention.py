"""Attention in splits of logical positions: a token's sums depend neither on where its cells lie nor on the rest of the pass.

A split is 256 positions, counted from 0. Within it scores become weights relative to its own largest score; splits are then
merged, see `splits`. A split of which a token sees nothing takes no part.

A block takes one split, and the heads that share its keys and values, of a tile of neighbouring tokens: it reads keys and
values once for up to 16 rows, which tensor cores multiply them with (`fragments`). A row of an instruction depends on no other
row. It may depend on values whose weight is 0, because these may affect an instruction's rounding. So 16 positions of which
some tokens of a tile do not see all are mixed for each token by itself: masked values are then 0, and other rows stay.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.activation import capped
from augury.backends.numba_cuda.kernels.cells import EIGHT, CacheArgs
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, is_last_block, kernel, lane, quad_max, record, together
from augury.backends.numba_cuda.kernels.fragments import (
    ATTEND_THREADS,
    ATTEND_WARPS,
    HEADS,
    N_HELD,
    OF_WARP,
    STEP,
    TILES,
    VALUES,
    clear,
    fragments_of,
    query_of,
    rest_of,
    two_halves,
    weights_of,
    words_of,
)
from augury.backends.numba_cuda.kernels.inputs import BRANCHES, N_TOKENS, POSITIONS, SLOTS, cell_of, first_of_chunk, first_seen
from augury.backends.numba_cuda.kernels.quantise import TargetArgs
from augury.backends.numba_cuda.kernels.splits import SPLIT, MergeArgs, merge_head, n_joined, put_heads

_N_SUMS = 4 * VALUES // 8  # of a lane: of 16 rows and the dimensions that a warp mixes
_WORDS = WARP + 1  # of a sum of all lanes that is staged: one more than lanes, so that fewer of them meet in a bank
_NONE = float("-inf")
ChoiceArgs = record("ChoiceArgs", j="chosen", i="block_size stride group_stride")
"""The positions that tokens see: `chosen` (tokens, stride), of each group of heads `group_stride` further on, or of all.

It is not 0 for blocks of `block_size` positions that are seen; with a size of 0 all are.
"""
AttendArgs = record(
    "AttendArgs",
    f="rows slopes parts",
    w="counters",
    i="stride n_heads n_kv_heads n_of_group head_dim value_dim length window chunk sees_block n_splits has_slopes pool"
    " n_doublings first_token step first_split",
    r="scale cap",
)
"""The queries of attention, and its range.

`rows` (tokens, stride) each begin with the heads of queries. `slopes` (n_heads,) are a score's loss for each position of
distance. `parts` (tokens from `first_token` on, n_heads, n_splits, value_dim + 2) are the results of splits, from `first_split`
on, and `counters` one for each token and merge. A token sees `window` positions (0: all; and all pooled rows), and none before
the last multiple of `chunk` (0: all). If it `sees_block`, it sees the later tokens of its slot in the pass, too. A pooled row
stands for `pool` positions; it then counts as a position here. Scores s become cap * tanh(s / cap), unless cap is 0.
`n_of_group` heads attend to the same. A tile of tokens is one, `n_doublings` times doubled, and ends at multiples of that.
Blocks are one token apart, `step` times doubled.
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
    """Whether a position is in a list, see `ChoiceArgs`."""
    return choice.block_size == 0 or choice.chosen[at + gpu.quotient(position, choice.block_size)] != 0


@lane
def _seen(inputs, params, t, position):
    """The first and the last position that token t sees, or one like it at another position."""
    first = max(first_seen(position, params.window), first_of_chunk(position, params.chunk))
    return np.int32(first), np.int32(inputs[BRANCHES + t] - 1) if params.sees_block else position


@lane
def _seen_blocks(inputs, params, t, position):
    """The first and the last block of positions, whose pooled rows a token sees."""
    return np.int32(0), np.int32(gpu.quotient(position + 1, params.pool) - 1)


@lane
def _are_alike(inputs, t, other):
    """Whether two tokens are of a run: of the same slot, as far apart as their positions, which all are in their own cells."""
    position, other_position = inputs[POSITIONS + t], inputs[POSITIONS + other]
    is_straight = (inputs[BRANCHES + t] > position) & (inputs[BRANCHES + other] > other_position)
    return is_straight & (inputs[SLOTS + t] == inputs[SLOTS + other]) & (other_position - position == other - t)


@lane
def _tile(inputs, params, t, n_tokens, position):
    """The end of the tile that begins with token t, t if none does, and the position of its last token."""
    end, others = t, (1 << params.n_doublings) - 1
    if t & others == 0 or not _are_alike(inputs, t - 1, t):
        end = np.int32(t + 1)
        while end & others and end < n_tokens and _are_alike(inputs, t, end):
            end = np.int32(end + 1)
    return end, np.int32(position + end - t - 1)


@lane
def _clamped(position, begin, end):
    return min(max(position, begin), end)


@lane
def _see_alike(begin, end, ranges):
    """Whether all tokens see the same ones of the positions between."""
    low_first, high_first, low_last, high_last = ranges
    has_one_first = _clamped(low_first, begin, end) == _clamped(high_first, begin, end)
    return has_one_first and _clamped(low_last, begin - 1, end - 1) == _clamped(high_last, begin - 1, end - 1)


@lane
def _cap(sums, n, cap):
    if cap != 0:
        for j in range(n):
            sums[j] = capped(sums[j], cap)


@lane
def _slope(sums, at, distance, slope):
    """Subtract the loss by distance from a row's scores: `distance` is the first one's."""
    for tile in range(TILES):
        for i in range(2):
            to = at + 4 * tile + i
            sums[to] = gpu.fma(-np.float32(slope), np.float32(np.int32(distance - 8 * tile - i)), sums[to])


@lane
def _most(sums, at, cells, column, position, seen):
    """The largest of a row's scores that a lane has, once masked ones are -inf."""
    most, (first, last) = np.float32(_NONE), seen
    for tile in range(TILES):
        for i in range(2):
            to, there = at + 4 * tile + i, np.int32(position + 8 * tile + i)
            is_seen = first <= there <= last
            sums[to] = sums[to] if is_seen and cells[column + 8 * tile + i] >= 0 else np.float32(_NONE)
            most = gpu.larger(most, sums[to])
    return most


@lane
def _prefetch(cache, cell, dim):
    """Let the halves of a cell come to the nearer memory."""
    for i in range(0, dim, 64):
        gpu.prefetch(cache.words, (cell * dim + i) >> 1)


def _attend(type_k, type_v, *, is_pooled=False):
    place, seen = (_end, _seen_blocks) if is_pooled else (_own, _seen)
    read_keys, add_scores, _, _ = fragments_of(type_k, 1)
    _, _, read_values, add_values = fragments_of(type_v, 1)
    weigh_rows, stage_weights = weights_of(1)
    n_words, is_prefetched = words_of(1), type_v == "f16"
    key_steps, value_steps = 4 if type_k == "f16" else 1, 2 if type_v == "f16" else 1  # that a lane reads at once
    n_held = max(N_HELD * steps + rest_of(kind) for steps, kind in ((key_steps, type_k), (value_steps, type_v)))
    n_staged, n_of_warps, n_scores = ATTEND_WARPS * _N_SUMS * _WORDS, ATTEND_WARPS * HEADS, 4 * TILES
    name, most_registers = f"attend_{'pooled' if is_pooled else type_k}_{type_v}", 128 if type_v == "f16" else None

    @lane
    def stage_queries(params, starts, chunk, thread, values, staged):
        """Stage fragments of queries, of the dimensions that are read at once from `chunk` on."""
        row, i = query_of(thread, 1)
        start, i = starts[row], np.int32(chunk + i)
        for step in range(key_steps):
            is_there = start >= 0 and i + STEP * step < params.head_dim
            values[2 * step] = params.rows[start + i + STEP * step] if is_there else np.float32(0)
            values[2 * step + 1] = params.rows[start + i + STEP * step + 1] if is_there else np.float32(0)
        for step in range(key_steps):
            a, b = gpu.mul(values[2 * step], np.float32(params.scale)), gpu.mul(values[2 * step + 1], np.float32(params.scale))
            word = thread + ATTEND_THREADS * step
            staged[word], staged[n_words + word] = two_halves(a, b)

    @together
    def add_steps(cache, cells, step, end, dim, first, i, staged, held, mixed):
        """Add a few steps of 16 positions to the mix."""
        for j in range(value_steps):
            read_values(cache, cells, 16 * (step + j) + 2 * (i % 4), (0, 16 * end), dim, first, held, N_HELD * j)
        for j in range(value_steps):
            if step + j < end:
                add_values(staged, step + j, i, held, N_HELD * j, mixed, (True, True))

    @together
    def add_apart(cache, cells, step, start, dim, first, i, tile, staged, held, mixed):
        """Add the visible ones of 16 positions to the mix of each token of a tile: how many, and what they see."""
        n_of_tile, firsts, lasts = tile
        for token in range(n_of_tile):
            begin, end = max(16 * step, firsts[token] - start), min(16 * step + 16, lasts[token] + 1 - start)
            if begin < end:
                read_values(cache, cells, 16 * step + 2 * (i % 4), (begin, end), dim, first, held, 0)
                rows = (i // 4 & n_of_tile - 1 == token, (i // 4 + 8) & n_of_tile - 1 == token)
                add_values(staged, step, i, held, 0, mixed, rows)

    @lane
    def stage_mix(mixed, warp, i, staged):
        for j in range(_N_SUMS):
            staged[(warp * _N_SUMS + j) * _WORDS + i] = gpu.bits_of(mixed[j])

    @lane
    def store_mix(staged, n_groups, n_shares, places, parts, dim, thread, sums):
        """Store the mix of all rows, once the warps' parts are added up; a thread takes every fourth row."""
        row, i, n_words_of_warp = thread // VALUES, thread % VALUES, _N_SUMS * _WORDS
        for group in range(n_groups):
            word = np.uint32(group * n_words_of_warp + (4 * (i % 8) + i // 8 % 2) * _WORDS + 4 * row + i // 16)
            clear(sums, 4)
            for _ in range(n_shares):
                for j in range(4):
                    sums[j] = gpu.add(sums[j], gpu.float_of(staged[word + 16 * (j % 2) + 2 * _WORDS * (j // 2)]))
                word = np.uint32(word + n_groups * n_words_of_warp)
            for j in range(4):
                place = places[row + 4 * j]
                if place >= 0 and VALUES * group + i < dim:
                    parts[place + VALUES * group + i] = sums[j]

    @kernel("j", AttendArgs, CacheArgs, CacheArgs, ChoiceArgs, MergeArgs, TargetArgs, name=name, most_registers=most_registers)
    def attend(inputs, params, keys, values, choice, merge, to):
        """The result of one split for some heads of a tile of tokens: (value_dim,) mixed, largest score, sum of weights.

        The last block of these heads, or of as many as have whole units, merges all splits: with pooled rows also the splits of
        the tokens' own rows, which come before them.

        Args:
            keys, values: Caches (slots, n_kv_heads, length, …).
            choice: The positions that tokens see; where these differ, a tile is one token.
            to: With a width of 0 nothing is merged.
        """
        t = np.int32(params.first_token + (cuda.blockIdx.z << params.step))
        n_tokens, low = gpu.read_early(inputs, N_TOKENS), gpu.read_early(inputs, POSITIONS + t)
        slot, branch = gpu.read_early(inputs, SLOTS + t), gpu.read_early(inputs, BRANCHES + t)
        end, high = _tile(inputs, params, t, n_tokens, low)
        if t >= n_tokens or end == t:
            return
        (low_first, low_last), (high_first, high_last) = seen(inputs, params, t, low), seen(inputs, params, t, high)
        split, ranges = np.int32(low_first // SPLIT + cuda.blockIdx.x), (low_first, high_first, low_last, high_last)
        start = np.int32(split * SPLIT)
        if start > high_last and (high_last >= 0 or split > 0):  # where no pooled row is seen, one block merges the others
            return
        staged = cuda.shared.array(n_staged, np.uint32)
        cells = cuda.shared.array(SPLIT, np.int32)
        most_of_warps = cuda.shared.array(n_of_warps, np.float32)
        totals_of_warps = cuda.shared.array(n_of_warps, np.float32)
        starts = cuda.shared.array(HEADS, np.int32)
        firsts = cuda.shared.array(HEADS, np.int32)
        lasts = cuda.shared.array(HEADS, np.int32)
        places = cuda.shared.array(HEADS, np.int32)
        slopes = cuda.shared.array(HEADS, np.float32)
        scores = cuda.local.array(n_scores, np.float32)
        mixed = cuda.local.array(_N_SUMS, np.float32)
        held = cuda.local.array(n_held, np.uint32)
        thread = np.uint32(cuda.threadIdx.x)  # of an int numba asks whether it counts from an array's end
        parts, n_heads, value_dim, part = params.parts, params.n_heads, params.value_dim, params.value_dim + 2
        warp, i, n_splits = np.uint32(thread // WARP), np.uint32(thread % WARP), params.n_splits
        n_of_group, group, n_blocks = params.n_of_group, cuda.blockIdx.y, (params.n_of_group + HEADS - 1) // HEADS
        if n_blocks > 1:
            group = gpu.quotient(group, n_blocks)
        first_head = np.int32(group * n_of_group + HEADS * (cuda.blockIdx.y - group * n_blocks))
        n_of_token, n_of_tile = np.int32(min(HEADS, (group + 1) * n_of_group - first_head)), np.int32(1 << params.n_doublings)
        if thread < HEADS:
            starts[thread], firsts[thread], lasts[thread], places[thread], slopes[thread] = -1, 0, -1, -1, np.float32(0)
            token, head = np.int32(t + (thread & n_of_tile - 1)), np.int32(first_head + (thread >> params.n_doublings))
            if token < end and head < first_head + n_of_token:
                first, last = seen(inputs, params, token, inputs[POSITIONS + token])
                starts[thread], firsts[thread], lasts[thread] = token * params.stride + head * params.head_dim, first, last
                if start <= last and start + SPLIT > first:
                    places[thread] = (
                        ((token - params.first_token) * n_heads + head) * n_splits + params.first_split + split
                    ) * part
                if params.has_slopes:
                    slopes[thread] = params.slopes[head]
        position, cell = start + thread, np.int32(-1)
        is_seen = low_first <= position <= high_last
        if is_seen and is_chosen(choice, t * choice.stride + group * choice.group_stride, position):
            cell = place(position, params.pool)
            if end == t + 1 and cell >= branch:
                cell = cell_of(inputs, t, cell)
            cell = np.int32((slot * params.n_kv_heads + group) * params.length + cell)
            if is_prefetched:
                _prefetch(values, cell, value_dim)
        cells[thread] = cell
        column = np.uint32(OF_WARP * warp)
        has_seen = start + column <= high_last and start + column + OF_WARP > low_first
        clear(scores, n_scores)
        cuda.syncthreads()
        for chunk in range(0, params.head_dim, STEP * key_steps):
            for step in range(key_steps):
                read_keys(keys, cells, column + i // 4, params.head_dim, chunk + STEP * step + 8 * (i % 4), held, N_HELD * step)
            if chunk > 0:
                cuda.syncthreads()  # all threads have multiplied by the staged values
            stage_queries(params, starts, chunk, thread, mixed, staged)
            cuda.syncthreads()
            for step in range(key_steps):
                if has_seen and chunk + STEP * step < params.head_dim:
                    add_scores(staged, step, i, held, N_HELD * step, scores)
        _cap(scores, n_scores, params.cap)
        # 1, 2, 4 or 8 groups of 64 dimensions, and as many warps for each as there are
        doubled = int(value_dim > VALUES) + int(value_dim > 2 * VALUES) + int(value_dim > 4 * VALUES)
        n_groups, n_shares, n_steps, share = 1 << doubled, ATTEND_WARPS >> doubled, 2 << doubled, warp >> doubled
        first = np.int32(VALUES * (warp & n_groups - 1) + 8 * (i // 4))
        step = np.int32(max(share * n_steps, (low_first - start) // 16))
        end_step = np.int32(min((share + 1) * n_steps, (high_last - start) // 16 + 1))
        column += 2 * (i % 4)
        for half in range(2):
            row = i // 4 + 8 * half
            if params.has_slopes:
                _slope(scores, 2 * half, lasts[row] - start - column, slopes[row])
            most = quad_max(_most(scores, 2 * half, cells, column, start + column, (firsts[row], lasts[row])))
            if i % 4 == 0:
                most_of_warps[warp * HEADS + row] = most
        cuda.syncthreads()  # all threads have multiplied by these staged values, too
        weigh_rows(warp, i, scores, most_of_warps, totals_of_warps)
        stage_weights(scores, warp, i, staged)
        cuda.syncthreads()
        if thread < HEADS and places[thread] >= 0:
            most, total = most_of_warps[thread], totals_of_warps[thread]
            for other in range(1, ATTEND_WARPS):
                most = gpu.larger(most, most_of_warps[other * HEADS + thread])
                total = gpu.add(total, totals_of_warps[other * HEADS + thread])
            parts[places[thread] + value_dim] = most
            parts[places[thread] + value_dim + 1] = total
        clear(mixed, _N_SUMS)
        while step < end_step:
            next_step = np.int32(min(end_step, step + value_steps))
            if end == t + 1 or _see_alike(np.int32(start + 16 * step), np.int32(start + 16 * next_step), ranges):
                add_steps(values, cells, step, end_step, value_dim, first, i, staged, held, mixed)
            else:
                for each in range(step, next_step):
                    add_apart(values, cells, each, start, value_dim, first, i, (n_of_tile, firsts, lasts), staged, held, mixed)
            step = next_step
        cuda.syncthreads()  # all threads have multiplied by the staged values
        stage_mix(mixed, warp, i, staged)
        cuda.syncthreads()
        store_mix(staged, n_groups, n_shares, places, parts, value_dim, thread, mixed)
        if to.width == 0:
            return
        n_alike, n_seen = n_joined(n_of_group * value_dim), high_last // SPLIT - low_first // SPLIT + 1
        first_group = group // n_alike * n_alike
        n = min(n_alike, params.n_kv_heads - first_group)
        if not is_last_block(params.counters, t * params.n_kv_heads + first_group, n * n_blocks * max(1, n_seen)):
            return
        first_head, n, step = first_group * n_of_group, n * n_of_group, n_splits * part
        for at in range(warp, (end - t) * n, ATTEND_WARPS):
            token, head = t + gpu.quotient(at, n), first_head + gpu.remainder(at, n)
            first, last = _seen(inputs, params, token, inputs[POSITIONS + token])
            first_split, n_others = first // SPLIT, np.int32(0)
            if is_pooled:
                n_others = seen(inputs, params, token, inputs[POSITIONS + token])[1] // SPLIT + 1
            splits = (first_split, last // SPLIT + 1 - first_split, params.first_split, n_others)
            sink = merge.sinks[head] if merge.has_sinks else np.float32(_NONE)
            merge_head(parts, ((token - params.first_token) * n_heads + head) * step, splits, value_dim, sink)
        cuda.syncthreads()
        for token in range(t, end):
            at = ((token - params.first_token) * n_heads + first_head) * step
            put_heads(inputs, token, first_head, n, parts, at, value_dim, step, merge, to)

    return attend


ATTEND = {(type_k, type_v): _attend(type_k, type_v) for type_k in EIGHT for type_v in EIGHT}
"""Kernels by the types of caches."""
ATTEND_POOLED = {kind: _attend(kind, kind, is_pooled=True) for kind in EIGHT}
"""Kernels by the type of a cache whose rows are keys and values both, and stand for blocks of positions."""
