"""Operations that one kernel computes together, and the writers and readers of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from augury.lowering import Operation, Value


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


def makers_of(operations: Iterable[Operation]) -> dict[Value, Operation]:
    """The operation that makes each value."""
    return {value: each for each in parts_of(operations) for value in each.made}


def roots_of(operation: Operation) -> set[Value]:
    """The rows that an operation reads, or parts of them."""
    return {value.root for value in operation.read}


def readers_of(operations: Iterable[Operation], value: Value) -> list[Operation]:
    """The operations that read a value."""
    return [each for each in parts_of(operations) if value in (read.root for read in each.read)]
