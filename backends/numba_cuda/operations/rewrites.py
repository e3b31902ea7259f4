"""Operations that kernels for GPUs compute together: rewrites of a block's list, each with its reason.

Each launch takes 2 to 3 µs, as long as a small product, so most of them save one; see docs/cuda.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from attrs import asdict, evolve, field, frozen

from augury import lowering as op
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.operations import expert_rewrites
from augury.backends.numba_cuda.products import units_of
from augury.blocks import Activation, GateKind, Matrices, Norm, Vector
from augury.errors import UnsupportedError
from augury.lowering import Operation, Value
from augury.lowering.rewrites import (
    ACTIVATE_PRODUCTS,
    ADD_SUMS,
    AddLowRank,
    Fused,
    MultiplyActivated,
    Rewrite,
    Uses,
    parts_of,
    roots_of,
)


@frozen(eq=False)
class ReadEmbedded(Operation):
    """out = the embedding's output, which was put aside."""

    out: Value


@frozen(eq=False)
class JoinNormalized(Operation):
    """out = norms of several values side by side, or the values themselves."""

    x: tuple[Value, ...]
    norms: tuple[Norm | None, ...]
    out: Value


@frozen(eq=False)
class AttendGated(op.Attend):
    """Attention whose values are multiplied by activation(gates), one of which is of several neighbouring values."""

    gates: Value = field(kw_only=True)
    kind: GateKind = field(kw_only=True)


@frozen(eq=False)
class MultiplyHeadsGated(op.MultiplyHeads):
    """Products of heads that are multiplied by sigmoid(gates)."""

    gates: Value = field(kw_only=True)


@frozen(eq=False)
class AttendLatents(Operation):
    """Attention to latents, whose kernel turns queries itself, and writes rows head by head, as heads' matrices read them."""

    attend: op.Attend
    prepare: op.PrepareLatents
    values: Matrices
    queries: Value  # as they were before they were prepared
    absorbed: Value
    choice: Value | None
    out: Value


GIVEN = op.ReadInput | op.ReadHidden | ReadEmbedded
"""Operations whose rows lie where the block finds them."""

_SIDE_BY_SIDE = (
    op.Recur | op.Convolve | op.Decay | op.ScaleToLength | op.PrepareHeads | op.PrepareLatents | op.Choose | op.ChooseByHead
)


class NormalizeParts(Fused):
    """Norms of up to three products of one launch; first the ones that are multiplied next."""


class ScaleAndDecay(Fused):
    """Heads divided by their lengths, and decays."""


class ConvolveAndDecay(Fused):
    """A convolution, and decays beside it."""


class ActivateAndDecay(Fused):
    """Queries, keys and values through SiLU where they are, and the decays and betas that are the same for all tokens."""


def made_apart(operation: Operation | None, value: Value) -> bool:
    """Whether an operation can make a value as matrices read it: as floats or units, in rows of its own."""
    if isinstance(operation, MultiplyActivated):
        return value is operation.out[0]
    made = op.Normalize | JoinNormalized | op.Activate | op.Gate | op.Convolve | op.ConvolveBlock | op.Attend | op.MultiplyHeads
    return isinstance(operation, made)


def _softplus(_: Uses, decay: op.Decay) -> Iterable[Operation] | None:
    """Steps that are betas by themselves."""
    is_plain = (decay.b, decay.dt, decay.a) == (None, None, None)
    return (op.Activate(decay.t, GateKind.SOFTPLUS, out=decay.out[0]),) if is_plain else None


def _normalized(uses: Uses, join: op.Join) -> Iterable[Operation]:
    """Values side by side, with the norms that some of them are."""
    norms = [uses.makers.get(value) for value in join.x]
    made = [each if isinstance(each, op.Normalize) else op.Normalize(x, None) for x, each in zip(join.x, norms, strict=True)]
    return (JoinNormalized(tuple(each.x for each in made), tuple(each.norm for each in made), join.out),)


def _unread(uses: Uses, norm: op.Normalize) -> Iterable[Operation] | None:
    return None if uses.readers[norm.out] else ()


def _with_copies(uses: Uses) -> Iterator[Operation]:
    """Copy values that do not lie as an operation needs them: apart for matrices, or side by side in rows of floats."""
    operations, makers, copies = uses.operations, uses.makers, dict[tuple[Value, str], Value]()
    side_by_side = [each for each in parts_of(operations) if isinstance(each, _SIDE_BY_SIDE)]
    rowed = {value for each in side_by_side for value in roots_of(each)}
    scaled: dict[Value, Operation] = {each.x.root: each for each in side_by_side if isinstance(each, op.ScaleToLength)}
    scaled |= {each.y.root: each for each in operations if isinstance(each, AddLowRank)}  # which compute in place as well

    def purpose(operation: Operation, value: Value) -> str | None:
        """The purpose of a copy, which others of the same purpose share; None if there need not be one."""
        maker = makers.get(value.root)
        match operation:
            case op.Multiply() | MultiplyActivated():
                is_fed = value.root in rowed and (not isinstance(maker, op.Convolve) or value.root in scaled)
                return "matrices" if value.whole is not None or is_fed or not made_apart(maker, value) else None
            case op.Recur() | op.Convolve() | op.Decay() | op.PrepareLatents() | op.Choose() | op.ChooseByHead():
                is_elsewhere = uses.is_norm_of_stream(maker) or isinstance(maker, op.Gate | op.Recur | op.LookUp | GIVEN)
                return "rows" if is_elsewhere else None
            case op.PrepareHeads():
                is_shared = len(uses.readers[value.root]) > 1
                return "heads" if uses.is_norm_of_stream(maker) or is_shared or isinstance(maker, op.LookUp | GIVEN) else None
        return None

    def moved(operation: Operation) -> Operation:
        if isinstance(operation, Fused):
            return evolve(operation, operations=tuple(map(moved, operation.operations)))
        wanted = {value: reason for value in operation.read if (reason := purpose(operation, value)) is not None}
        return operation.with_values({each: copies.setdefault((each, why), Value(each.width)) for each, why in wanted.items()})

    def is_written(gate: op.Gate) -> bool:
        return bool(gate.skip or gate.is_gated_first) and len(uses.readers[gate.y.root]) > 1

    made = [moved(each) for each in operations]
    yield from (
        op.Normalize(value, None, copy) for (value, _), copy in copies.items() if value.root not in makers
    )  # made early
    for each, before in zip(made, operations, strict=True):
        match each:
            case op.Convolve(x=xs) if len(xs) > 1 and not _are_neighbours(xs, makers.get(xs[0])):
                beside = [op.Normalize(value, None, Value(value.width)) for value in xs]
                yield from (*beside, evolve(each, x=tuple(copy.out for copy in beside)))
            case op.Gate(y=y) if y.whole is not None or not isinstance(makers.get(y), op.Recur) or is_written(each):
                copy = op.Normalize(y, None, Value(y.width))
                yield from (copy, evolve(each, y=copy.out))
            case _:
                yield each
        ready = {value for value in each.made if value not in scaled}
        ready |= {root for root, last in scaled.items() if last is before}
        yield from (op.Normalize(value, None, copy) for (value, _), copy in copies.items() if value.root in ready)


def _are_neighbours(values: Sequence[Value], maker: Operation | None) -> bool:
    """Whether products of one launch lie side by side."""
    n = len(values)
    if not isinstance(maker, op.Multiply) or any(value.width % TILE_ROWS for value in values[:-1]):
        return False
    return any(maker.out[i : i + n] == tuple(values) for i in range(len(maker.out)))


def _with_joined_norms(uses: Uses) -> Iterator[Operation]:
    """Norm several products of one launch, or make them operands, in one launch as well."""
    multiplied = {each.x for each in parts_of(uses.operations) if isinstance(each, op.Multiply | MultiplyActivated)}
    makers, group = uses.makers, list[op.Normalize]()

    def is_joined(each: op.Normalize) -> bool:
        norm, is_product = each.norm, each.x not in uses.streams and isinstance(makers.get(each.x.root), op.Multiply)
        in_place = norm is not None and len(uses.readers[each.x.root]) == 1
        return is_product and (norm is None or norm.size == each.x.width) and (in_place or each.out in multiplied)

    for each in [*uses.operations, None]:
        if isinstance(each, op.Normalize) and is_joined(each):
            if group and (makers[group[0].x.root] is not makers[each.x.root] or len(group) == 3):
                yield from _norms(group, multiplied)
                group = []
            group.append(each)
        else:
            yield from _norms(group, multiplied)
            group = []
            if each is not None:
                yield each


def _norms(group: Sequence[op.Normalize], multiplied: Container[Value]) -> Sequence[Operation]:
    apart = [each for each in group if each.out in multiplied]
    if len(group) < 2 or len({units_of(each.x.width) for each in apart}) > 1:
        return group
    return [NormalizeParts((*apart, *(each for each in group if each not in apart)))]


# Attention


def _with_gate(uses: Uses, made: op.Attend | op.MultiplyHeads, gate: op.Gate) -> Iterable[Operation] | None:
    """The mix of attention, or products of heads, with the gate that alone reads them."""
    if made.out is not gate.y or uses.readers[gate.y] != [gate] or (gate.norm, gate.skip) != (None, None):
        return None
    given = asdict(made, recurse=False) | {"out": gate.out, "gates": gate.gates}
    if isinstance(made, op.Attend):
        return (AttendGated(**given, kind=gate.activation),) if isinstance(gate.activation, GateKind) else None
    return (MultiplyHeadsGated(**given),) if gate.activation is GateKind.SIGMOID else None


def _of_latents(uses: Uses, attend: op.Attend) -> Iterable[Operation] | None:
    """Attention to latents, which asks by queries that are prepared for it."""
    prepare = uses.makers.get(attend.queries)
    if not isinstance(prepare, op.PrepareLatents):
        return None
    match uses.readers[prepare.out], uses.readers[attend.out]:
        case [op.Attend()], [op.MultiplyHeads(x=attend.out, matrices=matrices)]:
            return (AttendLatents(attend, prepare, matrices, prepare.queries, prepare.out, attend.choice, attend.out),)
    raise UnsupportedError("latents that are mixed and not multiplied by heads' matrices; use backend reference")


def _separated(_: Uses, heads: op.PrepareHeads) -> Iterable[Operation] | None:
    """Heads one after another."""
    if _are_prepared_at_once(heads):
        return None
    each = zip(heads.x, heads.dims, heads.steps, heads.caches, heads.out, strict=True)
    made = [op.PrepareHeads((x,), (dim,), (steps,), (cache,), heads.source, (out,)) for x, dim, steps, cache, out in each]
    if not all(map(_are_prepared_at_once, made)):
        raise UnsupportedError("heads that are kept, and multiplied by a temperature; use backend reference")
    return made


def _are_prepared_at_once(heads: op.PrepareHeads) -> bool:
    """Whether heads are queries, keys and values, of which the first two are turned alike, or the last of these."""
    n_queries = int(heads.caches[0] is None)
    turned, values, kept = heads.steps[: 1 + n_queries], heads.steps[1 + n_queries :], heads.steps[n_queries:]
    counts = {x.width // dim for x, dim in zip(heads.x[n_queries:], heads.dims[n_queries:], strict=True)}
    alike = ({each.clamp for each in heads.steps}, {(each.rope, each.is_rope_first, each.lag) for each in turned})
    sizes = ({*heads.dims[: 1 + n_queries]}, counts)
    is_alike = len(values) < 2 and all(len(each) < 2 for each in (*alike, *sizes))
    return is_alike and not any(each.rope for each in values) and not any(each.temperature for each in kept)


# Recurrences


def _is_fed(uses: Uses, each: Operation, following: Operation) -> bool:
    """Whether a recurrence reads what both make, or one reads, so that it lies in one row."""
    fed = [roots_of(recur) for recur in uses.operations if isinstance(recur, op.Recur)]
    return any({*following.made} <= roots and not roots.isdisjoint({*each.made, *roots_of(each)}) for roots in fed)


def _scaled(uses: Uses, scale: op.ScaleToLength, decay: op.Decay | op.DecayByKey) -> Iterable[Operation] | None:
    return (ScaleAndDecay((scale, decay)),) if _is_fed(uses, scale, decay) else None


def _convolved(uses: Uses, convolve: op.Convolve, decay: op.Decay) -> Iterable[Operation] | None:
    match decay:
        case op.Decay(t=t, b=None, dt=Vector(), a=Vector()) if t.root is convolve.x[0].root:
            return (ConvolveAndDecay((convolve, decay)),) if _is_fed(uses, convolve, decay) else None
    return None


def _gated_twice(_: Uses, convolve: op.Convolve) -> Iterable[Operation] | None:
    """A convolution that is gated once, by ones as well."""
    if (convolve.before is None) == (convolve.after is None):
        return None
    ones = op.Constant((1.0,) * convolve.out.width)
    return ones, evolve(convolve, before=convolve.before or ones.out, after=convolve.after or ones.out)


def _gated(uses: Uses, recur: op.Recur) -> Iterable[Operation] | None:
    """A recurrence without a gate, with one that nobody reads."""
    gate = uses.after(recur)
    is_gated = isinstance(gate, op.Gate) and gate.y is recur.out
    return None if is_gated else (recur, op.Gate(recur.out, recur.out, Activation.SILU))


def _activated_rows(
    uses: Uses,
    products: op.Multiply,
    q: op.Activate,
    k: op.Activate,
    v: op.Activate,
    ends: op.Constant,
    recur: op.Recur,
) -> Iterable[Operation] | None:
    """Products of which the first three alone go through SiLU, where they are, with constant decays in their rows."""
    activations, out = (q, k, v), products.out
    is_alone = all(_is_plain_silu(each) and len(uses.readers[each.x.root]) == 1 for each in activations)
    if not is_alone or out[:3] != (q.x, k.x, v.x) or any(each.x.width % TILE_ROWS for each in activations):
        return None
    both = [evolve(products, linears=products.linears[at], out=out[at]) for at in (slice(3), slice(3, None))]
    return *(each for each in both if each.out), ActivateAndDecay((*activations, ends)), recur


def _is_plain_silu(each: op.Activate) -> bool:
    return each.activation is Activation.SILU and (each.up, each.divisors, each.limit) == (None, None, None)


def _chosen(_: Uses, multiply: op.Multiply, choose: expert_rewrites.ChooseExperts) -> Iterable[Operation] | None:
    is_alone = {*multiply.made} == {*choose.read}
    return (expert_rewrites.MultiplyAndChoose((multiply, choose)),) if is_alone else None


REWRITES = (
    Rewrite((op.Decay,), _softplus, "a product may activate steps in its launch"),
    Rewrite((op.Join,), _normalized, "values are normed where they are put side by side"),
    Rewrite((op.Normalize,), _unread, "which leaves norms that nothing reads"),
    ACTIVATE_PRODUCTS,
    Rewrite(
        (op.Attend | op.MultiplyHeads, op.Gate),
        _with_gate,
        "splits are merged, and heads put side by side, in a launch already",
    ),
    Rewrite((op.Attend,), _of_latents, "the kernel turns queries itself, and leaves heads' mixes as their matrices read them"),
    Rewrite((), expert_rewrites.with_choices, "the choice weighs the shared expert: no launch more for its gate"),
    Rewrite(
        (op.AddWeighed, op.Add), expert_rewrites.separate_sums, "products and sums of experts add their rows to x themselves"
    ),
    ADD_SUMS,
    Rewrite((), expert_rewrites.with_shared_experts, "a shared expert takes two launches, one more of the others none"),
    Rewrite((), expert_rewrites.with_early_choices, "the launch that makes logits can choose by them"),
    Rewrite(
        (op.Multiply, op.Activate, op.Activate, op.Activate, op.Constant, op.Recur),
        _activated_rows,
        "a recurrence's inputs are activated, and get their decays, in one launch in place of four",
    ),
    Rewrite((op.Convolve,), _gated_twice, "the kernel gates twice or not at all"),
    Rewrite((op.Recur,), _gated, "the launch that gates keeps drafted tokens aside"),
    Rewrite((), _with_copies, "kernels read values apart or side by side; all rewrites that place values anew come before"),
    Rewrite((op.PrepareHeads,), _separated, "the kernel prepares queries, keys and values at once, that are turned alike"),
    Rewrite((), _with_joined_norms, "norms of products of one launch are one launch as well"),
    Rewrite((op.Multiply, expert_rewrites.ChooseExperts), _chosen, "the launch that makes logits chooses by them"),
    Rewrite((op.ScaleToLength, op.Decay | op.DecayByKey), _scaled, "decays are made in the launch before, in the same rows"),
    Rewrite((op.Convolve, op.Decay), _convolved, "decays are made in the launch before, in the same rows"),
)
"""The rewrites of a block's operations, in their order."""
