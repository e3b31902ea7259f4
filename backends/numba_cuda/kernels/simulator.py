"""The simulator of a grid: the threads of a block are coroutines, which take turns at barriers and operations of warps.

numba has one, too, in which a thread is one of the operating system's: that takes some 60 us for each, a coroutine takes 2 us,
and numba's has no operations of warps. Blocks run one after another, so effects of two blocks at once never show; but a race
between the threads of a block, or between blocks, shows where their order matters, by running them in another order (`run`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

WARP = 32


class _Thread:
    """A thread of a block: its coroutine, and the result of its last meeting."""

    __slots__ = ("coroutine", "given", "index", "is_over", "n_shared")

    def __init__(self, index):
        from greenlet import greenlet

        self.index, self.coroutine = index, greenlet(self._live)

    def _live(self, function, args):
        while True:
            function(*args)
            self.is_over = True
            function, args = _block.home.switch()


class _Threads(threading.local):
    """Threads of earlier blocks, which run those of later ones: to make one takes longer than to run it."""

    def __init__(self):
        self.idle = []

    def take(self, n):
        """The first n of them."""
        self.idle += [_Thread(i) for i in range(len(self.idle), n)]
        for thread in self.idle[:n]:
            thread.is_over, thread.n_shared = False, 0
        return self.idle[:n]


class _Meeting:
    """Threads that wait for each other, in the order of their indices, and their values."""

    __slots__ = ("n", "n_there", "threads", "values")

    def __init__(self, threads):
        self.threads, self.n, self.n_there = threads, len(threads), 0
        self.values = [None] * self.n


class _Block:
    """The threads of the block that runs, and those of them that can go on."""

    def __init__(self, n):
        from greenlet import getcurrent

        self.threads, self.home = _threads.take(n), getcurrent()
        self.shared = []
        self.everyone = _Meeting(self.threads)
        self.warps = [_Meeting(self.threads[i : i + WARP]) for i in range(0, n, WARP)]

    def run(self, function, args, *, is_reversed):
        """Run all threads to their end."""
        global _block, _thread  # noqa: PLW0603 - the running thread, as in a thread's registers on a device
        _block = self
        self.ready, given = self.threads[:: -1 if is_reversed else 1], (function, args)
        try:
            while self.ready:
                turn, self.ready = self.ready, []
                for thread in turn:
                    _thread = thread
                    cuda.threadIdx.x = thread.index
                    thread.coroutine.switch(*given)
                given = ()
            waiting = [thread.index for thread in self.threads if not thread.is_over]
            if waiting:
                raise RuntimeError(  # noqa: TRY301
                    f"threads {waiting} wait at a barrier or an operation of their warp that not all come to"
                )
        except BaseException:
            _threads.idle.clear()  # which wait somewhere in the middle
            raise

    def wait(self, meeting, value, combine):
        """Wait until all of a meeting have come; the last one combines their values, and goes on."""
        thread = _thread
        meeting.values[thread.index % meeting.n] = value
        meeting.n_there += 1
        if meeting.n_there == meeting.n:
            for each, given in zip(meeting.threads, combine(meeting.values), strict=True):
                each.given = given
            self.ready += [each for each in meeting.threads if each is not thread]
            meeting.n_there = 0
        else:
            self.home.switch()
        return thread.given


_threads = _Threads()
_lock = threading.Lock()  # there is one `cuda` for all
_block: _Block
_thread: _Thread


def meet(value, combine):
    """This lane's part of `combine` over the values of a warp's 32 lanes."""
    return _block.wait(_block.warps[_thread.index // WARP], value, combine)


def _barrier():
    _block.wait(_block.everyone, None, lambda values: values)


def _barrier_or(value):
    """Wait for all threads of the block; whether any of them brings a value that is true."""
    return _block.wait(_block.everyone, value, lambda values: [any(values)] * len(values))


def _shared(n, dtype):
    """The array that the block's threads get by their k-th call."""
    thread, shared = _thread, _block.shared
    if thread.n_shared == len(shared):
        shared.append(np.frombuffer(b"\xff" * (n * np.dtype(dtype).itemsize), dtype).copy())  # NaN, or -1
    thread.n_shared += 1
    return shared[thread.n_shared - 1]


cuda = SimpleNamespace(
    **{name: SimpleNamespace(x=0, y=0, z=0) for name in ("threadIdx", "blockIdx", "blockDim")},
    syncthreads=_barrier,
    syncthreads_or=_barrier_or,
    shared=SimpleNamespace(array=_shared),
    local=SimpleNamespace(array=np.empty),
)
"""The part of numba's `cuda` that kernels use."""


def run(function: object, grid: tuple[int, ...], n_threads: int, args: Sequence[object], *, is_reversed: bool = False) -> None:
    """Run a kernel over a grid of blocks of `n_threads` threads, blocks and threads from last to first if `is_reversed`."""
    assert min(grid) > 0, f"a grid of {grid} blocks, which a driver would refuse"
    place, step = cuda.blockIdx, -1 if is_reversed else 1
    with _lock:
        cuda.blockDim.x = n_threads
        for place.z in range(grid[2])[::step]:
            for place.y in range(grid[1])[::step]:
                for place.x in range(grid[0])[::step]:
                    _Block(n_threads).run(function, args, is_reversed=is_reversed)
