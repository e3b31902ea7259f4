"""Rewrites of a block's operations: rows of a pattern, its replacement and the reason, and those that backends share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from types import UnionType

from attrs import frozen

from augury.errors import UnsupportedError
from augury.lowering.operation import Operation, Value
from augury.lowering.operations import Activate, AddWeighed, FeedExperts, Multiply, Normalize
from augury.lowering.parts import Linear, LowRank


@frozen(eq=False)
class Fused(Operation):
    """Several operations that one kernel computes."""

    operations: tuple[Operation, ...]

    @property
    def made(self) -> tuple[Value, ...]:
        return tuple(value for each in self.operations for value in each.made)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Operation.read`: without values that it makes itself."""
        made = set(self.made)
        return tuple(value for each in self.operations for value in each.read if value.root not in made)


def parts_of(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations that fused ones consist of, and all others."""
    for each in operations:
        yield from parts_of(each.operations) if isinstance(each, Fused) else (each,)


def roots_of(operation: Operation) -> set[Value]:
    """The rows that an operation reads, or parts of them."""
    return {value.root for value in operation.read}


class Uses:
    """A list of operations, and who makes and who reads its values. `streams` are x, also as it was before the layer."""

    def __init__(self, operations: Sequence[Operation], streams: Container[Value] = ()) -> None:
        self.operations, self.streams, parts = operations, streams, [*parts_of(operations)]
        self.makers = {value: each for each in parts for value in each.made}  # of fused operations their parts
        self.readers = defaultdict[Value, list[Operation]](list)  # of rows, or a part of them: once for every time
        for each in parts:
            for value in each.read:
                self.readers[value.root].append(each)

    def after(self, operation: Operation) -> Operation | None:
        """The operation after one of the list."""
        i = self.operations.index(operation) + 1
        return self.operations[i] if i < len(self.operations) else None

    def is_norm_of_stream(self, operation: Operation | None) -> bool:
        """Whether an operation is a norm of x, or x itself."""
        return isinstance(operation, Normalize) and operation.x in self.streams


@frozen
class Rewrite:
    """Neighbours of some kinds become other operations."""

    pattern: tuple[type | UnionType, ...]  # the kinds; none: the replacement is that of the whole list
    replacement: Callable[..., Iterable[Operation] | None]  # of `Uses` and the neighbours: what they become; None: they stay
    reason: str  # what a backend gains by it


def rewritten(operations: Sequence[Operation], rewrites: Iterable[Rewrite], streams: Container[Value] = ()) -> list[Operation]:
    """The operations after all rewrites, each of them applied from the first operation to the last, in their order."""
    operations = [*operations]
    for rewrite in rewrites:
        operations = [*_applied(rewrite, Uses(operations, streams))]
    return operations


def _applied(rewrite: Rewrite, uses: Uses) -> Iterator[Operation]:
    i, n = 0, len(rewrite.pattern)
    if n == 0:
        yield from rewrite.replacement(uses) or ()
        return
    while i < len(uses.operations):
        found = uses.operations[i : i + n]
        is_match = len(found) == n and all(map(isinstance, found, rewrite.pattern))
        made = rewrite.replacement(uses, *found) if is_match else None
        yield from found[:1] if made is None else made
        i += 1 if made is None else n


@frozen(eq=False)
class MultiplyActivated(Operation):
    """out[0] = `activate` of the products of x; the other values of out are these products, which last until then."""

    x: Value
    linears: tuple[Linear, ...]
    activate: Activate
    reader: Linear | None  # the only matrix that reads out[0], if nothing else does
    purpose: str
    out: tuple[Value, ...]


@frozen(eq=False)
class FeedExpertsAndAdd(Operation):
    """out = the sum over experts, plus the rows that `sum` adds to it."""

    feed: FeedExperts
    sum: AddWeighed
    x: Value
    routes: Value
    added: tuple[Value, ...]
    out: Value


@frozen(eq=False)
class AddLowRank(Operation):
    """y += what adapters add to a product y of x, in place; see `LowRank`."""

    x: Value
    y: Value
    low_rank: LowRank


def with_low_ranks(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations, each product followed by what adapters add to it."""
    for each in operations:
        yield each
        if isinstance(each, Multiply):
            products = zip(each.linears, each.out, strict=True)
            yield from (AddLowRank(each.x, y, linear.low_rank) for linear, y in products if linear.low_rank is not None)


def _activated(uses: Uses, multiply: Multiply, activate: Activate) -> Iterable[Operation] | None:
    """Products of which all are activated, and read by nothing else; the next step's operands, if it is a single matrix."""
    read = (activate.x, *(() if activate.up is None else (activate.up,)))
    if multiply.out != read or any(len(uses.readers[value]) > 1 for value in read):
        return None
    reader, last = None, uses.after(activate)
    if isinstance(last, Multiply) and last.x is activate.out and len(uses.readers[last.x]) == len(last.linears) == 1:
        reader = last.linears[0]
    out = (activate.out, *multiply.out)
    return (MultiplyActivated(multiply.x, multiply.linears, activate, reader, multiply.purpose, out),)


def _summed(uses: Uses, feed: FeedExperts, weighed: AddWeighed) -> Iterable[Operation] | None:
    """A sum over experts that nothing else reads, with what is added to it."""
    if weighed.y is not feed.out or len(uses.readers[feed.out]) > 1:
        return None
    added = tuple(value for value in (weighed.other, weighed.x) if value is not None)
    return (FeedExpertsAndAdd(feed, weighed, feed.x, feed.routes, added, weighed.out),)


ACTIVATE_PRODUCTS = Rewrite(
    (Multiply, Activate),
    _activated,
    "products are activated while the caches have them, and made operands of the next matrix there; "
    "those of a prompt would go to memory and back",
)
ADD_SUMS = Rewrite(
    (FeedExperts, AddWeighed),
    _summed,
    "the shared expert's rows are added where the others' are added up, which reads and writes the sums once",
)


def n_early(operations: Sequence[Operation], before: Value) -> int:
    """How many of the first operations read nothing but `before`, the residual stream as it was before the layer."""
    known = {before}
    for i, each in enumerate(operations):
        if not (isinstance(each, Normalize | Multiply | AddLowRank) and each.x in known):
            return i
        known.update(each.made)
    return len(operations)


def check_norms(operations: Sequence[Operation], streams: Container[Value]) -> None:
    """Raise an UnsupportedError if a norm of x is read after the next: both lie in the same rows.

    `streams` are x, also as it was before the layer.
    """
    replaced, last = set[Value](), None
    for each in operations:
        if not replaced.isdisjoint(value.root for value in each.read):
            raise UnsupportedError(
                f"a norm of x is read by {type(each).__name__} after the next norm of x; read each before the next"
            )
        if isinstance(each, Normalize) and each.x in streams:
            replaced.update(() if last is None else (last,))
            last = each.out
