"""Operations of a warp, which its 32 simulated lanes meet for; they stand for those of `kernels/dialect.py`."""

import numpy as np
from cuda_simulator.grid import WARP, meet
from cuda_simulator.products import added_in_turn

from augury.backends.numba_cuda.kernels.dialect import better

_NEIGHBOURS = {step: np.arange(WARP) ^ step for step in (1, 2, 4, 8, 16)}  # by lane: the one so many lanes away


def warp_max(value):
    """The largest of all lanes' floats; NaN if one is."""
    return meet(value, lambda values: [np.max(np.array(values, np.float32))] * WARP)


def warp_sum(value):
    """The sum of all lanes' floats, by a tree of neighbours, pairs of neighbours and so on."""
    return meet(value, lambda values: _tree(values, (1, 2, 4, 8, 16)))


def warp_sums(sums, n):
    """Let n numbers of every lane be the sums over all lanes, by the same tree."""
    sums[:n] = meet(sums[:n], lambda values: _tree(values, (1, 2, 4, 8, 16)))


def warp_barrier():
    """Wait for all lanes, and see their writes."""
    meet(None, lambda values: values)


def quad_max(value):
    """The largest of the floats of four neighbouring lanes, of which this is one; NaN if one is."""
    return meet(value, lambda values: np.repeat(np.max(np.array(values, np.float32).reshape(8, 4), axis=1), 4))


def quad_sum(value):
    """The sum of such floats, by a tree."""
    return meet(value, lambda values: _tree(values, (1, 2)))


def half_warp_sums(value):
    """The sum of the ints of this lane's half of the warp, 16 lanes, and the sum of all."""

    def sums(values):
        halves = [int(sum(values[:16])), int(sum(values[16:]))]
        return [(half, sum(halves)) for half in halves for _ in range(16)]

    return meet(value, sums)


def slice_sums(sums, n):
    """Let n numbers of every lane be the sums over eight lanes, every fourth one, by a tree."""
    sums[:n] = meet(sums[:n], lambda values: _tree(values, (4, 8, 16)))


def warp_best(value, index):
    """The largest float of all lanes and its index; of equals the lowest, of NaN -1."""

    def best(values):
        found = values[0]
        for other in values[1:]:
            found = better(*found, *other)
        return [found] * WARP

    return meet((value, index), best)


def add_halves(sums, at, w, x):
    """Add to four floats, from a place on, the products of four such pairs of matrices in turn: 16 words of W, 8 of x."""
    sums[at : at + 4] = meet((w, x, sums[at : at + 4]), added_in_turn)


def _tree(values, steps):
    """The sums of each lane's value with the one so many lanes away, in float32."""
    sums = np.array(values, np.float32)
    for step in steps:
        sums = sums + sums[_NEIGHBOURS[step]]
    return sums
