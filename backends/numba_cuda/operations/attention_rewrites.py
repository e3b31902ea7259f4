"""Rewrites of the operations of attention: heads and gates that kernels compute at once, or cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import asdict, field, frozen

from augury.backends.numba_cuda.operations.fused import readers_of
from augury.blocks import GateKind, Matrices
from augury.errors import UnsupportedError
from augury.lowering import Attend, Gate, MultiplyHeads, Operation, PrepareHeads, PrepareLatents, Value
from augury.lowering.rewrites import with_pairs


@frozen(eq=False)
class AttendGated(Attend):
    """Attention whose values are multiplied by activation(gates), one of which is of several neighbouring values."""

    gates: Value = field(kw_only=True)
    kind: GateKind = field(kw_only=True)


@frozen(eq=False)
class MultiplyHeadsGated(MultiplyHeads):
    """Products of heads that are multiplied by sigmoid(gates)."""

    gates: Value = field(kw_only=True)


@frozen(eq=False)
class AttendLatents(Operation):
    """Attention to latents, whose kernel turns queries itself, and writes rows head by head, as heads' matrices read them."""

    attend: Attend
    prepare: PrepareLatents
    values: Matrices
    queries: Value  # as they were before they were prepared
    absorbed: Value
    choice: Value | None
    out: Value


def with_gated_attention(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Gate attention's mix where splits are merged, and products of heads where they are put side by side."""

    def join(made: Operation, gate: Operation) -> tuple[Operation, ...]:
        match gate:
            case Gate(norm=None, skip=None, activation=GateKind() as kind) if readers_of(operations, gate.y) == [gate]:
                given = asdict(made, recurse=False) | {"out": gate.out, "gates": gate.gates}
                if isinstance(made, Attend) and made.out is gate.y:
                    return (AttendGated(**given, kind=kind),)
                if isinstance(made, MultiplyHeads) and made.out is gate.y and kind is GateKind.SIGMOID:
                    return (MultiplyHeadsGated(**given),)
        return ()

    return with_pairs(operations, join)


def with_latents(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Attend to latents by a kernel that turns queries itself, and leaves heads' mixes as their matrices read them."""
    makers = {each.out: each for each in operations if isinstance(each, PrepareLatents)}
    for each in operations:
        if not isinstance(each, Attend) or each.queries not in makers:
            yield each
            continue
        prepare = makers[each.queries]
        match readers_of(operations, prepare.out), readers_of(operations, each.out):
            case [Attend()], [MultiplyHeads() as reader] if reader.x is each.out:
                yield AttendLatents(each, prepare, reader.matrices, prepare.queries, prepare.out, each.choice, each.out)
            case _:
                raise UnsupportedError("latents that are mixed and not multiplied by heads' matrices; use backend reference")


def with_separate_heads(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Prepare heads one after another that the kernel does not prepare at once."""
    for each in operations:
        if not isinstance(each, PrepareHeads) or _are_prepared_at_once(each):
            yield each
            continue
        for x, dim, steps, cache, out in zip(each.x, each.dims, each.steps, each.caches, each.out, strict=True):
            one = PrepareHeads((x,), (dim,), (steps,), (cache,), each.source, (out,))
            if not _are_prepared_at_once(one):
                raise UnsupportedError("heads that are kept, and multiplied by a temperature; use backend reference")
            yield one


def _are_prepared_at_once(heads: PrepareHeads) -> bool:
    """Whether heads are queries, keys and values, of which the first two are turned alike, or the last of these."""
    n_queries = int(heads.caches[0] is None)
    turned, values, kept = heads.steps[: 1 + n_queries], heads.steps[1 + n_queries :], heads.steps[n_queries:]
    counts = {x.width // dim for x, dim in zip(heads.x[n_queries:], heads.dims[n_queries:], strict=True)}
    alike = ({each.clamp for each in heads.steps}, {(each.rope, each.is_rope_first, each.lag) for each in turned})
    sizes = ({*heads.dims[: 1 + n_queries]}, counts)
    is_alike = len(values) < 2 and all(len(each) < 2 for each in (*alike, *sizes))
    return is_alike and not any(each.rope for each in values) and not any(each.temperature for each in kept)
