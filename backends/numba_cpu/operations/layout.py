"""Where the values of a block lie, and the copies that this takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, fields, frozen

from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.tape import row_bytes
from augury.lowering import Add, AddWeighed, FeedExperts, Gate, Multiply, Normalize, ReadHidden, ReadInput, Recur, Route, Value
from augury.lowering.rewrites import FeedMoreExperts

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from augury.lowering import Operation

__all__ = ["HIDDEN", "INPUTS", "Layout", "Place", "with_copies"]

HIDDEN = "hidden states"
"""The buffer of the hidden states that a layer which predicts further tokens is given."""

INPUTS = "layer inputs"
"""The buffer of what the embedding makes for all layers: rows in whole panels."""

_SUMS = FeedExperts | FeedMoreExperts | AddWeighed
_VECTOR = 16  # floats that a recurrence's row is padded to


@frozen
class Place:
    """Rows of floats: the address of the first, and how many floats lie from one to the next."""

    address: int
    stride: int


def with_copies(operations: Sequence[Operation]) -> list[Operation]:
    """The same operations, with a copy of each value that does not lie as an operation after it needs it.

    Matrix kernels write whole panels and read rows without gaps. A recurrence reads all of its values from one row.
    """
    padded = _padded(operations)
    apart = {value for each in operations if isinstance(each, Multiply) for value in (each.x.root, *each.out)}
    copies: dict[Value, Value] = {}
    made = []
    for operation in operations:
        moved = dict[str, Value]()
        if isinstance(operation, Recur):
            values = {each.name: getattr(operation, each.name) for each in fields(Recur) if each.name != "out"}
            moved = {name: each for name, each in values.items() if isinstance(each, Value) and each.root in apart}
        elif isinstance(operation, Multiply) and (operation.x.whole is not None or operation.x in padded):
            moved = {"x": operation.x}
        for name, value in moved.items():
            moved[name] = copies.setdefault(value, Value(value.width))
        made.append(evolve(operation, **moved) if moved else operation)
    return list(_with_normalized(made, copies))


def _padded(operations: Sequence[Operation]) -> set[Value]:
    """Products whose rows are followed by the rest of a panel, and what is computed in their place."""
    padded: set[Value] = set()
    for each in operations:
        if isinstance(each, Multiply):
            padded.update(value for value in each.out if value.width % PANEL_ROWS)
        elif isinstance(each, Gate) and each.y in padded:
            padded.add(each.out)
    return padded


def _with_normalized(operations: Sequence[Operation], copies: Mapping[Value, Value]) -> Iterator[Operation]:
    """The operations, each followed by copies of what it made."""
    for operation in operations:
        yield operation
        yield from (Normalize(value, None, copy) for value, copy in copies.items() if value.root in operation.made)


class Layout:
    """The buffers of a block's values: one for each, but one for all that a recurrence reads, side by side.

    Attributes:
        buffers: Bytes by name.
        added: Products and sums that are added to the residual stream, which lie where the tape says.
    """

    def __init__(self, operations: Sequence[Operation], kept: Container[Value], n_early: int) -> None:
        """Give each value a place.

        Args:
            operations: Of the block.
            kept: x, whose norms the tape keeps, also as it was before the layer.
            n_early: Operations before the layer, whose values other blocks may not overwrite.
        """
        self.buffers: dict[str, int] = {}
        self._at: dict[Value, tuple[str, int, int]] = {}  # buffer, column, floats of a row
        self._decayed: dict[str, int] = {}  # by buffer of a row
        products = {value for each in operations if isinstance(each, Multiply) for value in each.out}
        sums = {each.out for each in operations if isinstance(each, _SUMS)}
        self.added = {each.y for each in operations if isinstance(each, Add)} & (products | sums)
        for each in operations:
            if isinstance(each, Recur):
                self._add_row(each)
        for i, each in enumerate(operations):
            if isinstance(each, Route) or (isinstance(each, Normalize) and each.x in kept):
                continue
            if isinstance(each, ReadInput):
                width = each.out.width
                self._at[each.out] = (INPUTS, each.index * width, up(each.n_layers * width, PANEL_ROWS))
                continue
            if isinstance(each, ReadHidden):
                self._at[each.out] = (HIDDEN, 0, each.out.width)
                continue
            for value in each.made:
                if isinstance(each, Gate):  # which is computed in place
                    self._at[value] = self._at[each.y.root]
                elif value not in self._at and value not in self.added:
                    stride = up(value.width, PANEL_ROWS) if value in products else value.width
                    self._at[value] = (self._buffer(stride, "early value" if i < n_early else "value"), 0, stride)

    def place(self, value: Value, buffers: Mapping[str, int]) -> Place:
        """Where a value lies, by the addresses of the buffers."""
        name, column, stride = self._at[value.root]
        return Place(buffers[name] + 4 * (column + value.first), stride)

    def column(self, value: Value) -> int:
        """Of a value that a recurrence reads: its column in the row."""
        return self._at[value.root][1] + value.first

    def decayed(self, decays: Value) -> int:
        """The column of keys times decays by key, in the row that has the decays."""
        return self._decayed[self._at[decays.root][0]]

    def row(self, value: Value, buffers: Mapping[str, int]) -> Place:
        """The row of several values that a value lies in."""
        name, _, stride = self._at[value.root]
        return Place(buffers[name], stride)

    def _add_row(self, recur: Recur) -> None:
        read = (recur.queries, recur.keys, recur.values, recur.decays, recur.betas)
        columns, width = dict[Value, int](), 0
        for root in dict.fromkeys(value.root for value in read if value is not None):
            columns[root], width = width, width + root.width
        decayed, width = width, width + (recur.keys.width if recur.heads.is_by_key else 0)
        stride = up(width, _VECTOR)
        name = self._buffer(stride)
        self._decayed[name] = decayed
        self._at |= {root: (name, column, stride) for root, column in columns.items()}

    def _buffer(self, width: int, name: str = "value") -> str:
        name = f"{name} {len(self.buffers)}"
        self.buffers[name] = row_bytes(width)
        return name
