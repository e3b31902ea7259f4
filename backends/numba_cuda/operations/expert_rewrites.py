"""Rewrites of mixtures of experts: choices beside products, and shared experts that are one more of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from attrs import evolve, frozen

from augury.blocks import Experts, Linear, Matrices, Router
from augury.lowering import Add, AddWeighed, FeedExperts, Multiply, Operation, Route, Value
from augury.lowering.rewrites import FeedExpertsAndAdd, Fused, MultiplyActivated, Uses, parts_of


class MultiplyAndChoose(Fused):
    """A router's logits, and its choice by them."""


@frozen(eq=False)
class ChooseExperts(Operation):
    """out = the experts that a router chooses, and their weights; sigmoid(share) is the shared expert's, or 1."""

    logits: Value
    share: Value | None
    router: Router
    experts: Experts
    joined: tuple[tuple[Matrices, Linear], ...]  # the experts' matrices, each with that of a shared expert that may be one more
    out: Value


@frozen(eq=False)
class SharedExpert(Fused):
    """A shared expert that is one more of the others, if its weights have their types."""

    joined: tuple[tuple[Matrices, Linear], ...]


def with_choices(uses: Uses) -> Iterator[Operation]:
    """Multiply by the gate of a shared expert beside the router's matrix, and let the choice weigh it."""
    operations, makers, shares, gates = uses.operations, uses.makers, dict[Value, Value](), dict[Operation, Multiply]()
    for each in operations:
        feed = makers.get(each.y) if isinstance(each, AddWeighed) else None
        if isinstance(each, AddWeighed) and each.gate is not None and each.x is not None and isinstance(feed, FeedExperts):
            share = shares[feed.routes] = Value(1)
            gate = Multiply(each.x, (Linear(each.gate.weight, each.gate.size, 1),), "router", (share,))
            route = makers[feed.routes]
            logits = makers.get(route.logits) if isinstance(route, Route) else None
            gates[logits if isinstance(logits, Multiply) and logits.x is each.x else makers[each.x]] = gate
    experts = {each.routes: each.experts for each in operations if isinstance(each, FeedExperts)}
    for each in operations:
        if isinstance(each, Route):
            yield ChooseExperts(each.logits, shares.get(each.out), each.router, experts[each.out], (), each.out)
        elif each in gates and isinstance(each, Multiply):
            yield _joined(each, gates[each])
        else:
            yield from (each, *([gates[each]] if each in gates else []))


def _joined(first: Multiply, other: Multiply) -> Multiply:
    return evolve(first, linears=(*first.linears, *other.linears), out=(*first.out, *other.out))


def separate_sums(uses: Uses, weighed: AddWeighed, add: Add) -> Iterable[Operation] | None:
    """Rows that are added to x one by one, where a product or a sum of experts can add its rows itself."""
    if weighed.gate is not None or add.norm is not None or add.y is not weighed.out:
        return None
    maker = uses.makers.get(weighed.other)
    if isinstance(maker, Multiply) and not _is_normed_after(uses, maker):
        return (Add(weighed.other), Add(weighed.y))
    return None if isinstance(uses.makers.get(weighed.y), FeedExperts) else (Add(weighed.y), Add(weighed.other))


def _is_normed_after(uses: Uses, maker: Operation) -> bool:
    """Whether x is read once something was made, so that the product cannot be added to it at once."""
    later = [*parts_of(uses.operations)]
    return any(map(uses.is_norm_of_stream, later[later.index(maker) :]))


def with_shared_experts(uses: Uses) -> Iterator[Operation]:
    """Let a shared expert that is like the others be one more of them."""
    operations, joined, chosen = uses.operations, dict[Operation, SharedExpert](), dict[Value, SharedExpert]()
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


def with_early_choices(uses: Uses) -> Iterator[Operation]:
    """Choose as soon as there are logits."""
    operations = uses.operations
    first = next((each for each in operations if isinstance(each, ChooseExperts)), None)
    makers = [each for each in operations if first is not None and not set(each.made).isdisjoint(first.read)]
    for each in operations:
        if each is not first or not makers:
            yield each
        if first is not None and each in makers[-1:]:
            yield first
