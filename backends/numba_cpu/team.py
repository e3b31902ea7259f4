"""Threads that compute the passes of an engine's models, and their limits."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from augury.backends.numba_cpu.kernels import probe, team as kernels
from augury.backends.numba_cpu.kernels.struct import view
from augury.backends.numba_cpu.packing import aligned
from augury.interruption import interrupted
from augury.profile import Limits

_JOIN_S = 5.0  # a thread that computes nothing returns within milliseconds
_N_WATCHED = 4  # threads whose processor time is looked at
_CALM = 256  # tapes after an interruption, or the first, that are all watched, as a busy machine stays so
_SELDOM = 16  # of later ones one in so many is: where a pass has emptied the caches, two clocks take 50 us
_SLICE_S = 5e-4  # less than a system lets another program run
_SHARE = 0.1  # of a tape: its threads idle a little for each other
_READ_BYTES = 256 << 20  # more than caches hold
_MULTIPLY_ADDS = 1 << 29  # of a thread: some milliseconds
_REPETITIONS = 3

_T = TypeVar("_T")


class Team:
    """Runs tapes on `n_threads` threads, of which the caller is one; one tape at a time.

    The others sleep between passes that are more than a few milliseconds apart, so that an idle model takes no CPU time. They
    end with `close`, with the team's collection as garbage, or with the process.
    """

    def __init__(self, n_threads: int, cores: Sequence[int] = ()) -> None:
        """Start the threads, beside a caller of `run`, who is one; on `cores` each is kept on one, a caller on the first."""
        state, self.n_threads = _lines(kernels.team_bytes(n_threads)), n_threads
        view(state, kernels.TeamState)["n_threads"] = n_threads
        self.address = state.ctypes.data
        files = [_wakeable() for _ in range(n_threads)]
        for index, (read, write) in enumerate(files):
            own = view(state[kernels.team_bytes(index) // 8 + 1 :], kernels.ThreadState)
            own["read"], own["write"], own["core"] = read, write, -1
        threads: list[threading.Thread] = []
        self._cores = cores
        self._turn = threading.Lock()
        self._leader: int | None = None  # the thread that was last kept on its core
        self._finalizer = weakref.finalize(self, _stop, state, files, threads)
        for index in range(1, n_threads):
            thread = threading.Thread(target=_follow, args=(state, index, cores), name=f"augury-cpu-{index}", daemon=True)
            thread.start()  # which fails where there is no memory for its stack; those before it end with the team
            threads.append(thread)
        watched = threads[: _N_WATCHED - 1] if hasattr(time, "pthread_getcpuclockid") else []  # macOS has none
        self._clocks = [time.CLOCK_THREAD_CPUTIME_ID, *[time.pthread_getcpuclockid(each.ident or 0) for each in watched]]
        self._n_calm = 0  # tapes since the last interruption that was seen
        self._n_displaced = 0  # times that a core was taken from this process
        self._was_displaced()

    def run(self, tape: np.ndarray, memory: PassMemory, address: int = 0) -> None:
        """Run a tape (n,) int64 of a model's pass to its end. Its address need not be asked for where it is known."""
        start = address or tape.ctypes.data
        end = start + tape.nbytes
        self.watch(kernels.run, self.address, start, end, memory.address)  # from here to its end no signal is handled

    def watch(self, compute: Callable[..., _T], *arguments: Any) -> _T:
        """Call what runs tapes, and see whether its threads are interrupted meanwhile."""
        with self._turn:
            return self._watched(compute, *arguments)

    def _watched(self, compute: Callable[..., _T], *arguments: Any) -> _T:
        if self._cores and self._leader != threading.get_ident():
            self._leader = threading.get_ident()
            os.sched_setaffinity(0, {self._cores[0]})
        self._n_calm += 1
        if self._n_calm > _CALM and self._n_calm % _SELDOM:
            return compute(*arguments)
        start, before = perf_counter(), self._processor_s()
        computed = compute(*arguments)
        seconds = perf_counter() - start
        idle_s = seconds - (self._processor_s() - before)
        if idle_s > max(_SLICE_S, _SHARE * seconds) and self._was_displaced():
            interrupted.seconds += idle_s
            self._n_calm = 0
        return computed

    def _processor_s(self) -> float:
        """Seconds that its threads computed, or spun, so far, on average: the same work whichever of them does it."""
        return sum([time.clock_gettime(clock) for clock in self._clocks]) / len(self._clocks)

    def _was_displaced(self) -> bool:
        """Whether another program took a core from this one since it was asked last: threads also idle for each other."""
        try:
            import resource
        except ImportError:  # Windows
            return False
        before, self._n_displaced = self._n_displaced, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return self._n_displaced > before

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._finalizer()


class PassMemory:
    """The state of one model's passes."""

    def __init__(self) -> None:
        self.array = _lines(kernels.PASS_BYTES)
        self.address, self.fields = self.array.ctypes.data, view(self.array, kernels.PassState)


def limits(team: Team, isa: str) -> Limits:
    """Probe the limits of a team's threads with an instruction set; each limit is the best of a few tries."""
    n_threads = team.n_threads
    memory, scratch = aligned(_READ_BYTES), aligned(n_threads * probe.SCRATCH_BYTES)
    memory[:] = scratch[:] = 1  # or the memory's pages would all be the same page of zeros
    # the last step would look ahead beyond the end
    n_read = _READ_BYTES - probe.READ_STEP
    place, n_rounds = scratch.ctypes.data, _MULTIPLY_ADDS // probe.multiply_adds(isa)
    reading = kernels.record_of(probe.read, memory=memory.ctypes.data, size=n_read, scratch=place)
    multiplying = kernels.record_of(probe.multiply_kernel(isa), n_rounds=n_rounds, scratch=place)
    read_s, multiply_s = (min(_seconds(team, each) for _ in range(_REPETITIONS)) for each in (reading, multiplying))
    return Limits(n_read / read_s, n_threads * _MULTIPLY_ADDS / multiply_s)


def _lines(n_bytes: int) -> np.ndarray:
    """Zeros in whole cache lines, int64."""
    whole = np.zeros((n_bytes + kernels.LINE) // 8, np.int64)
    start = -whole.ctypes.data % kernels.LINE // 8
    return whole[start : start + n_bytes // 8]


def _seconds(team: Team, tape: np.ndarray) -> float:
    memory, start = PassMemory(), perf_counter()
    team.run(tape, memory)
    return perf_counter() - start


def _wakeable() -> tuple[int, int]:
    """Files, for reading and for writing, of which the first can be read once the second was written to."""
    if hasattr(os, "eventfd"):
        file = os.eventfd(0)
        return file, file
    return os.pipe()


def _follow(state: np.ndarray, index: int, cores: Sequence[int]) -> None:
    """The main function of a thread; it holds the state, not the team."""
    if cores:
        os.sched_setaffinity(0, {cores[index]})
    kernels.follow(state.ctypes.data, index)


def _stop(state: np.ndarray, files: Sequence[tuple[int, int]], threads: Sequence[threading.Thread]) -> None:
    kernels.dismiss(state.ctypes.data)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)
    if any(thread.is_alive() for thread in threads):
        return  # it may still read
    for each in files:
        for file in set(each):
            with suppress(OSError):
                os.close(file)
