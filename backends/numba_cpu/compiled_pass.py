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

KERNELS = (kernels.compute, kernels.keep)


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
        features: Sequence[str],
        **places: int,
    ) -> None:
        """Make passes by the programs of few and of many tokens, which leave features, and whose logits go to an address.

        `moving` writes the records that move cells; `places` are further fields of `kernels.DraftedPass`.
        """
        super().__init__(room, k)
        self.logits, self._team, self._programs = logits, team, programs
        self._scores, cells = np.empty((room, k), np.float32), np.zeros(room, dtype(CellMove))
        self._kept = cells, moving(cells), *[each.records for each in programs]
        tapes: dict[str, Any] = dict(zip(("moving", "few", "many"), map(_tape_of, self._kept[1:]), strict=True))
        arrays = {name: getattr(self, name).ctypes.data for name in ("sizes", "tokens", "parents", "moves", "ids", "times")}
        arrays |= {"cells": cells.ctypes.data, "scores": self._scores.ctypes.data}
        self._features = {name: programs[0].features[name] for name in features}
        self._feature_records = np.zeros(len(features), dtype(kernels.KeptFeature))
        self._feature_records["source"] = [each.ctypes.data for each in self._features.values()]
        self._feature_records["size"] = [each.shape[1] for each in self._features.values()]
        arrays |= {"features": self._feature_records.ctypes.data, "n_features": len(features)}
        fixed = {"team": team.address, "n_few": PRIVATE_TOKENS, "logits": logits, "k": k}
        self._record = table([kernels.DraftedPass(**tapes, **arrays, **fixed, **places)])
        self.function, self.argument = address(kernels.compute), self._record.ctypes.data
        self.keep = address(kernels.keep) if features else 0

    def keep_features(self, n: int) -> dict[str, np.ndarray]:
        kept = {name: np.empty((n, each.shape[1]), np.float32) for name, each in self._features.items()}
        self._feature_records["target"] = [each.ctypes.data for each in kept.values()]
        return kept

    def run(self, rounds: Callable[..., int], *arguments: Any) -> int:
        for each in self._programs:
            each.write_to(self.logits)
        return self._team.watch(rounds, *arguments)


def _tape_of(records: np.ndarray) -> kernels.Tape:
    start = records.ctypes.data
    return kernels.Tape(address=start, end=start + records.nbytes)
