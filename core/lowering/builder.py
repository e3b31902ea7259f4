"""Collects the operations of a block while it says how it is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from augury.blocks.parts import (
    Activation,
    Convolution,
    Experts,
    GateKind,
    Linear,
    LinearRecurrence,
    Matrices,
    Norm,
    Preparation,
    Rope,
    Router,
    SequenceState,
    Temperature,
    Vector,
)
from augury.lowering.attention import Attend, Choose, ChooseByHead, MultiplyHeads, PositionChoice, PrepareHeads, PrepareLatents
from augury.lowering.field_types import type_flaws
from augury.lowering.operation import CachedRows, Operation, Value
from augury.lowering.operations import (
    Activate,
    Add,
    AddStream,
    AddWeighed,
    ComputeLogits,
    Constant,
    Convolve,
    ConvolveBlock,
    Decay,
    DecayByKey,
    FeedExperts,
    Gate,
    InitStreams,
    Join,
    LookUp,
    Multiply,
    Normalize,
    ReadHidden,
    ReadInput,
    ReadTokens,
    Recur,
    Route,
    Routes,
    ScaleToLength,
    SetLayerInputs,
)


class Builder:
    """The list on which `Block.lower` writes operations: each method adds one, and returns the values that it makes.

    Attributes:
        x: The residual stream as the block sees it, (n, E).
        before: The residual stream as it was before the layer, (n, E). Only the first operations may read it.
        embedded: The embedding's output, (n, E), for blocks that say that they read it (`Block.reads_embedding`).
        operations: The added ones, in order.
    """

    def __init__(self, n_embd: int) -> None:
        self.x, self.before, self.embedded = Value(n_embd), Value(n_embd), Value(n_embd)
        self.operations: list[Operation] = []
        self._reused: list[PositionChoice] = []

    def flaws(self, states: Sequence[SequenceState], cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        """The misfits of operations, between them, and with the states and caches that the block declares, in words.

        Operands are looked at first: the others presuppose that each is what its operation's field says.
        """
        written: Sequence[object] = self.operations  # a package may have written anything
        for each in written:
            if not isinstance(each, Operation):
                yield f"it writes {each!r:.80}, expected an operation"
            else:
                yield from type_flaws(each, type(each).__name__)
        yield from self._misfits(states, cached)

    def _misfits(self, states: Sequence[SequenceState], cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        made, kept, written = {self.x, self.before, self.embedded, *self._reused}, {}, {}
        norms = {each.out for each in self.operations if isinstance(each, Normalize) and each.x in (self.x, self.before)}
        for each in self.operations:
            name = type(each).__name__
            for value in each.read:
                if value.root in (self.x, self.before) and not isinstance(each, Normalize | ComputeLogits):
                    yield f"{name} reads x as others may still add to it; let it read `normalize(x, None)`"
                elif value.root not in made:
                    yield f"{name} reads {value.width} values that nothing before it makes"
                elif not 0 <= value.first < value.first + value.width <= value.root.width:
                    yield f"{name} reads columns up to {value.first + value.width} of {value.root.width}, from {value.first} on"
            sizes = [*each.sizes()]
            if isinstance(each, Add | InitStreams):
                sizes += [("y", value.width, self.x.width) for value in each.read]
            yield from (
                f"{what} of {name} has {found} values, expected {right}" for what, found, right in sizes if found != right
            )
            if isinstance(each, ScaleToLength) and each.x.root in norms:
                yield f"{name} writes over a norm of x, which threads keep for all that read it; scale what is made of that"
            yield from _cache_flaws(each, name, cached)
            made.update(each.made)
            kept.update(each.kept())
            written.update(each.cached())
        keeps_for_others = any(isinstance(each, PrepareHeads) and each.source is not None for each in self.operations)
        ends = [isinstance(each, Add | AddStream | InitStreams | ComputeLogits) for each in self.operations]
        if any(ends[:-1]) or not (all(ends[-1:]) or keeps_for_others):
            yield "it adds to x more than once, or not in the end; let its last operation add the whole result"
        if kept != dict(enumerate(states)):
            yield f"its operations keep the states {kept}, `states` says {dict(enumerate(states))}"
        expected = {i: n_heads * size for i, (_, n_heads, size) in enumerate(cached)}
        if written != expected:
            yield f"its operations keep rows of {written} values by cache, `cached` says {expected}"

    def write(self, operation: Operation) -> tuple[Value, ...]:
        """Add an operation; returns the values that it makes."""
        self.operations.append(operation)
        return operation.made

    def look_up(self, table: Linear, scale: float = 1.0, *, is_by_position: bool = False) -> Value:
        """Rows of a matrix, scale * W[i], by the ids of tokens, or by their positions."""
        return self.write(LookUp(table, scale, is_by_position, Value(table.n_in)))[0]

    def normalize(self, x: Value, norm: Norm | None) -> Value:
        """norm(x), by groups of `norm.size` values; x itself without a norm."""
        if norm is None and x not in (self.x, self.before):
            return x
        return self.write(Normalize(x, norm, Value(x.width)))[0]

    def multiply(self, x: Value, *linears: Linear, purpose: str) -> tuple[Value, ...]:
        """The products of x with matrices. `purpose` names them in profiles."""
        return self.write(Multiply(x, linears, tuple(Value(linear.n_out) for linear in linears), purpose))

    def add(self, y: Value, norm: Norm | None = None) -> None:
        """Add y, or its norm, to the residual stream."""
        self.operations.append(Add(y, norm))

    def add_stream(self, factor: float, first: Vector | None, *, swaps: bool) -> None:
        """Add the second residual stream; see `AddStream`."""
        self.operations.append(AddStream(factor, swaps, first))

    def add_product(self, x: Value, linear: Linear, purpose: str, norm: Norm | None = None) -> None:
        """Add the product of x with a matrix, or its norm, to the residual stream."""
        (y,) = self.multiply(x, linear, purpose=purpose)
        self.add(y, norm)

    def activate(
        self,
        x: Value,
        activation: Activation | GateKind,
        up: Value | None = None,
        *,
        divisors: Vector | None = None,
        limit: float | None = None,
        limits_activated: bool = False,
        constants: tuple[float, ...] = (),
    ) -> Value:
        """activation(x) / divisors * up, of the arguments that are given; see `Activate`."""
        return self.write(Activate(x, activation, up, divisors, limit, limits_activated, constants, Value(x.width)))[0]

    def route(self, logits: Value, router: Router) -> Routes:
        """The experts that a router chooses, and their weights."""
        out = Routes(router.n_used)
        self.operations.append(Route(logits, router, out))
        return out

    def feed_experts(self, x: Value, routes: Routes, experts: Experts) -> Value:
        """The weighed sum of the outputs of a token's experts for x."""
        return self.write(FeedExperts(x, routes, experts, Value(experts.down.n_out)))[0]

    def add_weighed(self, y: Value, other: Value, gate: Vector | None = None, x: Value | None = None) -> Value:
        """The sum y + other, or y + sigmoid(gate · x) * other."""
        return self.write(AddWeighed(y, other, gate, x, Value(y.width)))[0]

    def read_input(self, index: int, n_layers: int, width: int) -> Value:
        """The rows that the embedding made for one of n layers."""
        return self.write(ReadInput(index, n_layers, Value(width)))[0]

    def read_tokens(self) -> Value:
        """The ids of tokens, as floats."""
        return self.write(ReadTokens(Value(1)))[0]

    def read_hidden(self, width: int) -> Value:
        """The hidden states that the pass is given."""
        return self.write(ReadHidden(Value(width)))[0]

    def join(self, *x: Value) -> Value:
        """Values side by side."""
        return self.write(Join(x, Value(sum(each.width for each in x))))[0]

    def begin_streams(self, *y: Value) -> None:
        """Let the residual streams become y, one for each, or one for all."""
        self.operations.append(InitStreams(y))

    def give_inputs(self, x: Value, other: Value, factor: float, scale: float) -> None:
        """Let the inputs of all layers, side by side, become scale * (x + factor * other)."""
        self.operations.append(SetLayerInputs(x, other, factor, scale))

    def give_logits(self, x: Value, norm: Norm | None, linear: Linear, softcap: float | None = None) -> None:
        """Let the logits become linear(norm(x)), capped; x may be the residual stream itself."""
        self.operations.append(ComputeLogits(x, norm, linear, softcap))

    def constant(self, numbers: Sequence[float]) -> Value:
        """Rows of which each has these numbers."""
        return self.write(Constant(tuple(numbers), Value(len(numbers))))[0]

    def gate(
        self,
        y: Value,
        gates: Value,
        activation: Activation | GateKind,
        norm: Norm | None = None,
        *,
        values: Value | None = None,
        skip: Vector | None = None,
        is_gated_first: bool = False,
    ) -> Value:
        """norm(y + skip * values) * activation(gates), or gated before the norm."""
        return self.write(Gate(y, gates, activation, norm, values, skip, is_gated_first, Value(y.width)))[0]

    def convolve(
        self,
        x: Sequence[Value],
        convs: Sequence[Convolution],
        states: Sequence[int],
        *,
        has_silu: bool = False,
        before: Value | None = None,
        after: Value | None = None,
    ) -> Value:
        """The product after * conv(before * x), of several x side by side, through SiLU with `has_silu`."""
        out = Value(sum(conv.n_channels for conv in convs))
        return self.write(Convolve(tuple(x), tuple(convs), tuple(states), has_silu, before, after, out))[0]

    def convolve_block(self, x: Value, weights: Value, base: Vector, n_taps: int, side: int) -> Value:
        """The convolution of x over the tokens of a block, with weights of each token's own; see `ConvolveBlock`."""
        return self.write(ConvolveBlock(x, weights, base, n_taps, side, Value(x.width)))[0]

    def scale_to_length(self, x: Value, size: int, eps: float, n_scaled: int, scale: float) -> None:
        """Divide the heads of x by their lengths, in place, and multiply the first of them by a scale."""
        self.operations.append(ScaleToLength(x, size, eps, n_scaled, scale))

    def decay(
        self, t: Value, b: Value | None = None, *, dt: Vector | None = None, a: Vector | None = None
    ) -> tuple[Value, ...]:
        """Decays and betas of heads; betas alone without a."""
        return self.write(Decay(t, b, dt, a, tuple(Value(t.width) for _ in range(1 if a is None else 2))))

    def decay_by_key(self, t: Value, b: Value, keys: Value, a: Vector, key_dim: int, floor: float | None) -> tuple[Value, ...]:
        """Decays by key channel, and betas of heads."""
        return self.write(DecayByKey(t, b, keys, a, key_dim, floor, (Value(t.width), Value(b.width))))

    def recur(
        self,
        heads: LinearRecurrence,
        state: int,
        queries: Value,
        keys: Value,
        values: Value,
        decays: Value | None,
        betas: Value,
        a: Vector | None = None,
    ) -> Value:
        """The output of the matrices of heads for the queries."""
        out = Value(heads.n_heads * heads.value_dim)
        return self.write(Recur(heads, state, queries, keys, values, decays, betas, a, out))[0]

    def prepare_heads(
        self,
        x: Sequence[Value],
        dims: Sequence[int],
        steps: Sequence[Preparation],
        caches: Sequence[int | None] | None = None,
        source: int | None = None,
    ) -> tuple[Value, ...]:
        """The heads of several x, prepared, and kept where there are caches; x itself if there is nothing to do."""
        caches = [None] * len(x) if caches is None else caches
        if all(each.is_nothing for each in steps) and not any(cache is not None for cache in caches):
            return tuple(x)
        out = tuple(Value(each.width) for each in x)
        return self.write(PrepareHeads(tuple(x), tuple(dims), tuple(steps), tuple(caches), source, out))

    def prepare_latents(
        self,
        queries: Value,
        latents: Value,
        keys: Matrices,
        norm: Norm,
        turned_norm: Norm | None,
        rope: Rope | None,
        temperature: Temperature | None,
        cache: int,
    ) -> Value:
        """Queries that ask for latents, which are kept."""
        out = Value(keys.n * (queries.width // keys.n - keys.n_in + keys.n_out))
        return self.write(PrepareLatents(queries, latents, keys, norm, turned_norm, rope, temperature, cache, out))[0]

    def multiply_heads(self, x: Value, matrices: Matrices) -> Value:
        """The product of each head with a matrix of its own."""
        return self.write(MultiplyHeads(x, matrices, Value(matrices.n * matrices.n_out)))[0]

    def attend(
        self,
        queries: Value,
        keys: int,
        values: int | None,
        n_heads: int,
        value_dim: int,
        scale: float,
        *,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        slopes: tuple[float, ...] | None = None,
        sinks: Vector | None = None,
        choice: PositionChoice | None = None,
        pooled: int | None = None,
        source: int | None = None,
        is_causal: bool = True,
    ) -> Value:
        """The values that heads mix by their queries; see `Attend`."""
        made = Attend(
            queries,
            keys,
            values,
            n_heads,
            scale,
            window=window,
            chunk=chunk,
            softcap=softcap,
            slopes=slopes,
            sinks=sinks,
            choice=choice,
            pooled=pooled,
            source=source,
            is_causal=is_causal,
            out=Value(n_heads * value_dim),
        )
        return self.write(made)[0]

    def choose(
        self, queries: Value, weights: Value | None, keys: int, n_chosen: int, *, size: int = 1, window: int | None = None
    ) -> PositionChoice:
        """The whole blocks of `size` positions that score highest by the keys of their last ones; see `Choose`."""
        out = PositionChoice(1, size=size, window=window)
        self.operations.append(Choose(queries, weights, keys, n_chosen, out))
        return out

    def choose_all(self, size: int, window: int) -> PositionChoice:
        """The last positions, and the pooled rows of all whole blocks."""
        out = PositionChoice(1, size=size, window=window, is_all=True)
        self.operations.append(Choose(None, None, None, 0, out))
        return out

    def choose_by_head(self, queries: Value, n_heads: int, keys: int, n_chosen: int, n_local: int, size: int) -> PositionChoice:
        """The blocks of `size` positions that score highest, for each head by itself; see `ChooseByHead`."""
        out = PositionChoice(n_heads, size=size)
        self.operations.append(ChooseByHead(queries, keys, n_chosen, n_local, out))
        return out

    def reuse_choice(self, size: int = 1) -> PositionChoice:
        """The choice of the nearest layer before that makes one, of blocks of `size` positions."""
        self._reused.append(PositionChoice(1, size=size))
        return self._reused[-1]


def _cache_flaws(each: Operation, name: str, cached: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
    """The caches that an operation reads and the block does not have."""
    for place in each.seen():
        if not 0 <= place < len(cached):
            yield f"{name} reads cache {place}, `cached` says {cached}"
    for rows in (operand for operand in each.operands if isinstance(operand, CachedRows)):
        if cached[rows.cache : rows.cache + 1] != (("f32", 1, rows.width),):
            yield f"{name} has cache {rows.cache} for rows of {rows.width} floats, `cached` says {cached}"
