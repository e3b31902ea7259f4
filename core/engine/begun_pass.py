"""A pass that is computed on a thread, while the engine's own thread goes on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from augury.passes import Pass

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


class BegunPass(Pass):
    """A pass that a thread computes, and how long that took."""

    def __init__(self, begun: Future[tuple[Pass, float]]) -> None:
        self._begun = begun

    @classmethod
    def of(cls, threads: Executor, compute: Callable[[], Pass]) -> BegunPass:
        """Begin it."""

        def timed() -> tuple[Pass, float]:
            start = perf_counter()
            passed = compute()
            passed.wait()
            return passed, perf_counter() - start

        return cls(threads.submit(timed))

    def wait(self) -> float | None:
        """See `Pass.wait`; an error of the pass is raised here."""
        return self._begun.result()[1]

    @property
    def _passed(self) -> Pass:
        return self._begun.result()[0]

    def argmax(self) -> np.ndarray:
        return self._passed.argmax()

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._passed.top_k(rows, k)

    def gather(self, row: int, ids: np.ndarray) -> np.ndarray:
        return self._passed.gather(row, ids)

    def log_normalizer(self, row: int) -> float:
        return self._passed.log_normalizer(row)

    def rows(self) -> np.ndarray:
        return self._passed.rows()

    def row(self, row: int) -> np.ndarray:
        return self._passed.row(row)

    def features(self, name: str) -> np.ndarray:
        return self._passed.features(name)

    def first(self, n: int) -> Pass:
        return self._passed.first(n)
