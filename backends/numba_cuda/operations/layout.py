"""Where the values of a block lie: side by side in rows of floats, as operands of matrices, or in the residual stream."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import pairwise

from attrs import evolve

from augury import lowering as op
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS, UNIT
from augury.backends.numba_cuda.kernels.inputs import FEW_TOKENS, MAX_TOKENS
from augury.backends.numba_cuda.operations.expert_rewrites import ChooseExperts
from augury.backends.numba_cuda.operations.rewrites import GIVEN, ActivateAndDecay, AttendLatents, NormalizeParts, made_apart
from augury.backends.numba_cuda.products import DeviceRows, Operand, units_of
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import Linear, Matrices
from augury.lowering import Operation, Value
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated, parts_of

EMBEDDED, HIDDEN, INPUTS = "embedded", "hidden states", "layer inputs"
"""The buffers of the embedding's output, of a pass' hidden states, and of rows that the embedding makes for all layers."""

_PRODUCTS = op.Multiply | MultiplyActivated
_SUMS = op.FeedExperts | FeedExpertsAndAdd
_CHOICES = op.Choose | op.ChooseByHead


class Layout:
    """Gives each value of a block a place.

    Products of one launch lie side by side in one row, as do all values that a recurrence reads. Heads of queries, keys and
    values have no gaps between them. A value that is normed, and read by nothing else, stays where it is. Matrices read floats
    or units in rows of their own.

    Attributes:
        buffers: Bytes by name.
        streams: x, also as it was before the layer.
        makers: The operation that makes each value.
        operands: The values that matrices read: the buffers' name, and which MAX_TOKENS rows of them.
        in_place: The values that are made where others were, with these.
        widths: Values of a row of a buffer.
    """

    def __init__(self, operations: Sequence[Operation], streams: Container[Value], n_early: int) -> None:
        """Lay out a block's operations; norms of `streams`, which are x, also as it was before the layer, the tape keeps.

        Values of the first `n_early` operations, those before the layer, may not be overwritten by other blocks.
        """
        self._operations, self.streams = [*parts_of(operations)], streams
        self.makers = {value: each for each in self._operations for value in each.made}
        self.buffers: dict[str, int] = {}
        self.operands: dict[Value, tuple[str, int]] = {}
        for each in operations:
            self._add_operands(each)
        self.in_place: dict[Value, Value] = {}
        self._normed: dict[Value, op.Normalize] = {}  # by the value that is normed where matrices read it
        for each in operations:
            self._add_in_place(each)
        self._added = {value: each.norm for each in operations if isinstance(each, op.Add) for value in self._made_to_add(each)}
        begun = {self._canonical(each.y[0]) for each in operations if isinstance(each, op.InitStreams)}
        self._begun = {value for value in begun if isinstance(self.makers[value], op.LookUp)}
        self._given = {self._canonical(each.x) for each in operations if isinstance(each, op.SetLayerInputs)}
        self._columns: dict[Value, tuple[str, int]] = {}  # buffer and column
        self.widths: dict[str, int] = {}
        self._next = {a: b for each in self._operations for a, b in self._neighbours(each)}
        early = {value for each in operations[:n_early] for value in each.made}
        for group in self._groups():
            name = "early rows" if early.issuperset(group) else "rows"
            self._add_row(group, INPUTS if self._given.issuperset(group) else f"{name} {len(self.widths)}")

    # Queries of emitters

    def products(self, multiply: op.Multiply) -> list[tuple[Linear, int]]:
        """Matrices, each with the column of its products; a choice scales the products that it weighs by itself."""
        products = [*zip(multiply.linears, multiply.out, strict=True)]
        linears = [evolve(linear, scale=1.0) if self._is_weight(out) else linear for linear, out in products]
        return [(linear, self.row(out)[1]) for linear, (_, out) in zip(linears, products, strict=True) if not self.is_left(out)]

    def scale(self, weights: Value) -> float:
        """The factor that a choice scales its weights by."""
        maker = self.makers.get(weights)
        if not (isinstance(maker, op.Multiply) and self._is_weight(weights)):
            return 1.0
        return maker.linears[maker.out.index(weights)].scale

    def _is_weight(self, value: Value) -> bool:
        return all(isinstance(each, op.Choose) and each.weights is value for each in self._readers(value))

    def first_products(self) -> tuple[op.Multiply, str] | None:
        """The products of a norm of x that a block begins with, and their buffer, if nothing else lies there."""
        norm, multiply, *_ = self._operations
        if not (self._is_norm_of_stream(norm) and isinstance(multiply, op.Multiply)) or self.is_left(multiply.out[0]):
            return None
        name, _ = self.row(multiply.out[0])
        there = {value for value, (other, _) in self._columns.items() if other == name}
        return (multiply, name) if there == set(multiply.out) else None

    def adds(self, value: Value) -> bool:
        """Whether the operation that makes a value adds it to x."""
        return self._added.get(self._canonical(value), ...) is None

    def is_left(self, value: Value) -> bool:
        """Whether a value is made where it is added to x, or where its norm is added from."""
        return self._canonical(value) in self._added

    def begins(self, value: Value) -> bool:
        """Whether a value lies where x does, which begins as it."""
        return self._canonical(value) in self._begun

    def is_given(self, value: Value) -> bool:
        """Whether a value lies where layers read their inputs."""
        name, _ = self._columns.get(self._canonical(value), ("", 0))
        return name == INPUTS

    def row(self, value: Value) -> tuple[str, int]:
        """The buffer that a value lies in, and its column there."""
        column, root = value.first, value.root
        while root in self.in_place:
            column, root = column + self.in_place[root].first, self.in_place[root].root
        name, first = self._columns[root]
        return name, column + first

    def rows(self, value: Value, tape: Tape) -> DeviceRows:
        """The rows of a value, from its first column on."""
        root, maker = value.root, self.makers.get(value.root)
        if isinstance(maker, GIVEN):
            name = INPUTS if isinstance(maker, op.ReadInput) else HIDDEN if isinstance(maker, op.ReadHidden) else EMBEDDED
            column, n = (maker.index * root.width, maker.n_layers) if isinstance(maker, op.ReadInput) else (0, 1)
            return DeviceRows(tape.buffers[name].at(4 * (column + value.first)), n * root.width)
        is_operand = root in self._normed or (root in self.operands and not isinstance(maker, op.Convolve))
        if root in tape.operands or is_operand:
            operand = self.operand(root, tape)
            return DeviceRows(operand.floats.at(4 * value.first), operand.width)
        if (canonical := self._canonical(value)) in self._begun:
            return tape.x
        if canonical in self._added:
            if self._added[canonical] is None:
                return tape.x
            tape.add_pending()
            return DeviceRows(tape.buffers["y"], tape.x.width)
        row = self.whole_row(value, tape)
        return DeviceRows(row.at.at(4 * self.row(value)[1]), row.width)

    def whole_row(self, value: Value, tape: Tape) -> DeviceRows:
        """The rows of all values that lie side by side with one, from their first column on."""
        name, _ = self.row(value)
        return tape.made.get((self, name)) or DeviceRows(tape.buffers[name], self.widths[name])

    def operand(self, value: Value, tape: Tape) -> Operand:
        """Where a value is, or is to be, as matrices read it; of one that is normed first: floats alone."""
        if value in tape.operands:
            return tape.operands[value]
        if value in self._normed:
            return self.operand(self._normed[value].out, tape).before(self._normed[value].norm)
        if value not in self.operands:
            rows = self.rows(value, tape)
            return rows.operand
        name, number = self.operands[value]
        alike = [each for each, (other, _) in self.operands.items() if other == name]
        wanted = [self.wanted(each, tape) for each in alike]
        operand = tape.operand(name, value.width, [part for parts, _ in wanted for part in parts])
        return evolve(operand, as_floats=operand.as_floats or any(floats for _, floats in wanted)).after(number * MAX_TOKENS)

    def wanted(self, value: Value, tape: Tape) -> tuple[list[Linear | Matrices], bool]:
        """The matrices that read a value, and whether something else reads it as floats."""
        parts, has_floats = list[Linear | Matrices](), False
        for each in self._readers(value):
            if isinstance(each, _PRODUCTS):
                parts += each.linears
                continue
            has_floats = has_floats or not isinstance(self.makers[value], op.Convolve)
            if isinstance(each, _SUMS) and tape.size.n_tokens <= FEW_TOKENS:
                experts = (each.feed if isinstance(each, FeedExpertsAndAdd) else each).experts
                parts += [part for part in (experts.gate, experts.up) if part is not None]
        return parts, has_floats

    # How it is laid out

    def _readers(self, value: Value) -> list[Operation]:
        return [each for each in self._operations if value.root in (read.root for read in each.read)]

    def _add_operands(self, operation: Operation) -> None:
        found = [value for each in parts_of((operation,)) for value in each.made if self._is_multiplied(each, value)]
        is_one, n = isinstance(operation, NormalizeParts), len({name for name, _ in self.operands.values()})
        for i, value in enumerate(found):
            name, number = f"operand {n + (0 if is_one else i)}", i if is_one else 0
            self.operands[value] = (name, number)
            self.buffers |= Tape.operand_buffers(name, value.width, (number + 1) * MAX_TOKENS)

    def _is_multiplied(self, maker: Operation, value: Value) -> bool:
        if self._is_norm_of_stream(maker) or not made_apart(maker, value):
            return False
        return isinstance(maker, op.MultiplyHeads) or any(isinstance(each, _PRODUCTS) for each in self._readers(value))

    def _is_norm_of_stream(self, operation: Operation) -> bool:
        return isinstance(operation, op.Normalize) and operation.x in self.streams

    def _add_in_place(self, operation: Operation) -> None:
        if isinstance(operation, ActivateAndDecay):
            self.in_place |= {each.out: each.x for each in operation.operations if isinstance(each, op.Activate)}
            return
        for each in parts_of((operation,)):
            if isinstance(each, op.Normalize) and not self._is_norm_of_stream(each) and len(self._readers(each.x)) == 1:
                if each.out not in self.operands:
                    if self._is_in_row(each.x) and each.norm is not None:
                        self.in_place[each.out] = each.x
                elif isinstance(self.makers[each.x.root], op.Activate | MultiplyActivated | op.Attend) and each.x.whole is None:
                    self._normed[each.x] = each
            elif isinstance(each, op.PrepareHeads):
                for x, out in zip(each.x, each.out, strict=True):
                    if len(self._readers(x)) == 1 and self._is_in_row(x):
                        self.in_place[out] = x
            elif isinstance(each, op.AddWeighed) and len(self._readers(each.y)) == 1 and self._is_in_row(each.y):
                self.in_place[each.out] = each.y

    def _is_in_row(self, value: Value) -> bool:
        maker = self.makers[value.root]
        return not (value.root in self.operands or isinstance(maker, GIVEN) or self._is_norm_of_stream(maker))

    def _made_to_add(self, add: op.Add) -> Iterator[Value]:
        """The value that is added to x, if the operation that makes it can add it."""
        value = self._canonical(add.y)
        maker = self.makers[value]
        later = self._operations[self._operations.index(maker) :]
        is_whole = add.y.whole is None and len(self._readers(add.y)) == 1
        if isinstance(maker, _PRODUCTS | _SUMS) and is_whole and not any(map(self._is_norm_of_stream, later)):
            yield value

    def _canonical(self, value: Value) -> Value:
        """The value that was first in the place of a value."""
        root = value.root
        while root in self.in_place:
            root = self.in_place[root].root
        return root

    def _groups(self) -> Iterator[list[Value]]:
        """Values that lie in one row, in the order in which they are made, except the inputs of betas, which are last."""
        last = {each.b.root for each in self._operations if isinstance(each, op.Decay) and each.b is not None}
        choices = [each for each in self._operations if isinstance(each, op.Choose) and each.queries and each.weights]
        pairs = [*self._next.items(), *([self._canonical(value) for value in each.read] for each in choices)]
        after = {self.makers[b] for a, b in pairs if self.makers[a] is not self.makers[b]}
        joined = list[set[Value]]()
        for each in self._operations:
            groups = [{value} for value in each.made]
            if isinstance(each, _PRODUCTS):
                groups = [set(each.out[isinstance(each, MultiplyActivated) :]) - self._added.keys(), *groups[:1]]
            if isinstance(
                each, op.Recur | ChooseExperts | op.Convolve | op.Decay | op.PrepareHeads | op.PrepareLatents | _CHOICES
            ):
                groups.append({self._canonical(value) for value in each.read})
            for group in groups:
                others = [other for other in joined if not other.isdisjoint(group)]
                joined = [other for other in joined if other not in others] + [group.union(*others)]
        for group in joined:
            if made := [value for value in self.makers if value in group and not self._lies_elsewhere(value)]:
                yield [*self._in_order(sorted(made, key=lambda value: (value in last, self.makers[value] in after)))]

    def _in_order(self, values: Sequence[Value]) -> Iterator[Value]:
        """The values, each followed by the values that it needs to have next to it."""
        following = {self._next[value] for value in values if value in self._next}
        for first in values:
            value = None if first in following else first
            while value is not None:
                yield value
                value = self._next.get(value)

    def _neighbours(self, operation: Operation) -> Iterator[tuple[Value, Value]]:
        """The values that an operation reads side by side, without a gap."""
        if isinstance(operation, op.PrepareHeads):
            values = dict.fromkeys(map(self._canonical, operation.read))
            yield from pairwise(values)

    def _lies_elsewhere(self, value: Value) -> bool:
        """Whether a value takes no columns: it is an operand, in the residual stream, where another was, or routes."""
        maker = self.makers[value]
        is_operand = value in self.operands and not isinstance(maker, op.Convolve)
        is_no_row = isinstance(
            maker, GIVEN | ChooseExperts | _CHOICES | op.PrepareLatents | AttendLatents
        ) or self._is_norm_of_stream(maker)
        places = (self.in_place, self._normed, self._added, self._begun)
        return is_operand or is_no_row or any(value in some for some in places)

    def _add_row(self, group: Sequence[Value], name: str) -> None:
        width, following = 0, set(self._next.values())
        for value in group:
            maker = self.makers[value]
            is_product = isinstance(maker, _PRODUCTS) and value in maker.made[isinstance(maker, MultiplyActivated) :]
            wants_gap = not any(isinstance(each, ChooseExperts) for each in self._readers(value)) and value not in following
            if is_product and wants_gap:
                width = -(-width // TILE_ROWS) * TILE_ROWS
            self._columns[value] = (name, width)
            is_in_units = made_apart(maker, value) and not isinstance(maker, op.Convolve | op.Normalize)
            width += UNIT * units_of(value.width) if is_in_units else value.width
        self.widths[name] = width
        self.buffers[name] = 4 * MAX_TOKENS * width
