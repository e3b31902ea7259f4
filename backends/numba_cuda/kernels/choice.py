"""Which blocks of positions tokens attend to: those with the highest scores, see `augury.blocks.BlockIndexer`."""

from __future__ import annotations

import numpy as np

from augury.backends.numba_cuda.kernels.cells import DOT
from augury.backends.numba_cuda.kernels.dialect import THREADS, WARP, cuda, kernel, lane, larger, quotient, warp_max
from augury.backends.numba_cuda.kernels.inputs import N_TOKENS, POSITIONS, SLOTS, cell_of

_WARPS = THREADS // WARP
_LOWEST, _HIGHEST = float("-inf"), float("inf")


@lane
def _is_chosen(scores, start, n, n_chosen, i):
    """Whether fewer than `n_chosen` of n scores are higher than the i-th, or equal and before it."""
    score, n_before = scores[start + i], 0
    for j in range(n):
        if scores[start + j] > score or (scores[start + j] == score and j < i):
            n_before += 1
    return np.int32(1 if n_before < n_chosen else 0)


def _choose(kind):
    dot = DOT[kind]

    @lane
    def largest(inputs, t, q, start, keys, halves, base, dim, first, end, i):
        """The largest product of a query and of every 32nd key from the i-th on."""
        most = np.float32(_LOWEST)
        for position in range(first + i, end, WARP):
            most = larger(most, dot(q, start, keys, halves, base + cell_of(inputs, t, position), dim))
        return most

    @kernel("jfwhfj" + 8 * "i", name=f"choose_blocks_{kind}")
    def choose_blocks(
        inputs, q, keys, halves, scores, chosen, stride, dim, size, n_chosen, n_local, length, n_groups, n_blocks
    ):
        """Write 1 for each block of `size` positions that one KV head of one token attends to, else 0.

        Args:
            inputs: Of the pass.
            q: (n, stride), each beginning with n_groups heads of `dim` values.
            keys, halves: Planes of the indexer's keys, see `cells`, (slots, length, …).
            scores, chosen: (n, n_groups, n_blocks), the first to work in.
            n_local: How many of the last blocks are chosen before all others.
        """
        group, t = cuda.blockIdx.x, cuda.blockIdx.y
        if t >= inputs[N_TOKENS]:
            return
        thread, last = cuda.threadIdx.x, inputs[POSITIONS + t]
        i, n_seen = thread % WARP, quotient(last, size) + 1
        at, base = (t * n_groups + group) * n_blocks, inputs[SLOTS + t] * length
        for block in range(thread // WARP, n_seen, _WARPS):
            first = size * block
            end = min(first + size, last + 1)
            most = warp_max(largest(inputs, t, q, t * stride + group * dim, keys, halves, base, dim, first, end, i))
            if i == 0:
                scores[at + block] = most if block < n_seen - n_local else np.float32(_HIGHEST)
        cuda.syncthreads()
        for block in range(thread, n_seen, THREADS):
            chosen[at + block] = _is_chosen(scores, at, n_seen, n_chosen, block)

    return choose_blocks


CHOOSE_BLOCKS = {kind: _choose(kind) for kind in DOT}
"""Kernels by the type of the cache of keys."""
