"""Where the time of a pass goes, and the limits of the threads."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
from attrs import frozen

from augury.backends.numba_cpu.kernels import probe
from augury.backends.numba_cpu.kernels.team import record_of
from augury.backends.numba_cpu.packing import PackedMatrix, aligned
from augury.backends.numba_cpu.team import Team
from augury.profile import KernelTime, Limits

_READ_BYTES = 256 << 20  # more than caches hold
_MULTIPLY_ADDS = 1 << 29  # of a thread: some milliseconds
_REPETITIONS = 3


@frozen
class Work:
    """The work of a record of a tape, and its amount."""

    name: str
    n_bytes: int = 0  # of weights
    n_multiply_adds: int = 0  # per token
    bytes_per_position: int = 0  # of cached states that are read
    multiply_adds_per_position: int = 0  # per token
    is_output: bool = False  # of the rows whose logits are wanted, not of all tokens

    @classmethod
    def of_matrices(cls, name: str, matrices: Sequence[PackedMatrix], *, is_output: bool = False) -> Work:
        """Products with matrices."""
        kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices))
        n_multiply_adds = sum(matrix.n_rows * matrix.n_cols for matrix in matrices)
        return cls(f"{name} ({kinds})", sum(each.n_bytes for each in matrices), n_multiply_adds, is_output=is_output)

    def time(self, seconds: float, positions: np.ndarray, n_rows: int) -> KernelTime:
        """Its time in a pass over tokens of one slot at `positions` (n,)."""
        n = n_rows if self.is_output else len(positions)
        n_seen = int((positions + 1).sum())
        n_bytes = self.n_bytes + self.bytes_per_position * int(positions.max() + 1)
        return KernelTime(self.name, seconds, n_bytes, n * self.n_multiply_adds + n_seen * self.multiply_adds_per_position)


def limits(team: Team, isa: str) -> Limits:
    """Probe the limits of a team's threads with an instruction set; each limit is the best of a few tries."""
    n_threads = team.n_threads
    memory, scratch = aligned(_READ_BYTES), aligned(n_threads * probe.SCRATCH_BYTES)
    memory[:] = scratch[:] = 1  # or the memory's pages would all be the same page of zeros
    # the last step would look ahead beyond the end
    n_read = _READ_BYTES - probe.READ_STEP
    place, n_rounds = scratch.ctypes.data, _MULTIPLY_ADDS // probe.multiply_adds(isa)
    reading = record_of(probe.read, memory=memory.ctypes.data, size=n_read, scratch=place)
    multiplying = record_of(probe.multiply_kernel(isa), n_rounds=n_rounds, scratch=place)
    read_s, multiply_s = (min(_seconds(team, each) for _ in range(_REPETITIONS)) for each in (reading, multiplying))
    return Limits(n_read / read_s, n_threads * _MULTIPLY_ADDS / multiply_s)


def _seconds(team: Team, tape: np.ndarray) -> float:
    start = perf_counter()
    team.run(tape)
    return perf_counter() - start
