"""One pass of a model: the tokens that it is over, the places of those that form a tree, and a check of both.

Backends compute what they are given, and kernels do not look: what a plugin asks for is checked here first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from augury.errors import CapacityError, OptionError

if TYPE_CHECKING:
    from augury.types import ModelInfo, StateSpec

__all__ = ["Batch", "Tree", "check_moves", "checked_batch"]


@frozen(eq=False)
class Batch:
    """One forward pass: n tokens of any number of sequences, each sequence's in rising order of position.

    The pass stores every token's state at (slot, position) before anything attends to it, and a token attends to its slot's
    positions up to its own: what was stored at or behind `positions` by an earlier pass is overwritten, which is all that
    undoing a rejected draft takes.

    With `parents` a slot's tokens form a tree: several may have one position, so the j-th of a slot's tokens is stored j
    behind the first, and a token attends to what its slot held before the pass, to its ancestors and to itself. Its logits
    are, to the bit, those that its path would have as a chain.
    """

    tokens: np.ndarray  # (n,) int32
    slots: np.ndarray  # (n,) int32
    positions: np.ndarray  # (n,) int32, logical: 0 is the sequence's first token
    rows: np.ndarray  # (r,) int32, rising indices into the n tokens whose logits are wanted; may be empty
    parents: np.ndarray | None = None  # (n,) int32, which of the n each follows, -1: what its slot holds; None: chains
    moves: np.ndarray | None = None  # (m, 3) int32: slot, position from, position to; states copied in order before the pass
    n_layers: int | None = None  # of the first so many layers and the output alone; None: of all


class Tree:
    """The places of a pass's tokens: the j-th token of a slot is stored j cells behind the slot's first.

    Of a chain, a token's cell is its position. Of a tree, what lies before the slot's first token is where it always was, and
    from there on the state of a logical position lies in the cell of the ancestor that has it.

    Attributes:
        cells: (n,) int32, where each token's state is stored.
        marks: (n,) int32, the first cell that the pass writes in the token's slot.
        parents: (n,) int32, see `Batch.parents`.

    Example:
        Behind the three tokens of a slot, a token with two children, the second of which has a child of its own:

        >>> from augury.batch import Batch
        >>> tokens, slots, positions, rows = np.int32([[7, 8, 9, 5], [0, 0, 0, 0], [3, 4, 4, 5], [0, 1, 2, 3]])
        >>> tree = Tree(Batch(tokens, slots, positions, rows, parents=np.int32([-1, 0, 0, 2])), n_ctx=8)
        >>> tree.cells.tolist()
        [3, 4, 5, 6]
        >>> tree.seen(3).tolist()
        [0, 1, 2, 3, 5, 6]
    """

    def __init__(self, batch: Batch, n_ctx: int) -> None:
        """Place the tokens of a batch that has parents into slots of `n_ctx` cells.

        Raises:
            OptionError: A parent is not an earlier token of the same slot, or a position is not behind its parent's.
            CapacityError: A slot has too few cells.
        """
        assert batch.parents is not None
        n = len(batch.tokens)
        order = np.argsort(batch.slots, kind="stable")
        is_first = np.diff(batch.slots[order], prepend=-1) != 0
        starts = np.maximum.accumulate(np.where(is_first, np.arange(n), 0))
        self.parents = batch.parents
        self.marks = np.empty(n, np.int32)
        self.marks[order] = batch.positions[order[starts]]
        self.cells = self.marks.copy()
        self.cells[order] += np.arange(n, dtype=np.int32) - starts.astype(np.int32)
        self._check(batch)
        if n and self.cells.max() >= n_ctx:
            raise CapacityError(f"a tree needs {self.cells.max() + 1} cells of its slot, which has {n_ctx}; draft fewer tokens")

    def _check(self, batch: Batch) -> None:
        parents, numbers = self.parents, np.arange(len(batch.tokens))
        is_root = parents == -1
        is_known = (parents >= -1) & (parents < numbers)
        at = np.where(is_known & ~is_root, parents, 0)
        expected = np.where(is_root, self.marks, batch.positions[at] + 1)
        is_right = is_known & (is_root | (batch.slots[at] == batch.slots)) & (batch.positions == expected)
        if not is_right.all():
            i = int(is_right.argmin())
            raise OptionError(
                f"token {i} of a tree, at position {batch.positions[i]} of slot {batch.slots[i]}, has parent {parents[i]}; "
                "expected an earlier token of its slot one position before it, or -1 at the position of the slot's first"
            )

    def seen(self, token: int) -> np.ndarray:
        """The cells (position + 1,) of all that a token attends to, from its sequence's first position to its own."""
        above = []
        while token != -1:
            above.append(self.cells[token])
            mark, token = self.marks[token], self.parents[token]
        return np.concatenate([np.arange(mark, dtype=np.int32), np.array(above[::-1], np.int32)])


def check_moves(moves: np.ndarray, spec: StateSpec) -> None:
    """Refuse moves (m, 3) between cells that do not exist.

    Raises:
        CapacityError: There is such a move.
    """
    is_inside = (moves >= 0) & (moves < (spec.n_slots, spec.n_ctx, spec.n_ctx))
    if not is_inside.all():
        slot, source, target = moves[int(is_inside.all(axis=1).argmin())]
        raise CapacityError(
            f"a move from position {source} to {target} of slot {slot}, "
            f"expected one of {spec.n_slots} slots of {spec.n_ctx} positions"
        )


def checked_batch(batch: Batch, spec: StateSpec, info: ModelInfo) -> Batch:
    """A copy of a plugin's batch, which kernels can read without a look at it.

    Raises:
        OptionError: It is no batch, or names what the model does not have.
        CapacityError: A position does not fit into a slot.
    """
    if not isinstance(batch, Batch):
        raise OptionError(f"a pass over a {type(batch).__name__}, expected a Batch")
    n_layers = batch.n_layers
    if n_layers is not None and not (isinstance(n_layers, int | np.integer) and 1 <= n_layers <= info.n_layers):
        raise OptionError(f"a pass through {n_layers!r} layers, expected 1 to {info.n_layers}")
    tokens = _row("tokens", batch.tokens, info.n_vocab)
    if not (n := len(tokens)):
        raise OptionError("a pass over no tokens, expected some")
    slots = _row("slots", batch.slots, spec.n_slots, n=n)
    positions = _row("positions", batch.positions, spec.n_ctx, n=n, too_large=CapacityError)
    rows = _row("rows", batch.rows, n)
    parents = None if batch.parents is None else _row("parents", batch.parents, n, n=n, least=-1)
    moves = None if batch.moves is None else _row("moves", batch.moves, 2**31, columns=3)
    copy = Batch(tokens, slots, positions, rows, parents, moves, n_layers)
    if (rows[1:] <= rows[:-1]).any():
        raise OptionError(f"a pass with rows {rows.tolist()}, expected rising ones")
    if moves is not None:
        check_moves(moves, spec)
    if parents is not None:
        Tree(copy, spec.n_ctx)
    elif n > 1:
        order = np.argsort(slots, kind="stable")
        in_order, places = slots[order], positions[order]
        if ((in_order[1:] == in_order[:-1]) & (places[1:] <= places[:-1])).any():
            raise OptionError("a pass with positions that do not rise within a slot, expected each behind the one before")
    return copy


def _row(
    name: str,
    values: Any,
    n_known: int,
    *,
    n: int | None = None,
    columns: int | None = None,
    least: int = 0,
    too_large: type[Exception] = OptionError,
) -> np.ndarray:
    """A copy of numbers from `least` to `n_known` - 1 as int32: n if that is given, and so many columns of them, if not one."""
    try:
        given = np.array(values)
    except (TypeError, ValueError) as error:  # such as lists of unequal length
        raise OptionError(f"a pass with {name} that are no array: {error}") from None
    has_shape = given.ndim == 1 if columns is None else given.shape[1:] == (columns,)
    if not has_shape or (given.dtype.kind not in "iu" and given.size) or (n is not None and len(given) != n):
        expected = f"({'n' if n is None else n},{'' if columns is None else f' {columns}'})"
        raise OptionError(f"a pass with {name} of {given.dtype} in shape {given.shape}, expected {expected} int32")
    if given.size:
        smallest, largest = (given.item(), given.item()) if given.size == 1 else (int(given.min()), int(given.max()))
        if smallest < least or largest >= n_known:
            refusal = OptionError if smallest < least else too_large
            raise refusal(f"a pass with {name} from {smallest} to {largest}, expected {least} to {n_known - 1}")
    return given.astype(np.int32, copy=False)
