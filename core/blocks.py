"""The vocabulary of layers that a plan is written in.

An architecture turns a file's metadata into a `ModelPlan`; a backend computes plans and never hears a model's name. Weights are
referred to by tensor name. Shape letters are those of docs/notation.md: E embedding, H query heads, G KV heads, D head size.

A token's residual stream x (E,) goes through the blocks in order: `Embedding` makes it, the blocks of every `Layer` add to it,
`Output` turns it into logits.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from attrs import field, fields, frozen

from augury.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Activation",
    "Attention",
    "Block",
    "Embedding",
    "FeedForward",
    "Layer",
    "Linear",
    "Mixer",
    "ModelPlan",
    "Norm",
    "Output",
    "Rope",
]


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

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors by name, and their shapes."""
        return {self.weight: (self.n_out, self.n_in)} | ({} if self.bias is None else {self.bias: (self.n_out,)})


@frozen
class Norm:
    """Root-mean-square norm: x / sqrt(mean(x^2) + eps) * weight, over the last axis of `size` values."""

    weight: str
    size: int
    eps: float

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensor by name, and its shape."""
        return {self.weight: (self.size,)}


@frozen(eq=False)
class Rope:
    """Rotary position embedding over the first `2 * len(frequencies)` values of a head; what follows them is left alone.

    Pair i at position p turns by the angle `p * frequencies[i]`; cos and sin are multiplied by `magnitude`. Linear, YaRN and
    llama-3 scaling are all of this form (see `augury.plugins.architectures.rope`), so backends know none of them.
    """

    frequencies: np.ndarray = field(repr=False)  # (D_rot / 2,) float64, radians per position
    magnitude: float = 1.0
    is_interleaved: bool = False  # pairs are (0,1)(2,3)… where true; (0,D/2)(1,D/2+1)… (NeoX) where false


@frozen
class Block:
    """A step of the computation: matrices, norms, and how they act together."""

    def tensors(self) -> tuple[Linear | Norm, ...]:
        """What it has of the model file: its matrices and norms, in the order of its fields."""
        parts = (getattr(self, each.name) for each in fields(type(self)))
        return tuple(part for part in parts if isinstance(part, Linear | Norm))

    def cached(self) -> Mapping[str, int]:
        """What it keeps per head and position: how many values, by the option of `ModelOptions` that gives their type."""
        return {}


@frozen
class Embedding(Block):
    """x = scale * W[token], W of shape (V, E)."""

    weight: str
    n_vocab: int
    n_embd: int
    scale: float = 1.0

    def tensors(self) -> tuple[Linear | Norm, ...]:
        """Its matrix, as a product with it would be."""
        return (Linear(self.weight, self.n_embd, self.n_vocab),)


@frozen
class Attention(Block):
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

    def cached(self) -> Mapping[str, int]:
        """Keys and values."""
        return {"cache_type_k": self.head_dim, "cache_type_v": self.value_dim}


@frozen
class FeedForward(Block):
    """x += post_norm(down(activation(gate(n)) * up(n))) with n = norm(x)."""

    norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation
    post_norm: Norm | None = None


@frozen
class Output(Block):
    """logits = W norm(x)."""

    norm: Norm
    weight: Linear  # E → V; the embedding's own tensor where the model ties them


Mixer = Attention
"""What mixes a sequence's tokens in a layer."""


@frozen
class Layer:
    """x += mixer(x), then x += feed_forward(x); in parallel, x += mixer(x) + feed_forward(x)."""

    mixer: Mixer
    feed_forward: FeedForward | None = None
    is_parallel: bool = False

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, in order."""
        return (self.mixer,) if self.feed_forward is None else (self.mixer, self.feed_forward)


@frozen
class ModelPlan:
    """A whole model, in the order in which it is computed."""

    architecture: str
    embedding: Embedding
    layers: tuple[Layer, ...]
    output: Output
    n_ctx_train: int  # positions the model was trained for

    @property
    def n_vocab(self) -> int:
        """V, how many logits a row has."""
        return self.output.weight.n_out

    @property
    def features(self) -> dict[str, int]:
        """What a backend can tell of every token beside logits, and how wide; see `Model.features`."""
        n_embd = self.embedding.n_embd
        return {f"layer.{i}": n_embd for i in range(len(self.layers))} | {"output": n_embd}

    def blocks(self) -> Iterator[Block]:
        """All blocks in order."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.blocks
        yield self.output

    def check_blocks(self, known: Container[type[Block]]) -> None:
        """Refuse a plan with blocks that a backend does not compute.

        Raises:
            UnsupportedError: There is one.
        """
        if odd := [type(block).__name__ for block in self.blocks() if type(block) not in known]:
            raise UnsupportedError(
                f"{self.architecture} models have a block {odd[0]}, which this backend does not compute; choose another one"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the file that it uses by name, and their shapes."""
        parts = (part for block in self.blocks() for part in block.tensors())
        return {name: shape for part in parts for name, shape in part.shapes.items()}
