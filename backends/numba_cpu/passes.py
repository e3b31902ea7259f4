"""How the tokens of a batch, sorted by slot, are cut into runs and passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from augury.backends.numba_cpu.kernels.matmul import MAX_TOKENS
from augury.errors import UnsupportedError


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
