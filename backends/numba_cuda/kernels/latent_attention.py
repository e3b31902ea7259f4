"""Latent attention: a position's latent vector is read once for many heads, which tensor cores multiply it with.

A block takes one split of positions (see `attention`) and 16 or 32 heads of one token: the rows of an instruction are heads,
never tokens, so a token's result depends on no other one. Few splits are merged by the last block of some heads to end.
"""

import numpy as np

from augury.backends.numba_cuda.kernels import instructions as gpu
from augury.backends.numba_cuda.kernels.attention import ChoiceArgs, is_chosen
from augury.backends.numba_cuda.kernels.cells import EIGHT, CacheArgs
from augury.backends.numba_cuda.kernels.dialect import WARP, cuda, is_last_block, kernel, lane, quad_max, record, together
from augury.backends.numba_cuda.kernels.fragments import (
    ATTEND_THREADS,
    ATTEND_WARPS,
    HEADS,
    N_HELD,
    OF_WARP,
    STAGED,
    STEP,
    TILES,
    VALUES,
    clear,
    for_each,
    fragments_of,
    query_of,
    rest_of,
    two_halves,
    weights_of,
    words_of,
)
from augury.backends.numba_cuda.kernels.heads import TurnArgs, turned_value
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of, first_seen
from augury.backends.numba_cuda.kernels.quantise import TargetArgs, put
from augury.backends.numba_cuda.kernels.splits import SPLIT

MAX_LATENT = VALUES * ATTEND_WARPS
MOST_MERGED = 8  # splits that a block merges: reading more of them for 16 heads would take longer than a launch of many blocks
_NONE = float("-inf")


@lane
def _most(sums, at, cells, column):
    """The largest of a row's scores that a lane has, once masked ones are -inf."""
    most = np.float32(_NONE)
    for tile in range(TILES):
        for i in range(2):
            score = np.float32(_NONE) if cells[column + 8 * tile + i] < 0 else sums[at + 4 * tile + i]
            sums[at + 4 * tile + i] = score
            most = gpu.larger(most, score)
    return most


@lane
def _share(parts, at, step, n, sink, shares, first):
    """Write the weight of each of n splits in a head's mix; returns the sum of the weights: see `splits.merged`."""
    most = np.float32(sink)
    for split in range(n):
        most = gpu.larger(most, parts[at + split * step])
    total = gpu.exp(gpu.add(np.float32(sink), -most))
    for split in range(n):
        share = gpu.exp(gpu.add(parts[at + split * step], -most))
        shares[first + split] = share
        total = gpu.fma(parts[at + split * step + 1], share, total)
    return total


@lane
def _merged(parts, at, step, n, shares, first, total):
    """A value of a head's mix."""
    value = np.float32(0)
    for split in range(n):
        value = gpu.fma(parts[at + split * step], shares[first + split], value)
    return gpu.div(value, total)


LatentArgs = record(
    "LatentArgs",
    f="absorbed heads factors parts sinks",
    w="counters",
    i="stride n_heads head_dim n_latent dim has_factors length window n_splits n first_token has_sinks",
    r="scale",
)
"""The queries of latent attention.

`absorbed` (n_heads * n, n_latent) is the first part of queries, head by head, of n tokens that there is room for. `heads`
(tokens, stride) each begin with heads of `head_dim` values, of which the last ones are turned. `factors` (positions,) are of
queries. `parts` (tokens from `first_token` on, n_heads, n_splits, n_latent + 2) are the results of splits, `counters` one for
each token and the heads of a block. `sinks` (n_heads,) are scores with nothing to mix, if `has_sinks`. A token sees `window`
positions; 0: all. A position has `dim` values in the cache.
"""


@lane
def _query(params, turn, at_absorbed, at_turned, at_turns, i, factor):
    """Value i of a head's query, times its factor: first the absorbed ones, then the turned ones."""
    if i < params.n_latent:
        return gpu.mul(params.absorbed[at_absorbed + i], factor)
    if i >= params.dim:
        return np.float32(0)
    return gpu.mul(turned_value(params.heads, at_turned, turn, i - params.n_latent, at_turns), factor)


def _stage_of(n_rows):
    """The lane function that stages queries of n_rows times 16 heads."""
    n_words = words_of(n_rows)

    @lane
    def stage_queries(params, turn, at_turns, t, first_head, factor, chunk, thread, staged):
        """Stage fragments of queries, of dimensions from `chunk` on: of each word the nearest halves, then the remainders."""
        n_turned = params.dim - params.n_latent
        n_there = n_rows * HEADS // 2 * min(STAGED, (params.dim - chunk + STEP - 1) // STEP * STEP)
        for word in range(thread, n_there, ATTEND_THREADS):
            row, i = query_of(word, n_rows)
            head, i = first_head + row, chunk + i
            a, b = np.float32(0), np.float32(0)
            if head < params.n_heads:
                at, turned = (
                    (head * params.n + t) * params.n_latent,
                    t * params.stride + (head + 1) * params.head_dim - n_turned,
                )
                a = _query(params, turn, at, turned, at_turns, i, factor)
                b = _query(params, turn, at, turned, at_turns, i + 1, factor)
            staged[word], staged[n_words + word] = two_halves(a, b)

    return stage_queries


def _attend(kind, n_rows):
    read_keys, add_scores, read_values, add_values = fragments_of(kind, n_rows)
    stage_queries = _stage_of(n_rows)
    (weigh_rows, stage_weights), n_words, n_held = weights_of(n_rows), words_of(n_rows), N_HELD + rest_of(kind)
    n_sums, n_values, n_heads_of_block = 4 * TILES * n_rows, 32 * n_rows, HEADS * n_rows
    n_staged, n_of_warps, n_shares = 2 * n_words, ATTEND_WARPS * n_heads_of_block, HEADS * MOST_MERGED

    @together
    def most_of_row(row, warp, i, sums, cells, most_of_warps):
        """The largest of the scores that a warp has of every eighth head."""
        most = quad_max(_most(sums, 4 * (row // 2 * TILES) + 2 * (row % 2), cells, OF_WARP * warp + 2 * (i % 4)))
        if i % 4 == 0:
            most_of_warps[warp * n_heads_of_block + 8 * row + i // 4] = most

    most_of_rows = for_each(2 * n_rows, most_of_row)

    @lane
    def store(parts, to, head_stride, sums, first_head, n_heads, first, n_latent, i):
        """Store the mix of 64 dimensions of all heads."""
        for row in range(n_rows):
            for half in range(2):
                head = HEADS * row + 8 * half + i // 4
                if first_head + head < n_heads:
                    for other in range(2):
                        for tile in range(8):
                            dim = first + 8 * (2 * (i % 4) + other) + tile
                            if dim < n_latent:
                                parts[to + head * head_stride + dim] = sums[4 * (8 * row + tile) + 2 * half + other]

    name = f"attend_latent_{kind}_{n_rows}"

    @kernel("j", LatentArgs, TurnArgs, CacheArgs, ChoiceArgs, TargetArgs, name=name, most_registers=128)
    def attend_latent(inputs, params, turn, cache, choice, to):
        """The result of one split for some heads of one token: (n_latent,) mixed, largest score, sum of weights.

        Args:
            turn: The rope of queries.
            cache: (slots, length, …).
            choice: The positions that tokens see, for all heads.
            to: (n_heads * n, width) the merged values, head by head; none with a width of 0.
        """
        split, first_head, t = cuda.blockIdx.x, n_heads_of_block * cuda.blockIdx.y, params.first_token + cuda.blockIdx.z
        if t >= inputs[N_TOKENS]:
            return
        n_heads, n_latent, dim, n_splits, parts = params.n_heads, params.n_latent, params.dim, params.n_splits, params.parts
        last = inputs[POSITIONS + t]
        first, start = first_seen(last, params.window), split * SPLIT
        if start > last or start + SPLIT <= first:
            return
        staged = cuda.shared.array(n_staged, np.uint32)
        cells = cuda.shared.array(SPLIT, np.int32)
        most_of_warps = cuda.shared.array(n_of_warps, np.float32)
        totals_of_warps = cuda.shared.array(n_of_warps, np.float32)
        sums = cuda.local.array(n_sums, np.float32)
        held = cuda.local.array(n_held, np.uint32)
        thread = cuda.threadIdx.x
        warp, i = thread // WARP, thread % WARP
        position, cell = start + thread, np.int32(-1)
        is_seen = first <= position <= last
        if is_seen and is_chosen(choice, t * choice.stride, position):
            cell = np.int32(inputs[SLOTS + t] * params.length + cell_of(inputs, t, position))
        cells[thread] = cell
        factor = gpu.mul(params.factors[last] if params.has_factors else np.float32(1), np.float32(params.scale))
        has_seen = start + OF_WARP * warp <= last and start + OF_WARP * (warp + 1) > first
        clear(sums, n_sums)
        for chunk in range(0, dim, STAGED):
            cuda.syncthreads()
            stage_queries(params, turn, 2 * turn.n_pairs * last, t, first_head, factor, chunk, thread, staged)
            cuda.syncthreads()
            if has_seen:
                for step in range((min(STAGED, dim - chunk) + STEP - 1) // STEP):
                    read_keys(cache, cells, OF_WARP * warp + i // 4, dim, chunk + STEP * step + 8 * (i % 4), held, 0)
                    add_scores(staged, step, i, held, 0, sums)
        most_of_rows(warp, i, sums, cells, most_of_warps)
        cuda.syncthreads()  # all threads have read these staged values, too
        weigh_rows(warp, i, sums, most_of_warps, totals_of_warps)
        stage_weights(sums, warp, i, staged)
        cuda.syncthreads()
        head_stride = n_splits * (n_latent + 2)
        at_part = (((t - params.first_token) * n_heads + first_head) * n_splits + split) * (n_latent + 2)
        if thread < n_heads_of_block and first_head + thread < n_heads:
            most, total = most_of_warps[thread], totals_of_warps[thread]
            for other in range(1, ATTEND_WARPS):
                most = gpu.larger(most, most_of_warps[other * n_heads_of_block + thread])
                total = gpu.add(total, totals_of_warps[other * n_heads_of_block + thread])
            parts[at_part + thread * head_stride + n_latent] = most
            parts[at_part + thread * head_stride + n_latent + 1] = total
        values = cuda.local.array(n_values, np.float32)
        if VALUES * warp < n_latent:
            clear(values, n_values)
            for step in range(max(0, first - start) // 16, min(SPLIT, last + 1 - start + 15) // 16):
                read_values(cache, cells, 16 * step + 2 * (i % 4), (0, SPLIT), dim, VALUES * warp + 8 * (i // 4), held, 0)
                add_values(staged, step, i, held, 0, values, (True, True))
            store(parts, at_part, head_stride, values, first_head, n_heads, VALUES * warp, n_latent, i)
        if n_rows > 1:  # which are for many splits
            return
        first_split, n_seen = first // SPLIT, last // SPLIT + 1 - first // SPLIT
        counter = t * gpu.quotient(n_heads + HEADS - 1, HEADS) + cuda.blockIdx.y
        if to.width == 0 or not is_last_block(params.counters, counter, n_seen):
            return
        shares, part = cuda.shared.array(n_shares, np.float32), n_latent + 2
        at_part = (((t - params.first_token) * n_heads + first_head) * n_splits + first_split) * part
        if thread < HEADS and first_head + thread < n_heads:
            sink = params.sinks[first_head + thread] if params.has_sinks else np.float32(_NONE)
            at = at_part + thread * n_splits * part + n_latent
            totals_of_warps[thread] = _share(parts, at, part, n_seen, sink, shares, thread * MOST_MERGED)
        cuda.syncthreads()
        n_units = to.width // WARP
        for unit in range(warp, min(HEADS, n_heads - first_head) * n_units, ATTEND_WARPS):
            head = gpu.quotient(unit, n_units)
            j, value, row = WARP * (unit - head * n_units) + i, np.float32(0), (first_head + head) * params.n + t
            if j < n_latent:
                at, total = at_part + head * n_splits * part + j, totals_of_warps[head]
                value = _merged(parts, at, part, n_seen, shares, head * MOST_MERGED, total)
            put(value, i, to, row * to.width + j, row * n_units + unit - head * n_units)

    return attend_latent


ATTEND_LATENT = {(kind, n_rows): _attend(kind, n_rows) for kind in EIGHT for n_rows in (1, 2) if kind == "f16" or n_rows == 1}
"""Kernels by the type of the cache, and how many times 16 heads a block has: of more than 16 nothing is merged."""
