"""Which positions, or blocks of them, tokens attend to: those with the highest scores, see `augury.blocks.indexer`."""

import numpy as np

from augury.backends.numba_cuda.kernels import dialect, instructions as gpu
from augury.backends.numba_cuda.kernels.cells import DOT, EIGHT, CacheArgs
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, cuda, is_last_block, kernel, lane, together, warp_max
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of
from augury.backends.numba_cuda.kernels.norm import sum_of_block

_WARPS = THREADS // WARP
_LOWEST, _HIGHEST = float("-inf"), float("inf")
BlocksArgs = dialect.record("BlocksArgs", f="rows scores", j="chosen", i="stride dim size length n_blocks n_chosen")
"""Blocks of `size` positions, `n_chosen` at most of which are chosen.

`rows` (n, stride) each begin with queries of `dim` values. `scores`, to work in, and `chosen` are (n, n_blocks), or of groups
(n, n_groups, n_blocks). Caches of keys have `length` cells.
"""


@lane
def _is_above(score, i, key, bound):
    """Whether a score is higher than that of a key, or the same and before a bound: bits that rise with the scores."""
    bits = gpu.bits_of(score)
    order = np.uint32(~bits) if bits >> np.uint32(31) else np.uint32(bits | np.uint32(0x80000000))
    return order > key or (order == key and i < bound)


@lane
def _count(scores, start, n, key, bound, first):
    """How many of every n-th score are above, see `_is_above`: a float, exact up to 2^24."""
    total = np.float32(0)
    for i in range(first, n, THREADS):
        if _is_above(scores[start + i], i, key, bound):
            total = gpu.add(total, np.float32(1))
    return total


@lane
def _mark(scores, start, n, key, bound, chosen, first):
    for i in range(first, n, THREADS):
        chosen[start + i] = 1 if _is_above(scores[start + i], i, key, bound) else 0


@together
def _count_all(scores, start, n, key, bound, parts):
    total = sum_of_block(_count(scores, start, n, key, bound, cuda.threadIdx.x), parts)
    cuda.syncthreads()  # all threads have read before the next write
    return total


@together
def _choose_best(scores, start, n, n_chosen, chosen, parts):
    """Write 1 for the highest of n scores, of equal ones the first, else 0. All threads of a block take part.

    The least score that is chosen is found bit by bit, by counting; of equal ones then where the last one is.
    """
    key, bound, n_above, n_wanted = np.uint32(0), np.int32(n), np.float32(n), np.float32(n_chosen)
    if n > n_chosen:
        for i in range(32):
            if n_above > n_wanted:
                higher = np.uint32(key | np.uint32(np.uint32(0x80000000) >> np.uint32(i)))
                n_higher = _count_all(scores, start, n, higher, n, parts)
                if n_higher >= n_wanted:
                    key, n_above = higher, n_higher
        if n_above > n_wanted:
            low = np.int32(0)
            while bound - low > 1:
                middle = np.int32((low + bound) >> 1)
                if _count_all(scores, start, n, key, middle, parts) <= n_wanted:
                    low = middle
                else:
                    bound = middle
            bound = low
    _mark(scores, start, n, key, bound, chosen, cuda.threadIdx.x)


def _score(dot):
    @lane
    def score_of(inputs, t, rows, start, keys, base, n_heads, dim, shares, share, position):
        """The sum over heads of a weight times the positive part of q k."""
        cell, total = base + cell_of(inputs, t, position), np.float32(0)
        for head in range(n_heads):
            product = gpu.larger(dot(rows, start + head * dim, keys, cell, dim), np.float32(0))
            weight = gpu.mul(rows[start + shares + head], np.float32(share)) if shares else np.float32(share)
            total = gpu.fma(weight, product, total)
        return total

    return score_of


def _choose(kind, dot):
    score_of = _score(dot)

    @kernel("j", BlocksArgs, CacheArgs, "wiir", name=f"choose_{kind}")
    def choose(inputs, params, keys, counters, n_heads, shares, share):
        """Write 1 for those blocks with the highest scores of all that a token sees whole, and for the one after.

        A thread scores one, where not all are chosen; the last block of threads to end chooses.

        Args:
            params: See `BlocksArgs`: rows begin with `n_heads` queries.
            keys: A cache (slots, length, …), by the cells of the last positions of blocks.
            counters: One for each token.
            shares: The column of the queries' weights, which are times `share`; 0: each has the weight `share`.
        """
        t, size, n_blocks, n_chosen, scores = cuda.blockIdx.y, params.size, params.n_blocks, params.n_chosen, params.scores
        if t >= inputs[N_TOKENS]:
            return
        block, n_seen = cuda.blockIdx.x * THREADS + cuda.threadIdx.x, gpu.quotient(inputs[POSITIONS + t] + 1, size)
        n_there = gpu.quotient(n_seen + THREADS - 1, THREADS) if n_seen > n_chosen else 1
        if cuda.blockIdx.x >= n_there:
            return
        if n_chosen < n_seen and block < n_seen:
            base, position = inputs[SLOTS + t] * params.length, (block + 1) * size - 1
            scores[t * n_blocks + block] = score_of(
                inputs, t, params.rows, t * params.stride, keys, base, n_heads, params.dim, shares, share, position
            )
        if not is_last_block(counters, t, n_there):
            return
        parts = cuda.shared.array(_WARPS, np.float32)
        _choose_best(scores, t * n_blocks, n_seen, n_chosen, params.chosen, parts)
        if cuda.threadIdx.x == 0:
            params.chosen[t * n_blocks + n_seen] = 1

    return choose


CHOOSE = {kind: _choose(kind, dot) for kind, dot in DOT.items()}
"""Kernels by the type of the cache of keys."""


def _choose_blocks(kind):
    dot = DOT[kind]

    @lane
    def largest(inputs, t, q, start, keys, base, dim, first, end, i):
        """The largest product of a query and of every 32nd key from the i-th on."""
        most = np.float32(_LOWEST)
        for position in range(first + i, end, WARP):
            most = gpu.larger(most, dot(q, start, keys, base + cell_of(inputs, t, position), dim))
        return most

    @kernel("j", BlocksArgs, CacheArgs, "ii", name=f"choose_blocks_{kind}")
    def choose_blocks(inputs, params, keys, n_local, n_groups):
        """Write 1 for each block that one KV head of one token attends to, else 0.

        Args:
            params: See `BlocksArgs`: rows begin with `n_groups` queries.
            keys: The indexer's cache (slots, length, …).
            n_local: How many of the last blocks are chosen before all others.
        """
        size, scores = params.size, params.scores
        group, t = cuda.blockIdx.x, cuda.blockIdx.y
        if t >= inputs[N_TOKENS]:
            return
        parts = cuda.shared.array(_WARPS, np.float32)
        thread, last = cuda.threadIdx.x, inputs[POSITIONS + t]
        i, n_seen = thread % WARP, gpu.quotient(last, size) + 1
        at, base = (t * n_groups + group) * params.n_blocks, inputs[SLOTS + t] * params.length
        for block in range(thread // WARP, n_seen, _WARPS):
            first = size * block
            end = min(first + size, last + 1)
            start = t * params.stride + group * params.dim
            most = warp_max(largest(inputs, t, params.rows, start, keys, base, params.dim, first, end, i))
            if i == 0:
                scores[at + block] = most if block < n_seen - n_local else np.float32(_HIGHEST)
        cuda.syncthreads()
        _choose_best(scores, at, n_seen, params.n_chosen, params.chosen, parts)

    return choose_blocks


CHOOSE_BLOCKS = {kind: _choose_blocks(kind) for kind in EIGHT}
"""Kernels by the type of the cache of keys."""
