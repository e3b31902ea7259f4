"""The backend's class: checks options and loads models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from attrs import frozen

from augury.backends.numba_cpu import tiles
from augury.blocks import ModelPlan
from augury.errors import CapacityError, OptionError, UnsupportedError
from augury.interfaces import Backend, Model, Progress
from augury.log import get_logger
from augury.memory_limit import n_bytes_of_machine, require_address_space
from augury.options import option
from augury.types import ModelOptions, StateSpec

if TYPE_CHECKING:
    from augury.backends.numba_cpu.lowering import Lowering
    from augury.backends.numba_cpu.team import Team
    from augury.files.gguf import ModelFile

# Measured. LLVM ends the process where it gets no memory, and other libraries crash, so these are asked for beforehand.
_COMPILER_BYTES = 256 << 20
_PROGRAM_BYTES = (192 << 20) + _COMPILER_BYTES  # numba and its imports, too
_THREAD_BYTES = 74 << 20  # a stack, and malloc's reserve for a thread
MAX_THREADS = 1024  # more than any machine has cores, few enough that a typing error is answered at once


@frozen
class NumbaCpuOptions:
    """Options of `numba-cpu`."""

    affinity: str = option("none", help="cores: each thread stays on a core of its own", choices=("none", "cores"))
    keep_weights: bool = option(True, help="keep packed weights in the user's cache, where the next start finds them")


class NumbaCpu(Backend):
    """Runs on the CPU, with kernels that numba compiles for it when they are first needed."""

    name = "numba-cpu"
    computes_mtp = True
    aliases = ("cpu",)
    options_class = NumbaCpuOptions
    options: NumbaCpuOptions

    def __init__(self, options: NumbaCpuOptions) -> None:
        super().__init__(options)
        # by how many threads: models that pass in turns, as those of an engine do, share them, while one is there
        self._teams: WeakValueDictionary[int, Team] = WeakValueDictionary()

    @classmethod
    def note(cls) -> str | None:
        return tiles.note()

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        return self._lowering(plan, options).state_spec

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        lowering = self._lowering(plan, options)
        if (note := tiles.note()) is not None:
            get_logger("augury.backends.numba_cpu").info(note)
        cores = physical_cores()
        threads = options.threads or len(cores)
        if threads > MAX_THREADS:
            raise OptionError(f"threads is {threads}, expected at most {MAX_THREADS}; as many as there are cores is best")
        if self.options.affinity == "cores" and not hasattr(os, "sched_setaffinity"):
            raise UnsupportedError("affinity=cores: this system does not let threads be kept on cores; leave the option out")
        if self.options.affinity == "cores" and threads > len(cores):
            raise OptionError(f"affinity=cores with {threads} threads, but there are {len(cores)} cores; lower -t")
        from augury.backends.numba_cpu.model import NumbaCpuModel
        from augury.backends.numba_cpu.packing import PackedLayout
        from augury.backends.numba_cpu.weights import matrices_of

        wanted = f"{file.path.name} with {options.slots_in_words}"
        advice = "ask for a smaller context or fewer slots"
        # the system promises more memory than it has, and ends the process that takes it at its word
        n_state, n_there = lowering.state_bytes, n_bytes_of_machine()
        if n_state > n_there:
            needed = f"needs {n_state / 2**30:.1f} GiB beside its weights, there are {n_there / 2**30:.1f} GiB"
            raise CapacityError(f"{wanted} {needed}; {advice}")
        n_weights = PackedLayout.of(matrices_of(file, plan)).n_bytes
        require_address_space(n_weights + n_state + _COMPILER_BYTES + threads * _THREAD_BYTES, wanted)
        bound = cores if self.options.affinity == "cores" else ()
        try:
            keep, n_free = self.options.keep_weights, n_there - n_state
            return NumbaCpuModel(file, lowering, threads, partial(self._team, bound), progress, keep=keep, n_free=n_free)
        except MemoryError as error:
            raise CapacityError(f"no memory for {wanted}; {advice}") from error

    def _team(self, cores: Sequence[int], n_threads: int) -> Team:
        from augury.backends.numba_cpu.team import Team

        if (team := self._teams.get(n_threads)) is None:
            team = self._teams[n_threads] = Team(n_threads, cores)
        return team

    @staticmethod
    def _lowering(plan: ModelPlan, options: ModelOptions) -> Lowering:
        options.check_cache_types(plan)
        require_address_space(_PROGRAM_BYTES, "compiling kernels")
        # numba is imported here, not at the top: listing plugins must not wait for it
        from augury.backends.numba_cpu.lowering import Lowering

        return Lowering(plan, options)


def physical_cores() -> list[int]:
    """A logical CPU of each core that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.setdefault(siblings.read_text(), cpu)
        except OSError:  # no such file where the machine hides its topology
            cores[str(cpu)] = cpu
    return list(cores.values())
