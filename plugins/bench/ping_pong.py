"""How long a number takes from one core to another and back.

Virtual machines are moved between placements of their cores within seconds, and with this time the bandwidth of memory changes:
times of one token can only be compared at similar round trips.
"""

from __future__ import annotations

import os
import statistics
import threading
from contextlib import suppress
from itertools import pairwise
from time import perf_counter

import numpy as np

_N_WARM = 200
_N = 400  # round trips in a window; with three windows it takes about 1 ms
_N_WINDOWS = 3
_PATIENCE = 200_000_000  # looks, a fraction of a second: the other thread has no core


def round_trip_ns() -> float | None:
    """Nanoseconds between the first two cores that this process may use; the median of a few windows.

    Returns:
        None where there is one core only, threads cannot be bound to cores, or something else kept one of them busy.
    """
    if not hasattr(os, "sched_getaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        return None
    from augury.plugins.bench.kernels.ping_pong import ping_pong

    ball = np.zeros(16, np.int64)  # a cache line and more of its own
    address, windows = ball.ctypes.data, [_N_WARM + _N * i for i in range(_N_WINDOWS + 1)]
    seconds: list[float] = []

    both_there = threading.Barrier(2)

    def serve() -> None:
        _take(cores[0], both_there)
        if ping_pong(address, 0, 0, _N_WARM, _PATIENCE) != _N_WARM:
            return
        for first, last in pairwise(windows):
            start = perf_counter()
            if ping_pong(address, 0, first, last, _PATIENCE) != last:
                return
            seconds.append(perf_counter() - start)

    def play() -> None:
        _take(cores[1], both_there)
        ping_pong(address, 1, 0, windows[-1], _PATIENCE)

    threads = [threading.Thread(target=serve), threading.Thread(target=play)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(seconds) / _N * 1e9 if seconds else None


def _take(core: int, both_there: threading.Barrier) -> None:
    """Bind this thread to a core and, when the other has its own, take precedence over other programs on that core."""
    os.sched_setaffinity(0, {core})  # of the calling thread alone
    both_there.wait()
    with suppress(PermissionError):  # a thread without the right may be interrupted, which the median of windows bears
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
