"""Mixers that keep a state per sequence.

What `LinearRecurrence` describes they have in common: a matrix S per head, which decays, gets the product of a key and a value
added with each token, and is read by a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.parts import Block, SequenceState

if TYPE_CHECKING:
    from augury.blocks.parts import Convolution, Linear, Norm, Vector

__all__ = [
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "LightningAttention",
    "LinearRecurrence",
    "Mamba",
    "Mamba2",
    "ShortConvolution",
]


@frozen
class ShortConvolution(Block):
    """x += o(c * conv(b * v)), element by element, with b, c and v computed from norm(x)."""

    norm: Norm
    inputs: Linear  # E → 3 C: b, c, v
    conv: Convolution
    o: Linear  # C → E

    def states(self) -> tuple[SequenceState, ...]:
        """The convolution's inputs."""
        return (self.conv.state,)


@frozen
class LinearRecurrence:
    """S = decay * S + key (beta * value)^T of each head, y = S^T query; with the delta rule, of value - (decay * S)^T key.

    Of the parts of S (K, V) that belong to one of a value's channels the decay may differ: there it is exp(a * beta), with an a
    for each number of S, and every channel has a beta. Or it differs between the rows of S, of which each has a decay.
    """

    n_heads: int  # H, each with a value, a decay and a beta
    n_key_heads: int  # G, whose queries and keys H / G heads share
    key_dim: int  # K
    value_dim: int  # V
    has_delta: bool
    is_tiled: bool = False  # head h has the key h % G; otherwise h // (H / G)
    is_by_channel: bool = False  # decays differ within a head, which is the only one
    is_by_key: bool = False  # decays differ within a head, K of each

    @property
    def state(self) -> SequenceState:
        """(H, K, V); fed are keys, values, betas, and decays that are not made of these."""
        n_steps = self.value_dim if self.is_by_channel else 1 + (self.key_dim if self.is_by_key else 1)
        n_fed = self.n_key_heads * self.key_dim + self.n_heads * (self.value_dim + n_steps)
        return SequenceState((self.n_heads, self.key_dim, self.value_dim), n_fed)


@frozen
class GatedDeltaNet(Block):
    """x += o(norm(y) * silu(gate(n))) with n = norm(x), and y what the recurrence yields, by head.

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

    def states(self) -> tuple[SequenceState, ...]:
        """The convolution's inputs, and the matrices of the heads."""
        return (self.conv.state, self.recurrence.state)


@frozen
class KimiDeltaAttention(Block):
    """x += o(norm(y) * sigmoid(gate(n))) with n = norm(x), and y what the recurrence yields, by head.

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

    def states(self) -> tuple[SequenceState, ...]:
        """The convolutions' inputs, and the matrices of the heads."""
        return (self.q_conv.state, self.k_conv.state, self.v_conv.state, self.recurrence.state)


@frozen
class Mamba2(Block):
    """x += o(out_norm((y + d * value) * silu(gate))), y what the recurrence yields, by head.

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

    def states(self) -> tuple[SequenceState, ...]:
        """The convolution's inputs, and the matrices of the heads."""
        return (self.conv.state, self.recurrence.state)


@frozen
class Mamba(Block):
    """x += post_norm(o((y + d * v) * silu(gate(n)))) with n = norm(x), v = silu(conv(value(n))).

    y is what the recurrence yields. Keys and queries are key(v) and query(v), beta = softplus(dt(t(v))), and
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
    post_norm: Norm | None = None  # of what is added

    def states(self) -> tuple[SequenceState, ...]:
        """The convolution's inputs, and the matrices of the heads."""
        return (self.conv.state, self.recurrence.state)


@frozen
class LightningAttention(Block):
    """x += o(out_norm(y) * sigmoid(gate(n))) with n = norm(x), y what the recurrence yields, and decays that never change.

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

    def states(self) -> tuple[SequenceState, ...]:
        """The matrices of the heads."""
        return (self.recurrence.state,)
