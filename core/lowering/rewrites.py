"""Rewrites of a block's list of operations that backends share: operations that one kernel computes, and checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from augury.errors import UnsupportedError
from augury.lowering.operation import Operation, Value
from augury.lowering.operations import Activate, AddWeighed, FeedExperts, Multiply, Normalize

if TYPE_CHECKING:
    from augury.lowering.parts import Linear


@frozen(eq=False)
class MultiplyActivated(Operation):
    """out[0] = `activate` of the products of x; the other values of out are these products, which last until then."""

    x: Value
    linears: tuple[Linear, ...]
    activate: Activate
    reader: Linear | None  # the only matrix that reads out[0], if nothing else does
    purpose: str
    out: tuple[Value, ...]


def with_activated_products(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Activate products in the step that makes them, while the caches have them, and make operands of the next matrix there.

    A prompt's products would go to memory and back otherwise.
    """
    following, n_reads = [*operations[1:], None, None], _reads(operations)
    activated = set[Operation]()
    for multiply, activate, last in zip(operations, following, following[1:], strict=False):
        if isinstance(multiply, Multiply) and isinstance(activate, Activate) and _are_alone(multiply, activate, n_reads):
            activated.add(activate)
            reader = None
            if isinstance(last, Multiply) and last.x is activate.out and n_reads[activate.out] == len(last.linears) == 1:
                reader = last.linears[0]
            out = (activate.out, *multiply.out)
            yield MultiplyActivated(multiply.x, multiply.linears, activate, reader, multiply.purpose, out)
        elif multiply not in activated:
            yield multiply


def _are_alone(multiply: Multiply, activate: Activate, n_reads: Counter[Value]) -> bool:
    """Whether all that is multiplied is activated, and read by nothing else."""
    read = (activate.x, *(() if activate.up is None else (activate.up,)))
    return multiply.out == read and all(n_reads[value] == 1 for value in read)


def _reads(operations: Sequence[Operation]) -> Counter[Value]:
    """How often the rows are read, or a part of them."""
    return Counter(value.root for each in operations for value in each.read)


@frozen(eq=False)
class FeedExpertsAndAdd(Operation):
    """out = the sum over experts, plus the rows that `sum` adds to it."""

    feed: FeedExperts
    sum: AddWeighed
    x: Value
    routes: Value
    added: tuple[Value, ...]
    out: Value


def with_sums(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Add the shared expert's rows where the others' are added up, which reads and writes the sums once.

    The sum over experts alone is not made then.
    """
    n_reads = _reads(operations)

    def join(feed: Operation, following: Operation) -> tuple[Operation, ...]:
        if not (isinstance(feed, FeedExperts) and isinstance(following, AddWeighed) and following.y is feed.out):
            return ()
        if n_reads[feed.out] > 1:
            return ()
        added = tuple(value for value in (following.other, following.x) if value is not None)
        return (FeedExpertsAndAdd(feed, following, feed.x, feed.routes, added, following.out),)

    return with_pairs(operations, join)


def with_pairs(
    operations: Sequence[Operation], join: Callable[[Operation, Operation], Sequence[Operation]]
) -> Iterator[Operation]:
    """The operations, with neighbours replaced by the operations that `join` makes of them; it makes none to keep both."""
    rest = [*operations]
    while rest:
        made = join(rest[0], rest[1]) if len(rest) > 1 else ()
        yield from made or rest[:1]
        del rest[: 2 if made else 1]


def n_early(operations: Sequence[Operation], before: Value) -> int:
    """How many of the first operations read nothing but `before`, the residual stream as it was before the layer."""
    known = {before}
    for i, each in enumerate(operations):
        if not (isinstance(each, Normalize | Multiply) and each.x in known):
            return i
        known.update(each.made)
    return len(operations)


def check_norms(operations: Sequence[Operation], streams: Container[Value]) -> None:
    """Refuse to read a norm of x after the next: both lie in the same rows. `streams` are x, also as it was before the layer.

    Raises:
        UnsupportedError: One is read.
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
