"""The threads of a block take turns as those of a device may."""

import numpy as np
import pytest
from cuda_simulator import grid
from cuda_simulator.grid import cuda

from augury.backends.numba_cuda.kernels.dialect import add, is_last_block, lane, warp_sum


def reverse(to, has_barrier):
    staged = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    staged[i] = i
    if has_barrier:
        cuda.syncthreads()
    to[64 * cuda.blockIdx.x + i] = staged[63 - i]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_after_a_barrier_all_is_there(is_reversed):
    to = np.zeros(128, np.float32)
    grid.run(reverse, (2, 1, 1), 64, (to, True), is_reversed=is_reversed)
    assert np.array_equal(to, [*range(63, -1, -1)] * 2)


def test_a_missing_barrier_shows():
    to = np.zeros(64, np.float32)
    grid.run(reverse, (1, 1, 1), 64, (to, False))
    assert np.isnan(to).any(), "what is not written yet is NaN"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_last_block_sees_what_all_have_written(is_reversed):
    def kernel(written, counters, found):
        block, i = 3 * cuda.blockIdx.y + cuda.blockIdx.x, cuda.threadIdx.x
        written[block, i] = 100 * block + i
        if is_last_block(counters, cuda.blockIdx.y, 3):
            found.append((block, i, written[3 * cuda.blockIdx.y : 3 * cuda.blockIdx.y + 3].sum()))

    counters = np.zeros(2, np.uint32)
    for _ in range(2):  # a counter is as it was when all have come
        written, found = np.zeros((6, 32), np.int32), []
        grid.run(kernel, (3, 2, 1), 32, (written, counters, found), is_reversed=is_reversed)
        right = (np.arange(6)[:, None] * 100 + np.arange(32)).reshape(2, -1).sum(axis=1)
        last = (3, 0) if is_reversed else (2, 5)
        assert sorted(found) == sorted((block, i, right[block // 3]) for block in last for i in range(32))
        assert not counters.any()


def test_threads_that_others_wait_for_in_vain_are_an_error():
    def kernel():
        if cuda.threadIdx.x < 5:
            warp_sum(1.0)

    with pytest.raises(RuntimeError, match=r"threads \[0, 1, 2, 3, 4\] wait at a barrier"):
        grid.run(kernel, (1, 1, 1), 32, ())


def test_a_lane_becomes_machine_code_only_where_python_calls_it():
    @lane
    def inner(x):
        return add(x, np.float32(1))

    @lane
    def outer(x, y):
        y[0] = inner(inner(x))
        return inner(y[0])

    y = np.zeros(1, np.float32)
    assert (outer(np.float32(1), y), y[0]) == (4, 3)
    assert not inner.overloads
    assert inner(np.float32(5)) == 6
