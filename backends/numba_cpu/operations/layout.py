"""Where the values of a block lie, and the copies that this takes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from attrs import evolve, frozen

from augury import lowering as op
from augury.backends.numba_cpu.kernels.attention_tile import PART
from augury.backends.numba_cpu.kernels.step import PANEL_ROWS
from augury.backends.numba_cpu.memory import up
from augury.backends.numba_cpu.tape import ThreadRows, row_bytes
from augury.blocks import Norm
from augury.lowering import Operation, Value
from augury.lowering.rewrites import AddLowRank, FeedExpertsAndAdd

HIDDEN = "hidden states"  # the buffer of those that a layer which predicts further tokens is given
INPUTS = "layer inputs"  # the buffer of rows that the embedding makes for all layers, in whole panels

_PLACELESS = op.Route | op.Choose | op.ChooseByHead  # their values lie in buffers of their own
_HEADS = op.PrepareHeads | op.PrepareLatents | op.MultiplyHeads | op.Attend
_APART = op.Gate | op.ReadHidden | op.ReadInput | _HEADS | op.LookUp
_WRITTEN_OVER: dict[type[Operation], str] = {
    op.Gate: "y",
    op.Convolve: "x",  # products of it and of gates before it
    op.PrepareHeads: "x",
    op.PrepareLatents: "queries",
}
_SUMS = op.FeedExperts | FeedExpertsAndAdd | op.AddWeighed
_VECTOR = 16  # floats that a recurrence's row is padded to


def with_copies(operations: Sequence[Operation], streams: Container[Value]) -> list[Operation]:
    """The same operations, with a copy of each value that does not lie as an operation needs it.

    Matrix kernels write whole panels and read rows without gaps. A recurrence reads all of its values from one row, a gate
    writes over the gated rows, and norms of `streams`, which the tape keeps, may be a thread's own.
    """
    lie = PlacementRules.of(operations, streams)
    copies, made = dict[Value, Value](), list[Operation]()
    for i, operation in enumerate(operations):
        later = [value for each in operations[i + 1 :] for value in each.read]
        moved = [value for value in operation.read if lie.is_misplaced(value, operation, later)]
        new = [value for value in moved if value not in copies or isinstance(operation, op.Add | op.Recur)]
        copies |= {value: Value(value.width) for value in new}
        made += [op.Normalize(value, None, copies[value]) for value in new]
        given = operation.with_values({value: copies[value] for value in moved})
        own = {value: Value(value.width) for value in _written_over(given) if _is_needed(value, given, later)}
        made += [op.Normalize(value, None, copy) for value, copy in own.items()]
        made.append(_with_own(given, own))
        written = _written_over(made[-1])
        copies = {value: copy for value, copy in copies.items() if copy not in written}
        if isinstance(operation, op.ScaleToLength):  # which computes in place
            copies = {value: copy for value, copy in copies.items() if value.root is not operation.x.root}
        elif isinstance(operation, op.Recur):
            lie.apart.update(value.root for value in operation.read)
    return made


def _in_place(operation: Operation) -> list[tuple[Value, Value]]:
    """The values that an operation makes in the place of others, with these."""
    if isinstance(operation, op.Gate):
        return [(operation.out, operation.y)]
    return list(zip(operation.out, operation.x, strict=True)) if isinstance(operation, op.PrepareHeads) else []


def _written_over(operation: Operation) -> tuple[Value, ...]:
    """The values that an operation reads and writes over."""
    name = _WRITTEN_OVER.get(type(operation))
    if name is None or (isinstance(operation, op.Convolve) and operation.before is None):
        return ()
    written = getattr(operation, name)
    return written if isinstance(written, tuple) else (written,)


def _with_own(operation: Operation, own: Mapping[Value, Value]) -> Operation:
    """An operation that writes over copies of some values."""
    if not own:
        return operation
    name, written = _WRITTEN_OVER[type(operation)], tuple(own.get(value, value) for value in _written_over(operation))
    return evolve(operation, **{name: written if isinstance(getattr(operation, name), tuple) else written[0]})


def _is_needed(value: Value, operation: Operation, later: Sequence[Value]) -> bool:
    """Whether the operation that writes over a value reads it elsewhere, or one after it does."""
    others = list(operation.read)
    others.remove(value)
    return (isinstance(operation, op.Gate) and value.whole is not None) or any(
        value.overlaps(each) for each in (*others, *later)
    )


@frozen
class PlacementRules:
    """Which values lie how, and which operations cannot read them so."""

    norms: set[Value]  # of the residual stream
    landing: set[Value]  # products and sums, which can be written where the residual stream takes them from
    padded: set[Value]  # products whose rows are followed by the rest of a panel, and values computed in their place
    apart: set[Value]  # that cannot lie beside others in a row

    @classmethod
    def of(cls, operations: Sequence[Operation], streams: Container[Value]) -> PlacementRules:
        """Those of a block."""
        norms = {each.out for each in operations if isinstance(each, op.Normalize) and each.x in streams}
        products = {value for each in operations if isinstance(each, op.Multiply) for value in each.out}
        landing = products | {each.out for each in operations if isinstance(each, _SUMS)}
        padded = {value for value in products if value.width % PANEL_ROWS}
        for each in operations:
            padded.update(out for out, x in _in_place(each) if x in padded)
        dense = [
            each for each in operations if isinstance(each, op.Multiply | op.MultiplyHeads | op.FeedExperts | op.AddWeighed)
        ]
        apart = landing | {value.root for each in dense for value in each.read}
        apart |= {value for each in operations if isinstance(each, _APART) for value in each.made}
        return cls(norms, landing, padded, apart)

    def is_misplaced(self, value: Value, operation: Operation, later: Sequence[Value]) -> bool:
        """Whether an operation needs a copy of a value; `later` are values read after it."""
        is_norm, is_part = value.root in self.norms, value.whole is not None
        match operation:
            case op.Multiply() | op.FeedExperts():
                is_norm, is_odd = False, is_part or value in self.padded
            case op.Join() | AddLowRank():
                is_norm, is_odd = False, False
            case op.MultiplyHeads() | op.InitStreams() | op.ComputeLogits():
                is_odd = is_part or value in self.padded
            case op.AddWeighed():
                is_norm, is_odd = is_norm and value is not operation.x, is_part or value in self.padded
            case op.Add():
                is_odd = value not in self.landing or any(value.overlaps(each) for each in later)
            case op.Recur():
                is_odd = value.root in self.apart
            case op.Convolve():
                is_gated = operation.before is not None or operation.after is not None
                lie_apart = len({each.root for each in operation.read}) > 1 or any(
                    _is_needed(each, operation, later) for each in _written_over(operation)
                )
                is_odd = is_gated and lie_apart
            case _:
                is_odd = False
        return is_norm or is_odd


def _begun(operations: Sequence[Operation]) -> set[Value]:
    """The values that x begins as, from rows of a table on, if each can be made in the place of the one before."""
    makers = {value: each for each in operations for value in each.made}
    found = [each.y[0] for each in operations if isinstance(each, op.InitStreams) and len(each.y) == 1]
    readers = [each for each in operations if not isinstance(each, op.Multiply) and found and found[0] in each.read]
    while found and len(readers) == 1:
        match makers.get(found[-1]):
            case op.LookUp():
                return set(found)
            case op.Normalize(x=x, norm=Norm() as norm) if norm.size == x.width:
                found.append(x)
            case op.AddWeighed(y=x, gate=None):
                found.append(x)
            case _:
                break
        readers = [each for each in operations if found[-1] in each.read]
    return set()


def _width(operation: Operation, value: Value) -> int:
    """Floats of a row of a value: latents are padded, head by head."""
    if isinstance(operation, op.PrepareLatents):
        n_latent = operation.norm.size
        return operation.keys.n * (up(n_latent, PART) + up(operation.latents.width - n_latent, PART))
    if isinstance(operation, op.Attend) and operation.values is None:
        return operation.n_heads * up(value.width // operation.n_heads, PART)
    return value.width


class Layout:
    """The buffers of a block's values: one for each, but one for all that a recurrence reads, side by side.

    Values that are `added` to the residual stream lie where the tape says, those that it has `begun` as there at first.
    """

    def __init__(self, operations: Sequence[Operation], kept: Container[Value], n_early: int) -> None:
        """Give each value of a block's operations a place; the tape keeps norms of `kept`, x, also as it was before the layer.

        Values of the first `n_early` operations, those before the layer, may not be overwritten by other blocks.
        """
        self.buffers: dict[str, int] = {}  # bytes by name
        self._at: dict[Value, tuple[str, int, int]] = {}  # buffer, column, floats of a row
        self._decayed: dict[str, int] = {}  # by buffer of a row
        products = {value for each in operations if isinstance(each, op.Multiply) for value in each.out}
        self.added, self.begun = {each.y for each in operations if isinstance(each, op.Add)}, _begun(operations)
        for each in operations:
            if isinstance(each, op.Recur):
                self._add_row(each)
        for i, each in enumerate(operations):
            if isinstance(each, _PLACELESS) or (isinstance(each, op.Normalize) and each.x in kept):
                continue
            if isinstance(each, op.ReadInput):
                width = each.out.width
                self._at[each.out] = (INPUTS, each.index * width, up(each.n_layers * width, PANEL_ROWS))
                continue
            if isinstance(each, op.ReadHidden):
                self._at[each.out] = (HIDDEN, 0, each.out.width)
                continue
            for out, x in _in_place(each):
                name, column, stride = self._at[x.root]
                self._at[out] = (name, column + x.first, stride)
            for value in each.made:
                if value not in self._at and value not in self.added | self.begun:
                    stride = up(value.width, PANEL_ROWS) if value in products else _width(each, value)
                    self._at[value] = (self._buffer(stride, "early value" if i < n_early else "value"), 0, stride)

    def place(self, value: Value, buffers: Mapping[str, int]) -> ThreadRows:
        """Where a value lies, by the addresses of the buffers."""
        name, column, stride = self._at[value.root]
        return ThreadRows(buffers[name] + 4 * (column + value.first), stride)

    def stride(self, value: Value) -> int:
        """How many floats lie from one row of a value to the next."""
        return up(value.width, PANEL_ROWS) if value in self.added else self._at[value.root][2]

    def column(self, value: Value) -> int:
        """The column in the row of a value that a recurrence reads."""
        return self._at[value.root][1] + value.first

    def decayed(self, decays: Value) -> int:
        """The column of keys times decays by key, in the row that has the decays."""
        return self._decayed[self._at[decays.root][0]]

    def row(self, value: Value, buffers: Mapping[str, int]) -> ThreadRows:
        """The row of several values that a value lies in."""
        name, _, stride = self._at[value.root]
        return ThreadRows(buffers[name], stride)

    def _add_row(self, recur: op.Recur) -> None:
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
