"""The vocabulary of layers that a plan is written in.

An architecture turns a file's metadata into a `ModelPlan`; a backend computes plans and never hears a model's name. Weights are
referred to by tensor name. Shape letters are those of docs/notation.md: E embedding, H query heads, G KV heads, D head size.

A token's residual stream x (E,) goes through the blocks in order: `Embedding` makes it, every `Attention` and `FeedForward`
adds to it, `Output` turns it into logits.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Activation", "Attention", "Block", "Embedding", "FeedForward", "Linear", "ModelPlan", "Norm", "Output", "Rope"]


class Activation(Enum):
    """What a gated feed-forward applies to its gate before the product with `up`."""

    SILU = "silu"  # g * sigmoid(g)
    GELU = "gelu"  # tanh approximation, as ggml and the models trained with it use


@frozen
class Linear:
    """y = scale * (W x) + bias_scale * b, with W of shape (n_out, n_in) as the file stores it.

    Files may carry a scale per weight (`blk.0.attn_q.scale`); whether it covers the bias differs between blocks.
    """

    weight: str
    n_in: int
    n_out: int
    bias: str | None = None
    scale: float = 1.0
    bias_scale: float = 1.0


@frozen
class Norm:
    """Root-mean-square norm: x / sqrt(mean(x^2) + eps) * weight, over the last axis of `size` values."""

    weight: str
    size: int
    eps: float


@frozen(eq=False)
class Rope:
    """Rotary position embedding over the first `2 * len(frequencies)` values of a head; what is behind them is left alone.

    Pair i at position p turns by the angle `p * frequencies[i]`; cos and sin are multiplied by `magnitude`. Linear, YaRN and
    llama-3 scaling are all of this form (see `augury.plugins.architectures.rope`), so backends know none of them.
    """

    frequencies: np.ndarray = field(repr=False)  # (D_rot / 2,) float64, radians per position
    magnitude: float = 1.0
    is_interleaved: bool = False  # pairs are (0,1)(2,3)… where true; (0,D/2)(1,D/2+1)… (NeoX) where false


@frozen
class Embedding:
    """x = scale * W[token], W of shape (V, E)."""

    weight: str
    n_vocab: int
    n_embd: int
    scale: float = 1.0


@frozen
class Attention:
    """x += post_norm(o(softmax(scale * q k^T) v)), causal, over grouped heads, with q, k, v computed from norm(x).

    Query head h reads KV head h // (H / G). With `window` w a token at position p sees positions p-w+1 … p.
    """

    norm: Norm
    q: Linear  # E → H * D
    k: Linear  # E → G * D
    v: Linear  # E → G * D_v
    o: Linear  # H * D_v → E
    n_heads: int
    n_kv_heads: int
    head_dim: int  # D, of queries and keys
    value_dim: int  # D_v
    scale: float
    rope: Rope
    q_norm: Norm | None = None  # per head, before rope
    k_norm: Norm | None = None
    post_norm: Norm | None = None
    window: int | None = None


@frozen
class FeedForward:
    """x += post_norm(down(activation(gate(n)) * up(n))) with n = norm(x)."""

    norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation
    post_norm: Norm | None = None


@frozen
class Output:
    """logits = W norm(x)."""

    norm: Norm
    weight: Linear  # E → V; the embedding's own tensor where the model ties them


Block = Embedding | Attention | FeedForward | Output
"""What a plan consists of."""


@frozen
class ModelPlan:
    """A whole model, in the order in which it is computed: one `Embedding`, pairs of layers, one `Output`."""

    architecture: str
    blocks: tuple[Block, ...]
    n_ctx_train: int  # positions the model was trained for

    @property
    def embedding(self) -> Embedding:
        """The first block."""
        block = self.blocks[0]
        assert isinstance(block, Embedding)
        return block

    @property
    def output(self) -> Output:
        """The last block."""
        block = self.blocks[-1]
        assert isinstance(block, Output)
        return block

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention layers in order; each has KV cache layers of its own."""
        return tuple(block for block in self.blocks if isinstance(block, Attention))

    def layers(self, n_layers: int | None = None) -> tuple[Block, ...]:
        """The blocks of the first `n_layers` layers, or of all; a layer is an `Attention` and what follows it."""
        starts = [i for i, block in enumerate(self.blocks) if isinstance(block, Attention)]
        end = -1 if n_layers is None or n_layers == len(starts) else starts[n_layers]
        return self.blocks[1:end]

    @property
    def n_vocab(self) -> int:
        """V, how many logits a row has."""
        return self.output.weight.n_out
