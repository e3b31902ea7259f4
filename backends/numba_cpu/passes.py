"""How the tokens of a batch, sorted by slot, are cut into runs and passes; and a pass whose logits kernels read in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from augury.backends.numba_cpu.kernels import logits as kernels
from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.errors import UnsupportedError
from augury.passes import ArrayPass

KERNELS = (kernels.best, kernels.sum_exponentials)
_FLOAT = 4


def runs_of(slots: np.ndarray, parents: np.ndarray | None) -> np.ndarray:
    """The runs of one slot's tokens.

    Args:
        slots: (n,) int32, n > 0, in rising order.
        parents: (n,) int, see `Batch.parents`; None: all runs are chains.

    Returns:
        (m, 4) int64: first token, tokens, slot, whether it is a tree that is no chain.
    """
    of, above = slots.tolist(), None if parents is None else parents.tolist()  # NumPy's calls take longer for a round's tokens
    starts = [i for i, slot in enumerate(of) if not i or slot != of[i - 1]]
    runs = [
        # the first of a run follows the slot's text, or an earlier pass of the same chain
        (i, end - i, of[i], above is not None and above[i + 1 : end] != [*range(i, end - 1)])
        for i, end in zip(starts, [*starts[1:], len(of)], strict=True)
    ]
    return np.array(runs, np.int64)


def passes(slots: np.ndarray, parents: np.ndarray | None, *, has_blocks: bool = False) -> Iterator[slice]:
    """Cut a batch into passes of up to MAX_TOKENS tokens; a tree stays in one pass.

    Args:
        slots: (n,) int32, n > 0, in rising order.
        parents: (n,) int, see `Batch.parents`; None: all runs are chains.
        has_blocks: Whether each slot's tokens see each other, so that they stay in one pass, too.

    Raises:
        UnsupportedError: A tree or block is larger than a pass.
    """
    whole = (
        [] if parents is None and not has_blocks else [run for run in runs_of(slots, parents).tolist() if run[3] or has_blocks]
    )
    for _, size, slot, is_tree in whole:
        if size > MAX_TOKENS:
            raise UnsupportedError(
                f"a {'tree' if is_tree else 'block'} of {size} tokens in slot {slot}, expected at most {MAX_TOKENS} in one "
                "pass; draft fewer tokens"
            )
    start = 0
    while start < len(slots):
        end = min(start + MAX_TOKENS, len(slots))
        for first, size, _, _ in whole:
            if first < end < first + size:
                end = first
        yield slice(start, end)
        start = end


class KernelPass(ArrayPass):
    """Rows of logits whose best tokens and sums kernels find, with the results of `ArrayPass`."""

    def __init__(self, array: np.ndarray, width: int, features: Mapping[str, np.ndarray] | None = None) -> None:
        """Take rows (r, V) float32; `width` floats after the beginning of each lie the largest of each block."""
        super().__init__(array, features)
        self._width = width

    def argmax(self) -> np.ndarray:
        return self._best(0, len(self._array), 1)[0][:, 0]

    def top_k(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        n_rows, n = self._array.shape
        k = min(k, n)
        if not 1 <= k <= kernels.MAX_BEST:
            return super().top_k(rows, k)
        of, wanted = rows.tolist(), rows.astype(np.int64)
        if of and not 0 <= min(of) <= max(of) < n_rows:
            raise IndexError(f"rows {of} of a pass that has {n_rows}")
        return self._best(wanted.ctypes.data, len(of), k)

    def _best(self, rows: int, n_rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `kernels.best`, of rows at an address."""
        logits, found = self._array.ctypes.data, np.empty((2, n_rows, k), np.int32)
        maxima, stride, ids = logits + _FLOAT * self._width, self._array.strides[0] // _FLOAT, found.ctypes.data
        kernels.best(logits, maxima, stride, rows, n_rows, self._array.shape[1], k, ids, ids + found.nbytes // 2)
        return found[0], found[1].view(np.float32)

    def log_normalizer(self, row: int) -> float:
        """See `Pass.log_normalizer`; the sum has one order."""
        _, (largest,) = self.top_k(np.array([row]), 1)
        if not np.isfinite(largest):
            return super().log_normalizer(row)
        logits, sums = self._array[row], np.empty(kernels.SUMS_BYTES // 8 + 1)
        address = sums.ctypes.data
        kernels.sum_exponentials(logits.ctypes.data, len(logits), largest.ctypes.data, address, address + kernels.SUMS_BYTES)
        return float(largest[0]) + math.log(sums[-1])

    def first(self, n: int) -> KernelPass:
        return KernelPass(self._array[:, :n], self._width, self._features)
