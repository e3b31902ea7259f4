"""The operations that blocks are made of. A backend has an emitter for each that it computes, and knows no blocks.

An operation is a record: the values that it reads, the weights and numbers that take part, and the values that it makes. A
value stands for rows of a pass, one for each of its n tokens, (n, width) float32. Operations read x, the residual stream as the
block sees it, and add to it; only that, caches and states leave a block. An embedding begins x, an output makes logits of it.
Every norm of x is read before the next.

Shape letters are those of docs/notation.md: E embedding, H heads, G key heads, K and V the sizes of their keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from augury.lowering import parts
from augury.lowering.operation import Operation, Value, makes

_N_CONSTANTS: dict[parts.Activation | parts.GateKind, int] = {parts.Activation.SITU: 2, parts.Activation.XIELU: 4}


@frozen(eq=False)
class Normalize(Operation):
    """out = norm(x), by groups of `norm.size` values; x itself without a norm."""

    x: Value
    norm: parts.Norm | None
    out: Value = makes(lambda each: Value(each.x.width))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        if self.norm is not None:
            yield f"x, in groups of {self.norm.size},", self.x.width, max(self.x.width // self.norm.size, 1) * self.norm.size


@frozen(eq=False)
class Multiply(Operation):
    """out[i] = linears[i](x), products of the same rows."""

    x: Value
    linears: tuple[parts.Linear, ...]
    purpose: str  # the products' name in a profile
    out: tuple[Value, ...] = makes(lambda each: tuple(Value(linear.n_out) for linear in each.linears))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        for linear, out in zip(self.linears, self.out, strict=True):
            yield f"x of {linear.weight}", self.x.width, linear.n_in
            yield f"the product with {linear.weight}", out.width, linear.n_out


@frozen(eq=False)
class Add(Operation):
    """x += norm(y), once all that the block reads of x is read."""

    y: Value
    norm: parts.Norm | None = None


@frozen(eq=False)
class AddStream(Operation):
    """x += factor * z, or factor * first if that is given; if exchanged, z becomes the previous x. See `SecondStream`."""

    factor: float
    swaps: bool
    first: parts.Vector | None


@frozen(eq=False)
class Activate(Operation):
    """out = activation(x) / divisors * up; without an up, activation(x) / divisors."""

    x: Value
    activation: parts.Activation | parts.GateKind
    up: Value | None = None
    divisors: parts.Vector | None = None
    limit: float | None = None  # x is at most that, up between it and its negative
    limits_activated: bool = False  # not x is at most that, but its activation
    constants: tuple[float, ...] = ()  # of the activation
    out: Value = makes(lambda each: Value(each.x.width))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "up", self.x.width if self.up is None else self.up.width, self.x.width
        yield "divisors", self.x.width if self.divisors is None else self.divisors.size, self.x.width
        yield "constants", len(self.constants), _N_CONSTANTS.get(self.activation, 0)


@frozen(eq=False)
class Routes(Value):
    """The experts of tokens, `width` of each, and their weights, in a form of the backend's."""


@frozen(eq=False)
class Route(Operation):
    """out = the experts that a router chooses by logits, or by tokens' ids."""

    logits: Value
    router: parts.Router
    out: Routes = makes(lambda each: Routes(each.router.n_used))


@frozen(eq=False)
class FeedExperts(Operation):
    """out = the sum over a token's experts e of w_e * down_e(activation(gate_e(x)) * up_e(x)), limited as in `Activate`."""

    x: Value
    routes: Routes
    experts: parts.Experts
    out: Value = makes(lambda each: Value(each.experts.down.n_out))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        experts = self.experts
        yield "constants", len(experts.constants), _N_CONSTANTS.get(experts.activation, 0)
        for matrices in (experts.up, experts.gate or experts.up):
            yield f"x of {matrices.weight}", self.x.width, matrices.n_in
            yield f"the product with {matrices.weight}", matrices.n_out, experts.down.n_in


@frozen(eq=False)
class AddWeighed(Operation):
    """out = y + other, or y + sigmoid(gate · x) * other with a gate."""

    y: Value
    other: Value
    gate: parts.Vector | None = None
    x: Value | None = None
    out: Value = makes(lambda each: Value(each.y.width))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "other", self.other.width, self.y.width
        if self.gate is not None and self.x is not None:
            yield f"x of {self.gate.weight}", self.x.width, self.gate.size


@frozen(eq=False)
class ReadInput(Operation):
    """out = the rows that the embedding made for one of n layers; see `LayerInputs`."""

    index: int  # of the layer
    n_layers: int
    out: Value


@frozen(eq=False)
class ReadTokens(Operation):
    """out = the ids of tokens, as floats."""

    out: Value = makes(lambda _: Value(1))


@frozen(eq=False)
class ReadHidden(Operation):
    """out = the rows of `Batch.hidden`."""

    out: Value


@frozen(eq=False)
class Join(Operation):
    """out = several values side by side."""

    x: tuple[Value, ...]
    out: Value = makes(lambda each: Value(sum(value.width for value in each.x)))


@frozen(eq=False)
class InitStreams(Operation):
    """The residual streams become y, one for each, or one for all."""

    y: tuple[Value, ...]


@frozen(eq=False)
class Constant(Operation):
    """Every row of out has these numbers."""

    numbers: tuple[float, ...]
    out: Value = makes(lambda each: Value(len(each.numbers)))


@frozen(eq=False)
class Gate(Operation):
    """out = norm(y + skip * values) * activation(gates), or, `is_gated_first`, norm((y + skip * values) * activation(gates)).

    The norm goes over groups of `norm.size` values. `skip` has a factor for each of the values, or for equal parts of them, and
    so have gates.
    """

    y: Value
    gates: Value
    activation: parts.Activation | parts.GateKind
    norm: parts.Norm | None = None
    values: Value | None = None
    skip: parts.Vector | None = None
    is_gated_first: bool = False
    out: Value = makes(lambda each: Value(each.y.width))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        width = self.y.width
        yield "constants", 0, _N_CONSTANTS.get(self.activation, 0)
        yield "gates", self.gates.width, width // max(width // self.gates.width, 1)
        yield "values", width if self.values is None else self.values.width, width
        for what, size in (("norm", self.norm and self.norm.size), ("skip", self.skip and self.skip.size)):
            if size:
                yield f"y, in parts as {what} has them,", width, max(width // size, 1) * size


# Recurrences


@frozen(eq=False)
class Convolve(Operation):
    """out = activation(conv(x)) of several x side by side, each with a convolution and a state of its own.

    Of one x alone: out = after * activation(conv(before * x)).
    """

    x: tuple[Value, ...]
    convs: tuple[parts.Convolution, ...]
    states: tuple[int, ...]  # places in `Block.states`
    has_silu: bool = False
    before: Value | None = None
    after: Value | None = None
    out: Value = makes(lambda each: Value(sum(conv.n_channels for conv in each.convs)))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        for x, conv in zip(self.x, self.convs, strict=True):
            yield f"x of {conv.weight}", x.width, conv.n_channels
        for what, gates in (("before", self.before), ("after", self.after)):
            if gates is not None:
                yield what, gates.width, self.out.width
                yield f"x, beside {what},", len(self.x), 1

    def sequence_states(self) -> dict[int, parts.SequenceState]:
        return {place: conv.state for place, conv in zip(self.states, self.convs, strict=True)}


@frozen(eq=False)
class ConvolveBlock(Operation):
    """out = conv(x), over the tokens that the pass has of a slot, with weights of each token's own; see `Convolved`."""

    x: Value  # E
    weights: Value  # 2 * n_taps * E / group
    base: parts.Vector  # (2, n_taps, E)
    n_taps: int
    side: int
    out: Value = makes(lambda each: Value(each.x.width))

    @property
    def n_groups(self) -> int:
        """E / group."""
        return self.weights.width // (2 * self.n_taps)

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "base", self.base.size, 2 * self.n_taps * self.x.width
        yield "weights", self.weights.width, 2 * self.n_taps * max(self.n_groups, 1)
        yield f"x, in {self.n_groups} groups,", self.x.width, self.x.width // max(self.n_groups, 1) * max(self.n_groups, 1)


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

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield f"x, in heads of {self.size},", self.x.width, max(self.x.width // self.size, 1) * self.size


@frozen(eq=False)
class Decay(Operation):
    """With s = softplus(t + dt): decays = exp(a * s), and betas = sigmoid(b), or s where there is no b.

    Without a there are betas alone.
    """

    t: Value
    b: Value | None = None
    dt: parts.Vector | None = None
    a: parts.Vector | None = None
    out: tuple[Value, ...] = makes(
        lambda each: tuple(Value(each.t.width) for _ in range(1 if each.a is None else 2))
    )  # decays, betas

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "b", self.t.width if self.b is None else self.b.width, self.t.width
        for part in (self.dt, self.a):
            if part is not None:
                yield f"t of {part.weight}", self.t.width, part.size


@frozen(eq=False)
class DecayByKey(Operation):
    """decays = exp(a * softplus(t)) by key channel, or exp(floor * sigmoid(a * t)) with a floor; betas = sigmoid(b).

    The keys are those of the recurrence that reads the decays: a backend may multiply both while it is at it.
    """

    t: Value  # H K
    b: Value  # H
    keys: Value  # H K
    a: parts.Vector  # (H,)
    key_dim: int  # K
    floor: float | None
    out: tuple[Value, ...] = makes(lambda each: (Value(each.t.width), Value(each.b.width)))  # decays, betas

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "t", self.t.width, self.b.width * self.key_dim
        yield "keys", self.keys.width, self.t.width
        yield f"b of {self.a.weight}", self.b.width, self.a.size


@frozen(eq=False)
class Recur(Operation):
    """out = the heads' matrices times queries, after they took in keys and values; see `LinearRecurrence`."""

    heads: parts.LinearRecurrence
    state: int  # a place in `Block.states`
    queries: Value  # G K
    keys: Value  # G K
    values: Value  # H V
    decays: Value | None  # None: they are exp(a * betas)
    betas: Value
    a: parts.Vector | None = None  # (H V, K)
    out: Value = makes(lambda each: Value(each.heads.n_heads * each.heads.value_dim))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        heads = self.heads
        yield "queries", self.queries.width, heads.n_key_heads * heads.key_dim
        yield "keys", self.keys.width, heads.n_key_heads * heads.key_dim
        yield "values", self.values.width, heads.n_heads * heads.value_dim
        yield "betas", self.betas.width, heads.n_heads * (heads.value_dim if heads.is_by_channel else 1)
        if self.decays is not None:
            yield "decays", self.decays.width, heads.n_heads * (heads.key_dim if heads.is_by_key else 1)

    def sequence_states(self) -> dict[int, parts.SequenceState]:
        return {self.state: self.heads.state}


# Embeddings and outputs


@frozen(eq=False)
class LookUp(Operation):
    """out = scale * W[i], rows of a matrix by the ids of tokens, or by their positions."""

    table: parts.Linear  # P → as many rows as there are ids
    scale: float = 1.0
    is_by_position: bool = False
    out: Value = makes(lambda each: Value(each.table.n_in))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield f"a row of {self.table.weight}", self.out.width, self.table.n_in


@frozen(eq=False)
class SetLayerInputs(Operation):
    """The rows that `ReadInput` reads become scale * (x + factor * other), those of all layers side by side."""

    x: Value
    other: Value
    factor: float
    scale: float

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "other", self.other.width, self.x.width


@frozen(eq=False)
class ComputeLogits(Operation):
    """The logits become linear(norm(x)), of the tokens that are asked for; with a softcap, softcap * tanh(logits / softcap)."""

    x: Value
    norm: parts.Norm | None
    linear: parts.Linear
    softcap: float | None = None

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield f"x of {self.linear.weight}", self.x.width, self.linear.n_in
        yield "the norm of x", self.x.width if self.norm is None else self.norm.size, self.x.width
