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
        rows: np.ndarray,
        features: Sequence[str],
        names: np.ndarray | None,
        **places: int,
    ) -> None:
        """Make passes by the programs of few and of many tokens, which leave features, and whose logits go to `rows`.

        `moving` writes the records that move cells, `names` (V,) int32 are the tokens of the logits where these are not of all
        tokens, and `places` further fields of `kernels.DraftedPass`.
        """
        super().__init__(room, k)
        self.rows, self.hidden, self._team, self._programs = rows, programs[0].hidden, team, programs
        self._logits, cells = rows.ctypes.data, np.zeros(room, dtype(CellMove))
        records = moving(cells), *[each.records for each in programs]
        self._kept = cells, names, records
        tapes: dict[str, Any] = dict(zip(("moving", "few", "many"), map(_tape_of, records), strict=True))
        told = "sizes", "tokens", "parents", "moves", "ids", "scores", "times"
        arrays = {name: getattr(self, name).ctypes.data for name in told}
        arrays |= {"cells": cells.ctypes.data, "names": 0 if names is None else names.ctypes.data}
        self.features = {name: programs[0].features[name] for name in features}
        self._feature_records = np.zeros(len(features), dtype(kernels.KeptFeature))
        self._feature_records["source"] = [each.ctypes.data for each in self.features.values()]
        self._feature_records["size"] = [each.shape[1] for each in self.features.values()]
        arrays |= {"features": self._feature_records.ctypes.data, "n_features": len(features)}
        fixed = {"team": team.address, "n_few": PRIVATE_TOKENS, "logits": self._logits, "k": k}
        self._record = table([kernels.DraftedPass(**tapes, **arrays, **fixed, **places)])
        self.function, self.argument = address(kernels.compute), self._record.ctypes.data
        self.keep = address(kernels.keep) if features else 0

    def keep_features(self, n: int) -> dict[str, np.ndarray]:
        kept = {name: np.empty((n, each.shape[1]), np.float32) for name, each in self.features.items()}
        self._feature_records["target"] = [each.ctypes.data for each in kept.values()]
        return kept

    def begin(self) -> None:
        for each in self._programs:
            each.write_to(self._logits)

    def run(self, rounds: Callable[..., int], *arguments: Any) -> int:
        self.begin()
        return self._team.watch(rounds, *arguments)


def _tape_of(records: np.ndarray) -> kernels.Tape:
    start = records.ctypes.data
    return kernels.Tape(address=start, end=start + records.nbytes)
