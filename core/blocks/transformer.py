"""The blocks of transformers: embedding, attention, feed-forward, mixtures of experts and output."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from augury.blocks.block import Block, PositionIndexer
from augury.lowering import operations as op
from augury.lowering.attention import Attend
from augury.lowering.builder import Builder
from augury.lowering.operation import Value
from augury.lowering.parts import (
    Activation,
    BlockTensors,
    Experts,
    GateKind,
    HasParts,
    Integers,
    Linear,
    Matrices,
    Norm,
    Preparation,
    Rope,
    Router,
    Temperature,
    Vector,
)


@frozen
class LayerInputs(HasParts):
    """e = scale * (norm(projection(x)) + table_scale * T[token]), x the embedding: P values for each of n layers."""

    table: Linear  # n P → V
    projection: Linear  # E → n P
    norm: Norm  # of P values
    table_scale: float
    scale: float


@frozen
class Embedding(Block):
    """x = norm(scale * W[token] + positions[p]) at position p, W of shape (V, E).

    Without a weight x is `Batch.hidden`: it begins a later stage of a model, see `ModelPlan.stage`.
    """

    weight: str | None
    n_vocab: int
    n_embd: int
    scale: float = 1.0
    positions: Linear | None = None  # E → as many positions as the model knows: its row p is added at position p
    norm: Norm | None = None
    layer_inputs: LayerInputs | None = None  # its further output, for `LayerInput`
    n_streams: int = 1  # S: residual streams that begin as x, each

    def tensors(self) -> tuple[BlockTensors, ...]:
        """Its matrices, as products with them would be, and its norm."""
        rows = () if self.weight is None else (Linear(self.weight, self.n_embd, self.n_vocab),)
        return (*rows, *super().tensors())

    def lower(self, build: Builder) -> None:
        if self.weight is None:
            return
        x = build.add(op.LookUp, Linear(self.weight, self.n_embd, self.n_vocab), self.scale)
        if self.positions is not None:
            x = build.add(op.AddWeighed, x, build.add(op.LookUp, self.positions, is_by_position=True))
        x = build.normalize(x, self.norm)
        if (given := self.layer_inputs) is not None:
            (made,) = build.add(op.Multiply, x, (given.projection,), "inputs of layers")
            rows = build.add(op.LookUp, given.table)
            build.add(op.SetLayerInputs, build.normalize(made, given.norm), rows, given.table_scale, given.scale)
        build.add(op.InitStreams, (x,))


@frozen
class Attention(Block):
    """x += post_norm(o(softmax(scale * q k^T) v)), causal, over grouped heads, with q, k, v computed from norm(x).

    Query head h reads KV head h // (H / G). With `window` w a token at position p sees positions p-w+1 … p, with `chunk` c
    those from p // c * c on. The other fields act in this order: q, k and v are clamped, q and k normed and turned (or the
    other way round), q is multiplied by `temperature`; scores are scaled, capped, and lose `slopes` times the distance;
    `sinks` take part in softmax as scores without a value; the mix is multiplied by `gate`, normed, and goes through o.
    With `source`, the mixer of an earlier layer has stored the keys and values. With an `embedded_norm`,
    q, k and v read 2 E values, embedded_norm(e) and then norm(x), where e is the embedding's output. Attention that is not
    causal sees, up to the last one, all tokens that the pass has of a slot, which are a chain.
    """

    norm: Norm | None
    q: Linear  # E → H * D
    k: Linear  # E → G * D
    v: Linear  # E → G * D_v
    o: Linear  # H * D_v → E
    n_heads: int
    n_kv_heads: int
    head_dim: int  # D, of queries and keys
    value_dim: int  # D_v
    scale: float
    rope: Rope | None
    q_norm: Norm | None = None  # per head
    k_norm: Norm | None = None
    post_norm: Norm | None = None
    window: int | None = None
    chunk: int | None = None
    clamp: float | None = None  # of q, k and v: to [-clamp, clamp]
    v_norm: Norm | None = None  # per head
    has_joint_norms: bool = False  # q_norm and k_norm go over all heads together: H * D and G * D values
    is_rope_first: bool = False  # q and k are normed after rope, not before
    temperature: Temperature | None = None
    softcap: float | None = None  # scores s become softcap * tanh(s / softcap)
    slopes: tuple[float, ...] | None = None  # of ALiBi, by query head
    sinks: Vector | None = None  # (H,) scores
    gate: Linear | None = None  # E → H * D_v, or E → H: of norm(x); its activation times the mixed values, by value or by head
    gate_kind: GateKind = GateKind.SIGMOID
    out_norm: Norm | None = None  # of the mix, over all heads, before o
    indexer: PositionIndexer | None = None  # chooses the seen positions that take part
    source: int | None = None  # a layer's number
    embedded_norm: Norm | None = None
    is_causal: bool = True

    @property
    def reads_embedding(self) -> bool:
        return self.embedded_norm is not None

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        if self.source is not None:
            return ()
        n, indexer = self.n_kv_heads, self.indexer
        states = (("cache_type_k", n, self.head_dim), ("cache_type_v", n, self.value_dim))
        return states if indexer is None else (*states, *indexer.cached())

    def lower(self, build: Builder) -> None:
        build.add(op.Add, self.output(build, build.normalize(build.x, self.norm)), self.post_norm)

    def output(self, build: Builder, n: Value) -> Value:
        """Its output, before the last norm, for n in place of norm(x)."""
        indexer, gate = self.indexer, self.gate
        if self.embedded_norm is not None:
            n = build.add(op.Join, (build.normalize(build.embedded, self.embedded_norm), n))
        linears = (self.q,) if self.source is not None else (self.q, self.k, self.v)
        others = (*(() if indexer is None else indexer.linears), *(() if gate is None else (gate,)))
        made = build.add(op.Multiply, n, (*others, *linears), "queries, keys, values")
        n_compared = len(others) - (gate is not None)
        choice = None if indexer is None else indexer.choose(build, made[:n_compared], 2)
        queries, *kept = made[len(others) :]
        q, *_ = self.keep(build, kept, queries)
        y = build.add(
            Attend,
            q,
            0,
            1,
            self.n_heads,
            self.value_dim,
            self.scale,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            slopes=self.slopes,
            sinks=self.sinks,
            choice=choice,
            source=self.source,
            is_causal=self.is_causal,
        )
        if gate is not None:
            y = build.add(op.Gate, y, made[n_compared], self.gate_kind)
        (y,) = build.add(op.Multiply, build.normalize(y, self.out_norm), (self.o,), "attention's output")
        return y

    def keep(
        self, build: Builder, made: Sequence[Value], queries: Value | None = None, source: int | None = None
    ) -> tuple[Value, ...]:
        """Prepare heads of queries, and of `made` keys and values, if they are its own, which are kept.

        With `source`, they are kept as those of that layer, whose attention this is.
        """
        heads, begin = (list(made), 1) if queries is None else ([queries, *made], 0)
        these = slice(begin, begin + len(heads))
        sizes, norms = [self.head_dim, self.head_dim, self.value_dim][these], [self.q_norm, self.k_norm, None]
        clamp, rope, is_rope_first = self.clamp, self.rope, self.is_rope_first
        if self.has_joint_norms:
            first = Preparation(clamp, rope=rope if is_rope_first else None)
            prepared = build.prepare_heads(heads, sizes, [first, first, Preparation(clamp)][these])
            heads = [build.normalize(x, norm) for x, norm in zip(prepared, norms[these], strict=True)]
            clamp, rope, is_rope_first, norms = None, None if is_rope_first else rope, False, [None, None, None]
        of_queries, of_keys = (
            Preparation(clamp, norm, rope, temperature, is_rope_first)
            for norm, temperature in zip(norms[:2], (self.temperature, None), strict=True)
        )
        steps, caches = [of_queries, of_keys, Preparation(clamp, self.v_norm)], [None, 0, 1]
        return build.prepare_heads(heads, sizes, steps[these], caches[these], source)


@frozen
class Projection(Block):
    """x += o(norm(x)): the replacement of attention in layers where it was pruned."""

    norm: Norm
    o: Linear  # E → E

    def lower(self, build: Builder) -> None:
        build.add_product(build.normalize(build.x, self.norm), self.o, "projection")


@frozen
class FeedForward(Block):
    """x += post_norm(down(hidden_norm(activation(gate(n)) * up(n)))) with n = norm(x); activation(up(n)) without a gate."""

    norm: Norm | None
    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    post_norm: Norm | None = None
    hidden_norm: Norm | None = None
    divisors: Vector | None = None  # of the activated values
    limit: float | None = None  # gate(n) is at most that, up(n) between it and its negative
    limits_activated: bool = False  # the limit of the activated gate, not of the gate itself
    constants: tuple[float, ...] = ()  # of the activation

    def lower(self, build: Builder) -> None:
        build.add(op.Add, self.output(build, build.normalize(build.x, self.norm)), self.post_norm)

    def output(self, build: Builder, n: Value) -> Value:
        """Its output, before the last norm, for n in place of norm(x)."""
        (made,) = build.add(op.Multiply, self._hidden(build, n), (self.down,), "down")
        return made

    def feed(self, build: Builder, x: Value) -> Value:
        """Its output for x, which is normed."""
        return build.normalize(self.output(build, x), self.post_norm)

    def _hidden(self, build: Builder, x: Value) -> Value:
        linears = (self.up,) if self.gate is None else (self.gate, self.up)
        gate, *up = build.add(op.Multiply, x, linears, ", ".join(("gate", "up")[-len(linears) :]))
        hidden = build.add(
            op.Activate,
            gate,
            self.activation,
            up[0] if up else None,
            divisors=self.divisors,
            limit=self.limit,
            limits_activated=self.limits_activated,
            constants=self.constants,
        )
        return build.normalize(hidden, self.hidden_norm)


@frozen
class MixtureOfExperts(Block):
    """x += post_norm(sum of w_e * expert_e(n) over the token's experts + s * shared(n)) with n = norm(x).

    An expert is a feed-forward, down_e(activation(gate_e(n)) * up_e(n)). `shared` is one that all tokens pass through, with
    s = sigmoid(shared_gate · n), or 1 where there is no such gate. The sum of all is sent through the `adjugate` mixture,
    too, whose router has the same logits, and both are added.

    With `latent_down` and `latent_up`, experts are of another size: expert_e(latent_down(n)), and latent_up(sum_norm(sum)).
    """

    norm: Norm | None
    router: Router
    gate: Matrices | None
    up: Matrices
    down: Matrices
    activation: Activation
    limit: float | None = None  # gate_e(n) is at most that, up_e(n) between it and its negative
    limits_activated: bool = False  # the limit of the activated gate, not of the gate itself
    weighs_input: bool = False  # expert_e(w_e * n) instead of w_e * expert_e(n)
    shared: FeedForward | None = None  # given n; given x where it has a norm
    shared_gate: Vector | None = None  # (E,)
    post_norm: Norm | None = None
    adjugate: MixtureOfExperts | None = None  # without norms
    constants: tuple[float, ...] = ()  # of the activation
    latent_down: Linear | None = None
    latent_up: Linear | None = None
    sum_norm: Norm | None = None  # of the experts' sum, before anything is added

    def lower(self, build: Builder) -> None:
        router, shared, other = self.router, self.shared, None
        if router.is_early:
            logits = self._logits(build, build.normalize(build.before, None))
        if shared is not None and shared.norm is not None:
            other = shared.feed(build, build.normalize(build.x, shared.norm))
        if router.norm is not None:
            logits = self._logits(build, build.normalize(build.x, router.norm))
        x = build.normalize(build.x, self.norm)
        if router.norm is None and not router.is_early:
            logits = self._logits(build, x)
        if shared is not None and other is None:
            other = shared.feed(build, x)
        given = x if self.latent_down is None else build.add(op.Multiply, x, (self.latent_down,), "latents")[0]
        y = build.normalize(build.add(op.FeedExperts, given, build.add(op.Route, logits, router), self.experts), self.sum_norm)
        if self.latent_up is not None:
            (y,) = build.add(op.Multiply, y, (self.latent_up,), "experts' output")
        if other is not None:
            y = build.add(op.AddWeighed, y, other, self.shared_gate, None if self.shared_gate is None else x)
        if self.adjugate is not None:
            y = build.add(
                op.AddWeighed,
                build.add(op.FeedExperts, y, build.add(op.Route, logits, self.adjugate.router), self.adjugate.experts),
                y,
            )
        build.add(op.Add, y, self.post_norm)

    @property
    def experts(self) -> Experts:
        """The experts that a router chooses among."""
        limits = (self.limit, self.limits_activated)
        matrices = (self.gate, self.up, self.down)
        return Experts(self.router, *matrices, self.activation, *limits, self.weighs_input, self.constants)

    def _logits(self, build: Builder, x: Value) -> Value:
        (logits,) = build.add(op.Multiply, x, (self.router.logits,), "router")
        return logits


@frozen
class LayerInput(Block):
    """x += post_norm(o(activation(gate(x)) * e)), e the P values that the embedding made for one of n layers."""

    gate: Linear  # E → P
    o: Linear  # P → E
    activation: Activation
    post_norm: Norm
    index: int  # of the layer
    n_layers: int  # n

    def lower(self, build: Builder) -> None:
        (gate,) = build.add(op.Multiply, build.normalize(build.x, None), (self.gate,), "gate of inputs")
        e = build.add(op.ReadInput, self.index, self.n_layers, Value(gate.width))
        build.add_product(build.add(op.Activate, gate, self.activation, e), self.o, "inputs of a layer", self.post_norm)


@frozen
class SecondStream(Block):
    """x += factor * z, where z is a second residual stream, which begins as the embedding's output.

    If they are exchanged, z becomes the previous x. With `first`, that is added in place of z.
    """

    factor: float = 1.0
    swaps: bool = False
    first: Vector | None = None

    @property
    def reads_embedding(self) -> bool:
        return True

    def lower(self, build: Builder) -> None:
        build.add(op.AddStream, self.factor, self.swaps, self.first)


@frozen
class Output(Block):
    """logits = W norm(x).

    Without a weight there are none: it stands after an earlier stage of a model, see `ModelPlan.stage`.
    """

    norm: Norm | None
    weight: Linear | None  # E → V; the embedding's own tensor where the model ties them
    softcap: float | None = None  # logits l become softcap * tanh(l / softcap)
    tokens: Integers | None = None  # which token each logit is of, where there are not those of all; the others' are -inf
    given: Linear | None = None  # of norm(x): the feature `output`; None: norm(x) itself

    def lower(self, build: Builder) -> None:
        x, norm = build.x, self.norm
        if norm is not None and norm.weight_shape is not None:  # by groups of values
            x, norm = build.normalize(build.normalize(x, None), norm), None
        if self.weight is not None:
            build.add(op.ComputeLogits, x, norm, self.weight, self.softcap)
