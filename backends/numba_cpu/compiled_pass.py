"""Passes that compiled rounds make, see `augury.interfaces.CompiledPass`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from augury.backends.numba_cpu.kernels import drafted_pass as kernels
from augury.backends.numba_cpu.kernels.cache_type import CellMove
from augury.backends.numba_cpu.kernels.jit import address
from augury.backends.numba_cpu.kernels.struct import dtype, table
from augury.backends.numba_cpu.tape import PRIVATE_TOKENS, Program
from augury.backends.numba_cpu.team import Team
from augury.interfaces import CompiledPass

KERNELS = (kernels.compute,)


class TeamPass(CompiledPass):
    """Passes of a team over one slot."""

    def __init__(
        self,
        room: int,
        k: int,
        team: Team,
        programs: Sequence[Program],
        moving: Callable[[np.ndarray], np.ndarray],
        logits: int,
        **places: int,
    ) -> None:
        """Make passes by the programs of few and of many tokens, whose logits go to an address.

        `moving` writes the records that move cells; `places` are further fields of `kernels.DraftedPass`.
        """
        super().__init__(room, k)
        self.logits, self._team, self._programs = logits, team, programs
        self._scores, cells = np.empty((room, k), np.float32), np.zeros(room, dtype(CellMove))
        self._kept = cells, moving(cells), *[each.records for each in programs]
        tapes: dict[str, Any] = dict(zip(("moving", "few", "many"), map(_tape_of, self._kept[1:]), strict=True))
        arrays = {name: getattr(self, name).ctypes.data for name in ("sizes", "tokens", "parents", "moves", "ids", "times")}
        arrays |= {"cells": cells.ctypes.data, "scores": self._scores.ctypes.data}
        fixed = {"team": team.address, "n_few": PRIVATE_TOKENS, "logits": logits, "k": k}
        self._record = table([kernels.DraftedPass(**tapes, **arrays, **fixed, **places)])
        self.function, self.argument = address(kernels.compute), self._record.ctypes.data

    def run(self, rounds: Callable[..., int], *arguments: Any) -> int:
        for each in self._programs:
            each.write_to(self.logits)
        return self._team.watch(rounds, *arguments)


def _tape_of(records: np.ndarray) -> kernels.Tape:
    start = records.ctypes.data
    return kernels.Tape(address=start, end=start + records.nbytes)
