"""Operations that kernels for GPUs compute together: rewrites of a block's list, each with its reason.

Each launch takes 2 to 3 µs, as long as a small product, so most of them save one; see docs/cuda.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, frozen

from augury import lowering as op
from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.operations import expert_rewrites
from augury.backends.numba_cuda.operations.attention_rewrites import with_gated_attention, with_latents, with_separate_heads
from augury.backends.numba_cuda.operations.fused import Fused, makers_of, parts_of, readers_of, roots_of
from augury.backends.numba_cuda.rows import units_of
from augury.blocks import Activation, GateKind, Norm, Vector
from augury.lowering import Operation, Value
from augury.lowering.rewrites import MultiplyActivated, with_activated_products, with_pairs, with_sums


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


def rewritten(operations: Sequence[Operation], streams: Container[Value]) -> list[Operation]:
    """A block's operations as kernels compute them; `streams` are x, also as it was before the layer."""
    rewrites: Sequence[Callable[[Sequence[Operation]], Iterable[Operation]]] = (
        _with_softplus,
        _with_normalized_joins,
        with_activated_products,
        with_gated_attention,
        with_latents,
        expert_rewrites.with_choices,
        partial(expert_rewrites.with_separate_sums, streams=streams),
        with_sums,
        expert_rewrites.with_shared_experts,
        expert_rewrites.with_early_choices,
        _with_activated_rows,
        _with_gates,
        partial(_with_copies, streams=streams),
        with_separate_heads,
        partial(_with_joined_norms, streams=streams),
        _with_neighbours,
    )
    for rewrite in rewrites:
        operations = [*rewrite(operations)]
    return [*operations]


def _with_softplus(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Activate steps that are betas by themselves: a product may do that in its launch."""
    for each in operations:
        if isinstance(each, op.Decay) and (each.b, each.dt, each.a) == (None, None, None):
            yield op.Activate(each.t, GateKind.SOFTPLUS, out=each.out[0])
        else:
            yield each


def made_apart(operation: Operation | None, value: Value) -> bool:
    """Whether an operation can make a value as matrices read it: as floats or units, in rows of its own."""
    if isinstance(operation, MultiplyActivated):
        return value is operation.out[0]
    made = op.Normalize | JoinNormalized | op.Activate | op.Gate | op.Convolve | op.ConvolveBlock | op.Attend | op.MultiplyHeads
    return isinstance(operation, made)


def _with_normalized_joins(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Norm values where they are put side by side."""
    norms = {each.out: each for each in operations if isinstance(each, op.Normalize)}
    joined = {value for each in operations if isinstance(each, op.Join) for value in each.x if value in norms}
    needed = {value.root for each in operations for value in each.read if not (isinstance(each, op.Join) and value in norms)}
    for each in operations:
        if isinstance(each, op.Join):
            made = [norms.get(value, op.Normalize(value, None, value)) for value in each.x]
            yield JoinNormalized(tuple(norm.x for norm in made), tuple(norm.norm for norm in made), each.out)
        elif joined.isdisjoint(each.made) or not needed.isdisjoint(each.made):
            yield each


def _with_copies(operations: Sequence[Operation], streams: Container[Value]) -> Iterator[Operation]:
    """Copy values that do not lie as an operation needs them: apart for matrices, or side by side in rows of floats."""
    makers, copies = makers_of(operations), dict[tuple[Value, str], Value]()
    side_by_side = [each for each in parts_of(operations) if isinstance(each, _SIDE_BY_SIDE)]
    rowed = {value for each in side_by_side for value in roots_of(each)}
    scaled = {each.x.root: each for each in side_by_side if isinstance(each, op.ScaleToLength)}

    def purpose(operation: Operation, value: Value) -> str | None:
        """The purpose of a copy, which others of the same purpose share; None if there need not be one."""
        maker = makers.get(value.root)
        match operation:
            case op.Multiply() | MultiplyActivated():
                is_fed = value.root in rowed and (not isinstance(maker, op.Convolve) or value.root in scaled)
                return "matrices" if value.whole is not None or is_fed or not made_apart(maker, value) else None
            case op.Recur() | op.Convolve() | op.Decay() | op.PrepareLatents() | op.Choose() | op.ChooseByHead():
                is_norm = isinstance(maker, op.Normalize) and maker.x in streams
                return "rows" if is_norm or isinstance(maker, op.Gate | op.Recur | op.LookUp | GIVEN) else None
            case op.PrepareHeads():
                is_norm = isinstance(maker, op.Normalize) and maker.x in streams
                is_shared = len(readers_of(operations, value.root)) > 1
                return "heads" if is_norm or is_shared or isinstance(maker, op.LookUp | GIVEN) else None
        return None

    def moved(operation: Operation) -> Operation:
        if isinstance(operation, Fused):
            return evolve(operation, operations=tuple(map(moved, operation.operations)))
        wanted = {value: reason for value in operation.read if (reason := purpose(operation, value)) is not None}
        return operation.with_values({each: copies.setdefault((each, why), Value(each.width)) for each, why in wanted.items()})

    def is_written(gate: op.Gate) -> bool:
        return bool(gate.skip or gate.is_gated_first) and len(readers_of(operations, gate.y)) > 1

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


def _with_joined_norms(operations: Sequence[Operation], streams: Container[Value]) -> Iterator[Operation]:
    """Norm several products of one launch, or make them operands, in one launch as well."""
    multiplied = {each.x for each in parts_of(operations) if isinstance(each, op.Multiply | MultiplyActivated)}
    makers, group = makers_of(operations), list[op.Normalize]()

    def is_joined(each: op.Normalize) -> bool:
        norm, is_product = each.norm, each.x not in streams and isinstance(makers.get(each.x.root), op.Multiply)
        in_place = norm is not None and len(readers_of(operations, each.x.root)) == 1
        return is_product and (norm is None or norm.size == each.x.width) and (in_place or each.out in multiplied)

    for each in [*operations, None]:
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


# Recurrences


def _with_neighbours(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Choose experts in the launch that makes logits, and decays in the launch of the operation before, in the same rows."""
    fed = [roots_of(each) for each in operations if isinstance(each, op.Recur)]

    def join(each: Operation, following: Operation) -> tuple[Operation, ...]:
        is_fed = any({*following.made} <= roots and not roots.isdisjoint({*each.made, *roots_of(each)}) for roots in fed)
        match each, following:
            case op.Multiply(), expert_rewrites.ChooseExperts() if {*each.made} == {*following.read}:
                return (expert_rewrites.MultiplyAndChoose((each, following)),)
            case op.ScaleToLength(), op.Decay() | op.DecayByKey() if is_fed:
                return (ScaleAndDecay((each, following)),)
            case op.Convolve(x=(x, *_)), op.Decay(t=t, b=None, dt=Vector(), a=Vector()) if is_fed and t.root is x.root:
                return (ConvolveAndDecay((each, following)),)
        return ()

    return with_pairs(operations, join)


def _with_gates(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Gate convolutions twice or not at all, and each recurrence: in the launch that keeps drafted tokens aside."""
    for each, following in zip(operations, [*operations[1:], None], strict=False):
        if isinstance(each, op.Convolve) and (each.before is None) != (each.after is None):
            ones = Value(each.out.width)
            yield op.Constant((1.0,) * ones.width, ones)
            yield evolve(each, before=each.before or ones, after=each.after or ones)
            continue
        yield each
        if isinstance(each, op.Recur) and not (isinstance(following, op.Gate) and following.y is each.out):
            yield op.Gate(each.out, each.out, Activation.SILU)  # nobody reads it


def _with_activated_rows(operations: Sequence[Operation]) -> list[Operation]:
    """Send queries, keys and values through SiLU and add constant decays to their rows in one launch, in place of four."""
    found = [*operations]
    for i in range(len(found)):
        match found[i : i + 6]:
            case op.Multiply(
                out=out
            ) as products, op.Activate() as q, op.Activate() as k, op.Activate() as v, op.Constant() as ends, op.Recur():
                activations = (q, k, v)
                is_alone = all(_is_plain_silu(each) and len(readers_of(found, each.x)) == 1 for each in activations)
                if is_alone and out[:3] == (q.x, k.x, v.x) and not any(each.x.width % TILE_ROWS for each in activations):
                    both = [evolve(products, linears=products.linears[at], out=out[at]) for at in (slice(3), slice(3, None))]
                    found[i : i + 5] = [*(each for each in both if each.out), ActivateAndDecay((*activations, ends))]
    return found


def _is_plain_silu(each: op.Activate) -> bool:
    return each.activation is Activation.SILU and (each.up, each.divisors, each.limit) == (None, None, None)
