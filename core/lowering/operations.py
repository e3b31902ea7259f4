"""The operations that blocks are made of. A backend has an emitter for each that it computes, and knows no blocks.

An operation is a record: the values that it reads, the weights and numbers that take part, and the values that it makes. A
value stands for rows of a pass, one for each of its n tokens, (n, width) float32. Operations read x, the residual stream as the
block sees it, and add to it; nothing else leaves a block but what its states keep. Every norm of x is read before the next.

Shape letters are those of docs/notation.md: E embedding, H heads, G key heads, K and V the sizes of their keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from attrs import fields, frozen

from augury.blocks.parts import Activation, Convolution, Experts, GateKind, Linear, LinearRecurrence, Norm, Router, Vector

__all__ = [
    "Activate",
    "Add",
    "AddWeighed",
    "Constant",
    "Convolve",
    "Decay",
    "DecayByKey",
    "FeedExperts",
    "Gate",
    "Multiply",
    "Normalize",
    "Operation",
    "ReadInput",
    "Recur",
    "Route",
    "ScaleToLength",
    "Value",
]


@frozen(eq=False)
class Value:
    """Rows of a pass, (n, width) float32, or the columns from `first` on of such rows, which are `whole`."""

    width: int
    whole: Value | None = None
    first: int = 0

    def split(self, *widths: int) -> tuple[Value, ...]:
        """Its columns in parts of these widths, from the first one on."""
        starts = [self.first + sum(widths[:i]) for i in range(len(widths))]
        return tuple(Value(width, self.root, start) for width, start in zip(widths, starts, strict=True))

    @property
    def root(self) -> Value:
        """The rows that it is a part of, or itself."""
        return self if self.whole is None else self.whole


@frozen(eq=False)
class Operation:
    """A step of a block. Fields named `out` are the values that it makes; its other values are read."""

    reaches_state: ClassVar[bool] = False  # a pass without tokens, which brings states up to date, computes it, too

    @property
    def made(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return tuple(_values(getattr(self, "out", ())))

    @property
    def read(self) -> tuple[Value, ...]:
        """The values that it reads, parts of others as such."""
        others = (getattr(self, each.name) for each in fields(type(self)) if each.name != "out")
        return tuple(value for other in others for value in _values(other))


def _values(field: object) -> Iterator[Value]:
    if isinstance(field, Value):
        yield field
    elif isinstance(field, tuple):
        yield from (each for each in field if isinstance(each, Value))


@frozen(eq=False)
class Normalize(Operation):
    """out = norm(x), by groups of `norm.size` values; x itself without a norm."""

    x: Value
    norm: Norm | None
    out: Value


@frozen(eq=False)
class Multiply(Operation):
    """out[i] = linears[i](x), products of the same rows."""

    x: Value
    linears: tuple[Linear, ...]
    out: tuple[Value, ...]
    purpose: str  # what the products are, as a profile names them


@frozen(eq=False)
class Add(Operation):
    """x += norm(y), once all that the block reads of x is read."""

    y: Value
    norm: Norm | None


@frozen(eq=False)
class Activate(Operation):
    """out = activation(x) / divisors * up; without an up, activation(x) / divisors."""

    x: Value
    activation: Activation | GateKind
    up: Value | None
    divisors: Vector | None
    limit: float | None  # x is at most that, up between it and its negative
    limits_activated: bool  # not x is at most that, but its activation
    constants: tuple[float, ...]  # of the activation
    out: Value


@frozen(eq=False)
class Route(Operation):
    """out = the experts that a router chooses by logits, or by tokens' ids, and their weights, in a form of the backend's."""

    logits: Value
    router: Router
    out: Value  # n_used


@frozen(eq=False)
class FeedExperts(Operation):
    """out = the sum over a token's experts e of w_e * down_e(activation(gate_e(x)) * up_e(x)), limited as in `Activate`."""

    x: Value
    routes: Value
    experts: Experts
    out: Value


@frozen(eq=False)
class AddWeighed(Operation):
    """out = y + other, or y + sigmoid(gate · x) * other with a gate."""

    y: Value
    other: Value
    gate: Vector | None
    x: Value | None
    out: Value


@frozen(eq=False)
class ReadInput(Operation):
    """out = what the embedding made of tokens for one of n layers; see `LayerInputs`."""

    index: int  # of the layer
    n_layers: int
    out: Value


@frozen(eq=False)
class Constant(Operation):
    """Every row of out has these numbers."""

    numbers: tuple[float, ...]
    out: Value


@frozen(eq=False)
class Gate(Operation):
    """out = norm(y + skip * values) * activation(gates), or, `is_gated_first`, norm((y + skip * values) * activation(gates)).

    The norm goes over groups of `norm.size` values. `skip` has a factor for each of the values, or for equal parts of them.
    """

    y: Value
    gates: Value
    activation: Activation | GateKind
    norm: Norm | None
    values: Value | None
    skip: Vector | None
    is_gated_first: bool
    out: Value


# Recurrences


@frozen(eq=False)
class Convolve(Operation):
    """out = after * activation(conv(before * x)), of several x side by side, each with a convolution and a state of its own."""

    reaches_state: ClassVar[bool] = True

    x: tuple[Value, ...]
    convs: tuple[Convolution, ...]
    states: tuple[int, ...]  # places in `Block.states`
    has_silu: bool
    before: Value | None
    after: Value | None
    out: Value


@frozen(eq=False)
class ScaleToLength(Operation):
    """Divide the heads of x by their lengths, in place, and multiply the first `n_scaled` by `scale`.

    A length is sqrt(sum of squares + eps).
    """

    x: Value
    size: int  # of a head
    eps: float
    n_scaled: int
    scale: float


@frozen(eq=False)
class Decay(Operation):
    """With s = softplus(t + dt): decays = exp(a * s), and betas = sigmoid(b), or s where there is no b.

    Without a there are betas alone.
    """

    t: Value
    b: Value | None
    dt: Vector | None
    a: Vector | None
    out: tuple[Value, ...]  # decays, betas; or betas


@frozen(eq=False)
class DecayByKey(Operation):
    """decays = exp(a * softplus(t)) by key channel, or exp(floor * sigmoid(a * t)) with a floor; betas = sigmoid(b).

    The keys are those of the recurrence that reads the decays: a backend may multiply both while it is at it.
    """

    t: Value  # H K
    b: Value  # H
    keys: Value  # H K
    a: Vector  # (H,)
    key_dim: int  # K
    floor: float | None
    out: tuple[Value, ...]  # decays (n, H K), betas (n, H)


@frozen(eq=False)
class Recur(Operation):
    """out = what the heads' matrices yield for queries once they took in keys and values; see `LinearRecurrence`."""

    reaches_state: ClassVar[bool] = True

    heads: LinearRecurrence
    state: int  # a place in `Block.states`
    queries: Value  # G K
    keys: Value  # G K
    values: Value  # H V
    decays: Value | None  # None: they are exp(a * betas)
    betas: Value
    a: Vector | None  # (H V, K)
    out: Value  # H V
