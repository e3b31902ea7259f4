"""Rewrites of the operations of attention: heads and gates that kernels compute at once, or cannot."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import asdict, field, frozen

from augury.blocks import GateKind, Matrices
from augury.errors import UnsupportedError
from augury.lowering import Attend, Gate, MultiplyHeads, Operation, PrepareHeads, PrepareLatents, Value
from augury.lowering.rewrites import Uses


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


def gated(uses: Uses, made: Attend | MultiplyHeads, gate: Gate) -> Iterable[Operation] | None:
    """The mix of attention, or products of heads, with the gate that alone reads them."""
    if made.out is not gate.y or uses.readers[gate.y] != [gate] or (gate.norm, gate.skip) != (None, None):
        return None
    given = asdict(made, recurse=False) | {"out": gate.out, "gates": gate.gates}
    if isinstance(made, Attend):
        return (AttendGated(**given, kind=gate.activation),) if isinstance(gate.activation, GateKind) else None
    return (MultiplyHeadsGated(**given),) if gate.activation is GateKind.SIGMOID else None


def of_latents(uses: Uses, attend: Attend) -> Iterable[Operation] | None:
    """Attention to latents, which asks by queries that are prepared for it."""
    prepare = uses.makers.get(attend.queries)
    if not isinstance(prepare, PrepareLatents):
        return None
    match uses.readers[prepare.out], uses.readers[attend.out]:
        case [Attend()], [MultiplyHeads(x=attend.out, matrices=matrices)]:
            return (AttendLatents(attend, prepare, matrices, prepare.queries, prepare.out, attend.choice, attend.out),)
    raise UnsupportedError("latents that are mixed and not multiplied by heads' matrices; use backend reference")


def separated(_: Uses, heads: PrepareHeads) -> Iterable[Operation] | None:
    """Heads one after another."""
    if _are_prepared_at_once(heads):
        return None
    each = zip(heads.x, heads.dims, heads.steps, heads.caches, heads.out, strict=True)
    made = [PrepareHeads((x,), (dim,), (steps,), (cache,), heads.source, (out,)) for x, dim, steps, cache, out in each]
    if not all(map(_are_prepared_at_once, made)):
        raise UnsupportedError("heads that are kept, and multiplied by a temperature; use backend reference")
    return made


def _are_prepared_at_once(heads: PrepareHeads) -> bool:
    """Whether heads are queries, keys and values, of which the first two are turned alike, or the last of these."""
    n_queries = int(heads.caches[0] is None)
    turned, values, kept = heads.steps[: 1 + n_queries], heads.steps[1 + n_queries :], heads.steps[n_queries:]
    counts = {x.width // dim for x, dim in zip(heads.x[n_queries:], heads.dims[n_queries:], strict=True)}
    alike = ({each.clamp for each in heads.steps}, {(each.rope, each.is_rope_first, each.lag) for each in turned})
    sizes = ({*heads.dims[: 1 + n_queries]}, counts)
    is_alike = len(values) < 2 and all(len(each) < 2 for each in (*alike, *sizes))
    return is_alike and not any(each.rope for each in values) and not any(each.temperature for each in kept)
