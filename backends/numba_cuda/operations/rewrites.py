"""Operations that kernels for GPUs compute together: rewrites of a block's list, each with its reason.

Each launch takes 2 to 3 µs, as long as a small product, so most of them save one; see docs/cuda.md.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from augury.backends.numba_cuda.kernels.formats import TILE_ROWS
from augury.backends.numba_cuda.rows import units_of
from augury.blocks import Activation, GateKind, Linear, Matrices, Router, Vector
from augury.lowering import (
    Activate,
    Add,
    AddWeighed,
    Constant,
    Convolve,
    Decay,
    DecayByKey,
    FeedExperts,
    Gate,
    Multiply,
    Normalize,
    Operation,
    ReadInput,
    Recur,
    Route,
    ScaleToLength,
    Value,
)
from augury.lowering.rewrites import FeedExpertsAndAdd, MultiplyActivated, with_activated_products, with_pairs, with_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

__all__ = [
    "ActivateAndDecay",
    "ChooseExperts",
    "ConvolveAndDecay",
    "Fused",
    "MultiplyAndChoose",
    "NormalizeParts",
    "ScaleAndDecay",
    "SharedExpert",
    "made_apart",
    "parts_of",
    "rewritten",
]


@frozen(eq=False)
class Fused(Operation):
    """Several operations that one kernel computes."""

    operations: tuple[Operation, ...]

    @property
    def made(self) -> tuple[Value, ...]:
        """See `Operation.made`."""
        return tuple(value for each in self.operations for value in each.made)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Operation.read`: without values that it makes itself."""
        made = set(self.made)
        return tuple(value for each in self.operations for value in each.read if value.root not in made)


class NormalizeParts(Fused):
    """Norms of up to three products of one launch; first the ones that are multiplied next."""


class ScaleAndDecay(Fused):
    """Heads divided by their lengths, and decays."""


class ConvolveAndDecay(Fused):
    """A convolution, and decays beside it."""


class ActivateAndDecay(Fused):
    """Queries, keys and values through SiLU where they are, and the decays and betas that are the same for all tokens."""


class MultiplyAndChoose(Fused):
    """A router's logits, and its choice by them."""


@frozen(eq=False)
class ChooseExperts(Operation):
    """out = the experts that a router chooses, and their weights; sigmoid(share) is the shared expert's, or 1."""

    logits: Value
    share: Value | None
    router: Router
    joined: tuple[tuple[Matrices, Linear], ...]  # the experts' matrices, each with that of a shared expert that may be one more
    out: Value


@frozen(eq=False)
class SharedExpert(Fused):
    """A shared expert that is one more of the others, if its weights have their types."""

    joined: tuple[tuple[Matrices, Linear], ...]


def rewritten(operations: Sequence[Operation], streams: Container[Value]) -> list[Operation]:
    """A block's operations as kernels compute them; `streams` are x, also as it was before the layer."""
    rewrites: Sequence[Callable[[Sequence[Operation]], Iterable[Operation]]] = (
        *(_with_softplus, with_activated_products, _with_choices, partial(_with_separate_sums, streams=streams), with_sums),
        *(_with_shared_experts, _with_early_choices, _with_activated_rows, _with_gates, partial(_with_copies, streams=streams)),
        *(partial(_with_joined_norms, streams=streams), _with_neighbours),
    )
    for rewrite in rewrites:
        operations = [*rewrite(operations)]
    return [*operations]


def parts_of(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations that fused ones consist of, and all others."""
    for each in operations:
        yield from parts_of(each.operations) if isinstance(each, Fused) else (each,)


def _makers(operations: Iterable[Operation]) -> dict[Value, Operation]:
    return {value: each for each in parts_of(operations) for value in each.made}


def _roots(operation: Operation) -> set[Value]:
    return {value.root for value in operation.read}


def _readers(operations: Iterable[Operation], value: Value) -> list[Operation]:
    return [each for each in parts_of(operations) if value in (read.root for read in each.read)]


def _with_softplus(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Activate steps that are betas by themselves: a product may do that in its launch."""
    for each in operations:
        if isinstance(each, Decay) and (each.b, each.dt, each.a) == (None, None, None):
            yield Activate(each.t, GateKind.SOFTPLUS, None, None, None, False, (), each.out[0])
        else:
            yield each


# Experts


def _with_choices(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Multiply by the gate of a shared expert beside the router's matrix, and let the choice weigh it: no launch more."""
    makers, shares, gates = _makers(operations), dict[Value, Value](), dict[Operation, Multiply]()
    for each in operations:
        feed = makers.get(each.y) if isinstance(each, AddWeighed) else None
        if isinstance(each, AddWeighed) and each.gate is not None and each.x is not None and isinstance(feed, FeedExperts):
            share = shares[feed.routes] = Value(1)
            gate = Multiply(each.x, (Linear(each.gate.weight, each.gate.size, 1),), (share,), "router")
            route = makers[feed.routes]
            logits = makers.get(route.logits) if isinstance(route, Route) else None
            gates[logits if isinstance(logits, Multiply) and logits.x is each.x else makers[each.x]] = gate
    for each in operations:
        if isinstance(each, Route):
            yield ChooseExperts(each.logits, shares.get(each.out), each.router, (), each.out)
        elif each in gates and isinstance(each, Multiply):
            yield _joined(each, gates[each])
        else:
            yield from (each, *([gates[each]] if each in gates else []))


def _joined(first: Multiply, other: Multiply) -> Multiply:
    return evolve(first, linears=(*first.linears, *other.linears), out=(*first.out, *other.out))


def _with_separate_sums(operations: Sequence[Operation], streams: Container[Value]) -> Iterator[Operation]:
    """Add summed values to x one by one, where a product or a sum of experts can add its rows itself."""
    makers = _makers(operations)

    def separate(weighed: Operation, add: Operation) -> tuple[Operation, ...]:
        is_plain = isinstance(weighed, AddWeighed) and weighed.gate is None and isinstance(add, Add) and add.norm is None
        if not is_plain or not isinstance(weighed, AddWeighed) or not isinstance(add, Add) or add.y is not weighed.out:
            return ()
        maker = makers.get(weighed.other)
        if isinstance(maker, Multiply) and not _is_normed_after(operations, maker, streams):
            return (Add(weighed.other, None), Add(weighed.y, None))
        return () if isinstance(makers.get(weighed.y), FeedExperts) else (Add(weighed.y, None), Add(weighed.other, None))

    return with_pairs(operations, separate)


def _is_normed_after(operations: Sequence[Operation], maker: Operation, streams: Container[Value]) -> bool:
    """Whether x is read once something was made, so that the product cannot be added to it at once."""
    later = [*parts_of(operations)]
    return any(isinstance(each, Normalize) and each.x in streams for each in later[later.index(maker) :])


def _with_shared_experts(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Let a shared expert that is like the others be one more of them, which saves its two launches."""
    joined, chosen = dict[Operation, SharedExpert](), dict[Value, SharedExpert]()
    for feed in (each.feed if isinstance(each, FeedExpertsAndAdd) else each for each in operations):
        for hidden, down in pairwise(operations):
            if isinstance(feed, FeedExperts) and (pairs := _pairs(feed, hidden, down)):
                other = down.made[0]
                weighed = [each.sum for each in operations if isinstance(each, FeedExpertsAndAdd) and each.feed is feed]
                are_added = {each.y for each in operations if isinstance(each, Add) and each.norm is None} >= {other, feed.out}
                if are_added or (weighed and weighed[0].other is other):
                    joined[hidden] = chosen[feed.routes] = SharedExpert((hidden, down), pairs)
                    joined[down] = joined[hidden]
    for each in operations:
        if isinstance(each, ChooseExperts) and each.out in chosen:
            yield evolve(each, joined=chosen[each.out].joined)
        elif each not in joined:
            yield each
        elif each is joined[each].operations[0]:
            yield joined[each]


def _pairs(feed: FeedExperts, hidden: Operation, down: Operation) -> tuple[tuple[Matrices, Linear], ...]:
    """The experts' matrices, each with that of another feed-forward, if both are alike; otherwise nothing."""
    experts = feed.experts
    if not (isinstance(hidden, MultiplyActivated) and isinstance(down, Multiply) and hidden.x is feed.x):
        return ()
    matrices = (*(() if experts.gate is None else (experts.gate,)), experts.up, experts.down)
    linears, names = (*hidden.linears, *down.linears), ("activation", "limit", "limits_activated", "constants")
    is_alike = (
        down.x is hidden.activate.out
        and hidden.activate.divisors is None
        and not experts.weighs_input
        and all(getattr(experts, name) == getattr(hidden.activate, name) for name in names)
        and (len(hidden.linears), len(down.linears)) == (len(matrices) - 1, 1)
        and all(_is_like(part, linear) for part, linear in zip(matrices, linears, strict=False))
    )
    return tuple(zip(matrices, linears, strict=True)) if is_alike else ()


def _is_like(part: Matrices, linear: Linear) -> bool:
    """Whether a matrix can be one more of several."""
    is_plain = part.bias is None and part.scales is None and not part.is_transposed
    return is_plain and (linear.bias, linear.scale) == (None, 1.0) and (part.n_in, part.n_out) == (linear.n_in, linear.n_out)


def _with_early_choices(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Choose as soon as there are logits."""
    first = next((each for each in operations if isinstance(each, ChooseExperts)), None)
    makers = [each for each in operations if first is not None and not set(each.made).isdisjoint(first.read)]
    for each in operations:
        if each is not first or not makers:
            yield each
        if first is not None and each in makers[-1:]:
            yield first


# Rows


def made_apart(operation: Operation | None, value: Value) -> bool:
    """Whether an operation can make a value as matrices read it: as floats or units, in rows of its own."""
    if isinstance(operation, MultiplyActivated):
        return value is operation.out[0]
    return isinstance(operation, Normalize | Activate | Gate | Convolve)


def _with_copies(operations: Sequence[Operation], streams: Container[Value]) -> Iterator[Operation]:
    """Copy values that do not lie as an operation needs them: apart for matrices, or side by side in rows of floats."""
    makers, copies = _makers(operations), dict[tuple[Value, str], Value]()
    side_by_side = [each for each in parts_of(operations) if isinstance(each, Recur | Convolve | Decay | ScaleToLength)]
    rowed = {value for each in side_by_side for value in _roots(each)}
    scaled = {each.x.root: each for each in side_by_side if isinstance(each, ScaleToLength)}

    def purpose(operation: Operation, value: Value) -> str | None:
        """The purpose of a copy, which others of the same purpose share; None if there need not be one."""
        maker = makers.get(value.root)
        match operation:
            case Multiply() | MultiplyActivated():
                is_fed = value.root in rowed and (not isinstance(maker, Convolve) or value.root in scaled)
                return "matrices" if value.whole is not None or is_fed or not made_apart(maker, value) else None
            case Recur() | Convolve() | Decay():
                is_norm = isinstance(maker, Normalize) and maker.x in streams
                return "rows" if is_norm or isinstance(maker, Gate | Recur | ReadInput) else None
        return None

    def moved(operation: Operation) -> Operation:
        if isinstance(operation, Fused):
            return evolve(operation, operations=tuple(map(moved, operation.operations)))
        wanted = {value: reason for value in operation.read if (reason := purpose(operation, value)) is not None}
        return operation.with_values({each: copies.setdefault((each, why), Value(each.width)) for each, why in wanted.items()})

    def is_written(gate: Gate) -> bool:
        return bool(gate.skip or gate.is_gated_first) and len(_readers(operations, gate.y)) > 1

    made = [moved(each) for each in operations]
    yield from (Normalize(value, None, copy) for (value, _), copy in copies.items() if value.root not in makers)  # made early
    for each, before in zip(made, operations, strict=True):
        match each:
            case Convolve(x=xs) if len(xs) > 1 and not _are_neighbours(xs, makers.get(xs[0])):
                beside = [Normalize(value, None, Value(value.width)) for value in xs]
                yield from (*beside, evolve(each, x=tuple(copy.out for copy in beside)))
            case Gate(y=y) if y.whole is not None or not isinstance(makers.get(y), Recur) or is_written(each):
                copy = Normalize(y, None, Value(y.width))
                yield from (copy, evolve(each, y=copy.out))
            case _:
                yield each
        ready = {value for value in each.made if value not in scaled}
        ready |= {root for root, last in scaled.items() if last is before}
        yield from (Normalize(value, None, copy) for (value, _), copy in copies.items() if value.root in ready)


def _are_neighbours(values: Sequence[Value], maker: Operation | None) -> bool:
    """Whether products of one launch lie side by side."""
    n = len(values)
    if not isinstance(maker, Multiply) or any(value.width % TILE_ROWS for value in values[:-1]):
        return False
    return any(maker.out[i : i + n] == tuple(values) for i in range(len(maker.out)))


def _with_joined_norms(operations: Sequence[Operation], streams: Container[Value]) -> Iterator[Operation]:
    """Norm several products of one launch, or make them operands, in one launch as well."""
    multiplied = {each.x for each in parts_of(operations) if isinstance(each, Multiply | MultiplyActivated)}
    makers, group = _makers(operations), list[Normalize]()

    def is_joined(each: Normalize) -> bool:
        norm, is_product = each.norm, each.x not in streams and isinstance(makers.get(each.x.root), Multiply)
        in_place = norm is not None and len(_readers(operations, each.x.root)) == 1
        return is_product and (norm is None or norm.size == each.x.width) and (in_place or each.out in multiplied)

    for each in [*operations, None]:
        if isinstance(each, Normalize) and is_joined(each):
            if group and (makers[group[0].x.root] is not makers[each.x.root] or len(group) == 3):
                yield from _norms(group, multiplied)
                group = []
            group.append(each)
        else:
            yield from _norms(group, multiplied)
            group = []
            if each is not None:
                yield each


def _norms(group: Sequence[Normalize], multiplied: Container[Value]) -> Sequence[Operation]:
    apart = [each for each in group if each.out in multiplied]
    if len(group) < 2 or len({units_of(each.x.width) for each in apart}) > 1:
        return group
    return [NormalizeParts((*apart, *(each for each in group if each not in apart)))]


# Recurrences


def _with_neighbours(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Choose experts in the launch that makes logits, and decays in the launch of the operation before, in the same rows."""
    fed = [_roots(each) for each in operations if isinstance(each, Recur)]

    def join(each: Operation, following: Operation) -> tuple[Operation, ...]:
        is_fed = any({*following.made} <= roots and not roots.isdisjoint({*each.made, *_roots(each)}) for roots in fed)
        match each, following:
            case Multiply(), ChooseExperts() if {*each.made} == {*following.read}:
                return (MultiplyAndChoose((each, following)),)
            case ScaleToLength(), Decay() | DecayByKey() if is_fed:
                return (ScaleAndDecay((each, following)),)
            case Convolve(x=(x, *_)), Decay(t=t, b=None, dt=Vector(), a=Vector()) if is_fed and t.root is x.root:
                return (ConvolveAndDecay((each, following)),)
        return ()

    return with_pairs(operations, join)


def _with_gates(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Gate convolutions twice or not at all, and each recurrence: in the launch that keeps drafted tokens aside."""
    for each, following in zip(operations, [*operations[1:], None], strict=False):
        if isinstance(each, Convolve) and (each.before is None) != (each.after is None):
            ones = Value(each.out.width)
            yield Constant((1.0,) * ones.width, ones)
            yield evolve(each, before=each.before or ones, after=each.after or ones)
            continue
        yield each
        if isinstance(each, Recur) and not (isinstance(following, Gate) and following.y is each.out):
            yield Gate(each.out, each.out, Activation.SILU, None, None, None, False, Value(each.out.width))  # nobody reads it


def _with_activated_rows(operations: Sequence[Operation]) -> list[Operation]:
    """Send queries, keys and values through SiLU and add constant decays to their rows in one launch, in place of four."""
    found = [*operations]
    for i in range(len(found)):
        match found[i : i + 6]:
            case Multiply(out=out) as products, Activate() as q, Activate() as k, Activate() as v, Constant() as ends, Recur():
                activations = (q, k, v)
                is_alone = all(_is_plain_silu(each) and len(_readers(found, each.x)) == 1 for each in activations)
                if is_alone and out[:3] == (q.x, k.x, v.x) and not any(each.x.width % TILE_ROWS for each in activations):
                    both = [evolve(products, linears=products.linears[at], out=out[at]) for at in (slice(3), slice(3, None))]
                    found[i : i + 5] = [*(each for each in both if each.out), ActivateAndDecay((*activations, ends))]
    return found


def _is_plain_silu(each: Activate) -> bool:
    return each.activation is Activation.SILU and (each.up, each.divisors, each.limit) == (None, None, None)
