"""Rewrites of the operations of attention: heads and gates that kernels compute at once, or cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks import GateKind
from augury.errors import UnsupportedError
from augury.lowering import Attend, Gate, Operation, PrepareHeads, Value
from augury.lowering.rewrites import with_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["AttendGated", "with_gated_attention", "with_separate_heads"]


@frozen(eq=False)
class AttendGated(Operation):
    """out = what attention mixes, times activation(gates), one of which is of several neighbouring values."""

    attend: Attend
    queries: Value
    choice: Value | None
    gates: Value
    kind: GateKind
    out: Value


def with_gated_attention(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Gate what attention mixes where splits are merged."""

    def join(attend: Operation, gate: Operation) -> tuple[Operation, ...]:
        match attend, gate:
            case Attend(queries=queries, choice=choice, out=out), Gate(norm=None, skip=None, activation=GateKind() as kind):
                if gate.y is out and sum(out in (value.root for value in each.read) for each in operations) == 1:
                    return (AttendGated(attend, queries, choice, gate.gates, kind, gate.out),)
        return ()

    return with_pairs(operations, join)


def with_separate_heads(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Prepare heads one after another that the kernel does not prepare at once."""
    for each in operations:
        if not isinstance(each, PrepareHeads) or _are_prepared_at_once(each):
            yield each
            continue
        for x, dim, steps, cache, out in zip(each.x, each.dims, each.steps, each.caches, each.out, strict=True):
            one = PrepareHeads((x,), (dim,), (steps,), (cache,), (out,))
            if not _are_prepared_at_once(one):
                raise UnsupportedError("heads that are kept, and multiplied by a temperature; use backend reference")
            yield one


def _are_prepared_at_once(heads: PrepareHeads) -> bool:
    """Whether heads are queries, keys and values, of which the first two are turned alike, or the last of these."""
    n_queries = int(heads.caches[0] is None)
    turned, values, kept = heads.steps[: 1 + n_queries], heads.steps[1 + n_queries :], heads.steps[n_queries:]
    counts = {x.width // dim for x, dim in zip(heads.x[n_queries:], heads.dims[n_queries:], strict=True)}
    alike = ({each.clamp for each in heads.steps}, {(id(each.rope), each.is_rope_first) for each in turned})
    sizes = ({*heads.dims[: 1 + n_queries]}, counts)
    is_alike = len(values) < 2 and all(len(each) < 2 for each in (*alike, *sizes))
    return is_alike and not any(each.rope for each in values) and not any(each.temperature for each in kept)
