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
    """A thread of a block, and its coroutine."""

    __slots__ = ("coroutine", "index", "is_over", "n_shared")

    def __init__(self, index):
        from greenlet import greenlet

        self.index, self.coroutine = index, greenlet(self._live)
        self.coroutine.switch()

    def _live(self):
        self.coroutine.parent.switch()  # begun here, it counts its calls from its maker's on, not from another thread's
        while True:
            _block.function(*_block.args)
            self.is_over = True
            _block.pass_on()


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
    """Threads that wait for each other, in the order of their indices, their values, and what they are given for these."""

    __slots__ = ("given", "n", "n_there", "threads", "values")

    def __init__(self, threads):
        self.threads, self.n, self.n_there = threads, len(threads), 0
        self.values = self.given = [None] * self.n


class _Block:
    """The threads of the block that runs, those whose turn it is, and those that can go on in the next one."""

    def __init__(self, n, function, args):
        from greenlet import getcurrent

        self.threads, self.home = _threads.take(n), getcurrent()
        self.function, self.args = function, args
        self.shared = []
        self.everyone = _Meeting(self.threads)
        self.warps = [_Meeting(self.threads[i : i + WARP]) for i in range(0, n, WARP)]

    def run(self, *, is_reversed):
        """Run all threads to their end."""
        global _block  # noqa: PLW0603 - as in the registers of a device
        _block = self
        self.ready = self.threads[:: -1 if is_reversed else 1]
        try:
            while self.ready:
                self.turn, self.ready = iter(self.ready), []
                self.pass_on()
            waiting = [thread.index for thread in self.threads if not thread.is_over]
            if waiting:
                raise RuntimeError(  # noqa: TRY301
                    f"threads {waiting} wait at a barrier or an operation of their warp that not all come to"
                )
        except BaseException:
            _threads.idle.clear()  # which wait somewhere in the middle
            raise

    def pass_on(self):
        """Let the next thread of this turn go on; without one, whoever began the turn."""
        global _thread  # noqa: PLW0603
        thread = next(self.turn, None)
        if thread is None:
            self.home.switch()
        else:
            _thread = thread
            cuda.threadIdx.x = thread.index
            thread.coroutine.switch()

    def wait(self, meeting, value, combine):
        """Wait until all of a meeting have come; the last one combines their values, and goes on."""
        place = _thread.index % meeting.n
        meeting.values[place] = value
        meeting.n_there += 1
        if meeting.n_there == meeting.n:
            meeting.given, meeting.n_there = combine(meeting.values), 0
            self.ready += meeting.threads[:place] + meeting.threads[place + 1 :]
        else:
            self.pass_on()
        return meeting.given[place]  # there until all come again


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
                    _Block(n_threads, function, args).run(is_reversed=is_reversed)
