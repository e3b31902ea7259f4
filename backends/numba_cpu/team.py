"""Threads that compute one model's passes."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from augury.backends.numba_cpu.kernels import team as kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

_JOIN_S = 5.0  # a thread that computes nothing returns within milliseconds


class Team:
    """Runs tapes on `n_threads` threads, of which the caller is one.

    The others sleep in Python between passes that are more than about a millisecond apart, so that an idle model takes no
    CPU time. They end with `close`, with the team's collection as garbage, or with the process.
    """

    def __init__(self, n_threads: int) -> None:
        size = (kernels.OWN + 64 * n_threads) // 8
        whole = np.zeros(size + 8, np.int64)
        start = -whole.ctypes.data % 64 // 8
        self.state = whole[start : start + size]  # (size,) int64, aligned to a cache line; see kernels/team.py
        self.address = self.state.ctypes.data
        self.n_threads = n_threads
        self.state[kernels.N_THREADS // 8] = n_threads
        self._wakers: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(1, n_threads)]
        threads = []
        for index, waker in enumerate(self._wakers, start=1):
            self.state[(kernels.OWN + 64 * index) // 8] = 1  # parked
            thread = threading.Thread(target=_follow, args=(self.state, index, waker), name=f"augury-cpu-{index}", daemon=True)
            thread.start()
            threads.append(thread)
        self._finalizer = weakref.finalize(self, _stop, self._wakers, threads)

    def run(self, tape: np.ndarray) -> None:
        """Run a tape (n_records, 16) int64 to its end."""
        state = self.state
        state[kernels.TAPE // 8] = tape.ctypes.data
        state[kernels.N_RECORDS // 8] = len(tape)
        try:
            kernels.summon(self.address)
            if state[kernels.N_PARKED // 8]:
                for index, waker in enumerate(self._wakers, start=1):
                    if state[(kernels.OWN + 64 * index) // 8]:
                        waker.put(True)
            kernels.lead(self.address)  # from here to its end no signal is handled
        finally:
            state[kernels.WANTED // 8] = 0

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._finalizer()


def _follow(state: np.ndarray, index: int, waker: SimpleQueue[bool]) -> None:
    """What a thread does all its life; it holds the state, not the team."""
    while waker.get():
        kernels.follow(state.ctypes.data, index)


def _stop(wakers: Sequence[SimpleQueue[bool]], threads: Sequence[threading.Thread]) -> None:
    for waker in wakers:
        waker.put(False)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)
