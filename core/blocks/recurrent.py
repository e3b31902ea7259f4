"""Mixers that keep a state per sequence.

All but short convolutions have a `LinearRecurrence`: a matrix S per head, which decays, gets the product of a key and a value
added with each token, and is read by a query.
"""

from __future__ import annotations

import math

from attrs import frozen

from augury.blocks.block import Block
from augury.lowering.builder import Builder
from augury.lowering.operations import Activate, Constant, Convolve, Decay, DecayByKey, Gate, Multiply, Recur, ScaleToLength
from augury.lowering.parts import Activation, Convolution, GateKind, Linear, LinearRecurrence, Norm, Vector


@frozen
class ShortConvolution(Block):
    """x += o(c * conv(b * v)), element by element, with b, c and v computed from norm(x)."""

    norm: Norm
    inputs: Linear  # E → 3 C: b, c, v
    conv: Convolution
    o: Linear  # C → E

    def lower(self, build: Builder) -> None:
        (inputs,) = build.add(Multiply, build.normalize(build.x, self.norm), (self.inputs,), "convolution's inputs")
        b, c, v = inputs.split(*[self.conv.n_channels] * 3)
        build.add_product(build.add(Convolve, (v,), (self.conv,), (0,), before=b, after=c), self.o, "convolution's output")


@frozen
class GatedDeltaNet(Block):
    """x += o(norm(y) * silu(gate(n))) with n = norm(x), and y the recurrence's output, by head.

    Queries, keys and values are silu(conv(inputs(n))); queries and keys are divided by their lengths, queries by sqrt(K).
    decay = exp(a * softplus(alpha(n) + dt)), beta = sigmoid(beta(n)). With `has_sigmoid`, gates go through it alone.
    """

    norm: Norm | None
    inputs: Linear  # E → 2 G K + H V: queries, keys, values
    conv: Convolution
    gate: Linear  # E → H V
    alpha: Linear  # E → H
    beta: Linear  # E → H
    dt: Vector  # (H,)
    a: Vector  # (H,)
    recurrence: LinearRecurrence
    eps: float  # is added to squares of lengths
    out_norm: Norm  # of V values
    o: Linear  # H V → E
    has_sigmoid: bool = False

    def lower(self, build: Builder) -> None:
        heads, linears = self.recurrence, (self.inputs, self.gate, self.alpha, self.beta)
        n = build.normalize(build.x, self.norm)
        inputs, gates, alpha, beta = build.add(Multiply, n, linears, "queries, keys, values, gates")
        n_keys, n_values = heads.n_key_heads * heads.key_dim, heads.n_heads * heads.value_dim
        both, values = build.add(Convolve, (inputs,), (self.conv,), (0,), has_silu=True).split(2 * n_keys, n_values)
        build.add(ScaleToLength, both, heads.key_dim, self.eps, heads.n_key_heads, 1.0 / math.sqrt(heads.key_dim))
        decays, betas = build.add(Decay, alpha, beta, dt=self.dt, a=self.a)
        queries, keys = both.split(n_keys, n_keys)
        y = build.add(Recur, heads, 1, queries, keys, values, decays, betas)
        gate = GateKind.SIGMOID if self.has_sigmoid else Activation.SILU
        build.add_product(build.add(Gate, y, gates, gate, self.out_norm), self.o, "recurrence's output")


@frozen
class KimiDeltaAttention(Block):
    """x += o(norm(y) * sigmoid(gate(n))) with n = norm(x), and y the recurrence's output, by head.

    Queries, keys and values are silu(q_conv(q(n))) and so on; queries and keys are divided by their lengths, queries by
    sqrt(K). decay = exp(a * softplus(decay(n))) by key channel, or exp(floor * sigmoid(a * decay(n))) where there is a floor;
    beta = sigmoid(beta(n)). Decays and gates may be made of `decay_down(n)` and `gate_down(n)` in place of n.

    Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture", section 3.
    """

    norm: Norm
    q: Linear  # E → H K
    k: Linear  # E → H K
    v: Linear  # E → H V
    q_conv: Convolution
    k_conv: Convolution
    v_conv: Convolution
    decay: Linear  # → H K
    a: Vector  # (H,)
    beta: Linear  # E → H
    gate: Linear  # → H V
    recurrence: LinearRecurrence
    eps: float  # is added to squares of lengths
    out_norm: Norm  # of V values
    o: Linear  # H V → E
    decay_down: Linear | None = None
    gate_down: Linear | None = None
    floor: float | None = None

    def lower(self, build: Builder) -> None:
        heads, convs = self.recurrence, (self.q_conv, self.k_conv, self.v_conv)
        linears = (self.beta, self.decay_down or self.decay, self.gate_down or self.gate, self.q, self.k, self.v)
        n = build.normalize(build.x, self.norm)
        beta, times, gates, *inputs = build.add(Multiply, n, linears, "queries, keys, values")
        if self.decay_down is not None:
            (times,) = build.add(Multiply, times, (self.decay,), "decays")
        if self.gate_down is not None:
            (gates,) = build.add(Multiply, gates, (self.gate,), "gates")
        both, values = build.add(Convolve, tuple(inputs), convs, (0, 1, 2), has_silu=True).split(2 * self.q.n_out, self.v.n_out)
        build.add(ScaleToLength, both, heads.key_dim, self.eps, heads.n_heads, 1.0 / math.sqrt(heads.key_dim))
        queries, keys = both.split(self.q.n_out, self.k.n_out)
        decays, betas = build.add(DecayByKey, times, beta, keys, self.a, heads.key_dim, self.floor)
        y = build.add(Recur, heads, 3, queries, keys, values, decays, betas)
        build.add_product(build.add(Gate, y, gates, GateKind.SIGMOID, self.out_norm), self.o, "recurrence's output")


@frozen
class Mamba2(Block):
    """x += o(out_norm((y + d * value) * silu(gate))), y the recurrence's output, by head.

    Of inputs(norm(x)), values, keys and queries are silu(conv(v, k, q)), beta = softplus(t + dt), and decay = exp(a * beta).
    """

    norm: Norm
    inputs: Linear  # E → 2 H V + 2 G K + H: gate; v, k, q; t
    conv: Convolution
    dt: Vector  # (H,)
    a: Vector  # (H,)
    d: Vector  # (H,)
    recurrence: LinearRecurrence
    o: Linear  # H V → E
    out_norm: Norm | None = None  # over groups of heads

    def lower(self, build: Builder) -> None:
        heads = self.recurrence
        n_values, n_keys = heads.n_heads * heads.value_dim, heads.n_key_heads * heads.key_dim
        (inputs,) = build.add(Multiply, build.normalize(build.x, self.norm), (self.inputs,), "recurrence's inputs")
        gates, x, t = inputs.split(n_values, self.conv.n_channels, heads.n_heads)
        values, keys, queries = build.add(Convolve, (x,), (self.conv,), (0,), has_silu=True).split(n_values, n_keys, n_keys)
        decays, betas = build.add(Decay, t, dt=self.dt, a=self.a)
        y = build.add(Recur, heads, 1, queries, keys, values, decays, betas)
        gated = build.add(Gate, y, gates, Activation.SILU, self.out_norm, values=values, skip=self.d, is_gated_first=True)
        build.add_product(gated, self.o, "recurrence's output")


@frozen
class Mamba(Block):
    """x += post_norm(o((y + d * v) * silu(gate(n)))) with n = norm(x), v = silu(conv(value(n))).

    y is the recurrence's output. Keys and queries are key(v) and query(v), beta = softplus(dt(t(v))), and
    decay = exp(a * beta), by channel or by head.
    """

    norm: Norm
    value: Linear  # E → H V
    gate: Linear  # E → H V
    conv: Convolution
    t: Linear  # H V → R
    key: Linear  # H V → K
    query: Linear  # H V → K
    dt: Linear  # R → H V where decays are by channel, otherwise H
    a: Vector  # (H V, K), or (H,)
    d: Vector  # (H V,), or (H,)
    recurrence: LinearRecurrence
    o: Linear  # H V → E
    t_norm: Norm | None = None
    key_norm: Norm | None = None
    query_norm: Norm | None = None
    post_norm: Norm | None = None  # of the update

    def lower(self, build: Builder) -> None:
        heads, is_by_channel = self.recurrence, self.recurrence.is_by_channel
        n = build.normalize(build.x, self.norm)
        inputs, gates = build.add(Multiply, n, (self.value, self.gate), "recurrence's inputs")
        values = build.add(Convolve, (inputs,), (self.conv,), (0,), has_silu=True)
        made = build.add(Multiply, values, (self.t, self.key, self.query), "steps, keys, queries")
        norms = (self.t_norm, self.key_norm, self.query_norm)
        t, keys, queries = (build.normalize(each, norm) for each, norm in zip(made, norms, strict=True))
        (steps,) = build.add(Multiply, t, (self.dt,), "steps")
        *decays, betas = build.add(Decay, steps, a=None if is_by_channel else self.a)
        of_head, of_channels = decays[0] if decays else None, self.a if is_by_channel else None
        y = build.add(Recur, heads, 1, queries, keys, values, of_head, betas, of_channels)
        gated = build.add(Gate, y, gates, Activation.SILU, values=values, skip=self.d)
        build.add_product(gated, self.o, "recurrence's output", self.post_norm)


@frozen
class LightningAttention(Block):
    """x += o(out_norm(y) * sigmoid(gate(n))) with n = norm(x), y the recurrence's output, and constant decays.

    Queries, keys and values are silu(q(n)), silu(k(n)) and silu(v(n)); betas are 1.
    """

    norm: Norm | None
    q: Linear  # E → G K
    k: Linear  # E → G K
    v: Linear  # E → H V
    gate: Linear  # E → H V
    decays: tuple[float, ...]  # by head
    recurrence: LinearRecurrence
    out_norm: Norm  # over all heads
    o: Linear  # H V → E

    def lower(self, build: Builder) -> None:
        n, linears = build.normalize(build.x, self.norm), (self.q, self.k, self.v, self.gate)
        *made, gates = build.add(Multiply, n, linears, "queries, keys, values, gates")
        queries, keys, values = (build.add(Activate, each, Activation.SILU) for each in made)
        n_heads = self.recurrence.n_heads
        decays, betas = build.add(Constant, (*self.decays, *[1.0] * n_heads)).split(n_heads, n_heads)
        y = build.add(Recur, self.recurrence, 0, queries, keys, values, decays, betas)
        build.add_product(build.add(Gate, y, gates, GateKind.SIGMOID, self.out_norm), self.o, "recurrence's output")
