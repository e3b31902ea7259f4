"""What the files of decoder-only transformers have in common: sizes under the same keys, tensors under the same names.

A family whose file says `foo.block_count`, `blk.0.attn_q.weight` and so on builds its plan from these blocks and states only
what is its own. Every tensor's shape is checked against the sizes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from augury.blocks import Activation, Attention, Embedding, FeedForward, Linear, ModelPlan, Norm, Output, Rope
from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import TensorType
from augury.plugins.architectures import rope
from augury.plugins.architectures.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from augury.blocks import Convolution, Layer
    from augury.files.gguf import ModelFile

_MAX_POSITIONS = (1 << 31) - 1  # what int32 positions can hold
_LEAST = 0.001  # of the divisors in rope scaling: no model is near, and angles stay finite


class Decoder:
    """The sizes of a transformer, read and checked, and its blocks by layer.

    Attributes:
        n_layers: Layers of attention and feed-forward.
        n_embd: E, values of a token's residual stream.
        n_heads: H, query heads by layer.
        n_kv_heads: G, key and value heads by layer; each serves H / G query heads.
        head_dim: D, values of a query or key.
        value_dim: D_v, values of a value.
        n_rot: Values of a query or key that rope turns, from the first on.
    """

    def __init__(self, file: ModelFile, *, has_other_mixers: bool = False, may_have_experts: bool = False) -> None:
        """Read a file; with other mixers than attention, layers may have no heads."""
        self.file = file
        least = 0 if has_other_mixers else 1
        self.keys = keys = Keys(file)
        if keys.count("expert_count", 0, least=0) and not may_have_experts:
            raise UnsupportedError(
                f"{file.path}: {keys.full('expert_count')!r} is {keys.count('expert_count')}: mixtures of experts are not "
                f"supported; use a dense model",
            )
        self.n_layers = keys.count("block_count")
        if self.n_layers > len(file.tensors):
            keys.fail("block_count", self.n_layers, f"at most {len(file.tensors)}, the number of tensors in the file")
        self.n_ctx_train = keys.count("context_length", most=_MAX_POSITIONS)
        self.n_embd = keys.count("embedding_length")
        self.n_ff = keys.counts("feed_forward_length", self.n_layers)
        self.n_heads = keys.counts("attention.head_count", self.n_layers, least=least)
        self.n_kv_heads = keys.counts("attention.head_count_kv", self.n_layers, self.n_heads, least=least)
        for n_heads, n_kv_heads in zip(self.n_heads, self.n_kv_heads, strict=True):
            if n_kv_heads and n_heads % n_kv_heads:
                keys.fail("attention.head_count_kv", n_kv_heads, f"a divisor of the {n_heads} heads")
        self.head_dim = self._head_dim("attention.key_length")
        self.value_dim = self._head_dim("attention.value_length")
        self.n_rot = keys.count("rope.dimension_count", self.head_dim, least=2, most=self.head_dim)
        if self.n_rot % 2:
            keys.fail("rope.dimension_count", self.n_rot, "an even number")
        self.eps = keys.positive("attention.layer_norm_rms_epsilon")
        self.n_vocab = self._n_vocab()

    def rope(
        self,
        *,
        base_key: str = "rope.freq_base",
        is_scaled: bool = True,
        is_interleaved: bool = False,
        factors: np.ndarray | None = None,
    ) -> Rope:
        """Rotary positions, with the scaling that the file states.

        Args:
            base_key: Where the base stands; 10,000 where it stands nowhere.
            is_scaled: Whether the file's scaling applies to these layers.
            is_interleaved: How the family pairs values (see `Rope`).
            factors: Divisors of the frequencies, (n_rot / 2,), where the file has such a tensor.

        Source: the keys `rope.scaling.*` as llama.cpp reads them; 0 stands for "not set".
        """
        keys = self.keys
        base = keys.number(base_key, 10000.0, least=1.001)
        frequencies = rope.plain(self.n_rot, base, factors)
        kind = keys.text("rope.scaling.type", "linear")
        if not is_scaled or kind == "none":
            return Rope(frequencies, is_interleaved=is_interleaved)
        if kind not in ("linear", "yarn"):
            raise UnsupportedError(
                f"{self.file.path}: {keys.full('rope.scaling.type')!r} is {kind!r}; supported are none, linear and yarn",
            )
        factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
        if factor < _LEAST:
            keys.number("rope.scaling.factor", factor, least=_LEAST)
        magnitude = keys.number("rope.scaling.attn_factor", 0.0) or 1.0
        if kind == "linear":
            return Rope(rope.linear(frequencies, factor), magnitude, is_interleaved)
        strength = self.file.get(keys.full("rope.scaling.yarn_ext_factor"), float, -1.0)
        yarn = rope.Yarn(
            factor=factor,
            n_ctx_original=keys.count("rope.scaling.original_context_length", 0, least=0, most=_MAX_POSITIONS)
            or self.n_ctx_train,
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, least=_LEAST),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, least=_LEAST),
            strength=strength if 0.0 <= strength <= 1.0 else 1.0,  # negative where not set
            log_multiplier=keys.number("rope.scaling.yarn_log_multiplier", 0.0),
        )
        return Rope(yarn.frequencies(frequencies, base), magnitude * yarn.magnitude, is_interleaved)

    def plan(self, layers: Iterable[Layer], *, embedding_scale: float = 1.0, output_norm: str = "output_norm") -> ModelPlan:
        """The model of these layers, from the embedding to the output, which norms with `output_norm`.weight."""
        embedding = Embedding("token_embd.weight", self.n_vocab, self.n_embd, embedding_scale)
        return ModelPlan(self.file.architecture, embedding, tuple(layers), self.output(output_norm), self.n_ctx_train)

    def attention(
        self,
        layer: int,
        rope: Rope,
        *,
        scale: float | None = None,
        has_head_norms: bool = False,
        has_post_norm: bool = False,
        window: int | None = None,
    ) -> Attention:
        """The attention of a layer; q, k, v and o have biases where the file has them.

        Args:
            layer: From 0.
            rope: Of its queries and keys.
            scale: Of q · k, by default 1 / sqrt(D).
            has_head_norms: Whether queries and keys are normed per head.
            has_post_norm: Whether what is added to the residual stream is normed.
            window: How many positions a token sees, itself included; all where None.
        """
        n_heads, n_kv_heads = self.n_heads[layer], self.n_kv_heads[layer]
        at = f"blk.{layer}"
        return Attention(
            norm=self.norm(f"{at}.attn_norm"),
            q=self.linear(f"{at}.attn_q", self.n_embd, n_heads * self.head_dim),
            k=self.linear(f"{at}.attn_k", self.n_embd, n_kv_heads * self.head_dim),
            v=self.linear(f"{at}.attn_v", self.n_embd, n_kv_heads * self.value_dim),
            o=self.linear(f"{at}.attn_output", n_heads * self.value_dim, self.n_embd),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            scale=1.0 / math.sqrt(self.head_dim) if scale is None else scale,
            rope=rope,
            q_norm=self.norm(f"{at}.attn_q_norm", self.head_dim) if has_head_norms else None,
            k_norm=self.norm(f"{at}.attn_k_norm", self.head_dim) if has_head_norms else None,
            post_norm=self.norm(f"{at}.post_attention_norm") if has_post_norm else None,
            window=window,
        )

    def feed_forward(
        self,
        layer: int,
        activation: Activation = Activation.SILU,
        *,
        has_post_norm: bool = False,
        has_scales: bool = True,
    ) -> FeedForward:
        """The feed-forward of a layer.

        Args:
            layer: From 0.
            activation: Of its gate.
            has_post_norm: Whether what is added to the residual stream is normed.
            has_scales: Whether the family takes note of scale tensors here; llama.cpp lets some families ignore them.
        """
        at, n_ff = f"blk.{layer}", self.n_ff[layer]

        def linear(name: str, n_in: int, n_out: int) -> Linear:
            return self.linear(f"{at}.{name}", n_in, n_out, has_scale=has_scales, scales_bias=True)

        return FeedForward(
            norm=self.norm(f"{at}.ffn_norm"),
            gate=linear("ffn_gate", self.n_embd, n_ff),
            up=linear("ffn_up", self.n_embd, n_ff),
            down=linear("ffn_down", n_ff, self.n_embd),
            activation=activation,
            post_norm=self.norm(f"{at}.post_ffw_norm") if has_post_norm else None,
        )

    def output(self, norm: str) -> Output:
        """The last block; the embedding's weights serve where the file has none of its own."""
        name = "output" if "output.weight" in self.file.tensors else "token_embd"
        return Output(self.norm(norm), self.linear(name, self.n_embd, self.n_vocab))

    def norm(self, name: str, size: int | None = None) -> Norm:
        """The norm with the weights `name`.weight, over E values unless `size` says otherwise."""
        size = self.n_embd if size is None else size
        self.file.tensor(f"{name}.weight", (size,))
        return Norm(f"{name}.weight", size, self.eps)

    def linear(self, name: str, n_in: int, n_out: int, *, has_scale: bool = True, scales_bias: bool = False) -> Linear:
        """The product with `name`.weight, with `name`.bias and `name`.scale where the file has them."""
        self.file.tensor(f"{name}.weight", (n_out, n_in))
        bias = f"{name}.bias"
        if bias in self.file.tensors:
            self.file.tensor(bias, (n_out,))
        scale = 1.0
        if has_scale and f"{name}.scale" in self.file.tensors:
            scale = float(self.values(f"{name}.scale", 1)[0])
        return Linear(
            weight=f"{name}.weight",
            n_in=n_in,
            n_out=n_out,
            bias=bias if bias in self.file.tensors else None,
            scale=scale,
            bias_scale=scale if scales_bias else 1.0,
        )

    def check(self, part: Convolution) -> None:
        """See that the file has a part's tensors, in its shapes."""
        for name, shape in part.shapes.items():
            self.file.tensor(name, shape)

    def values(self, name: str, n: int) -> np.ndarray:
        """The numbers (n,) float64 of a small tensor that belongs in the plan itself."""
        tensor = self.file.tensor(name, (n,))
        if tensor.type is not TensorType.F32:
            raise UnsupportedError(f"{self.file.path}: tensor {name!r} is stored as {tensor.type.name}, expected F32")
        values: np.ndarray = tensor.data.view(np.float32).astype(np.float64)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.file.path}: tensor {name!r} holds numbers that are not finite")
        return values

    def _head_dim(self, key: str) -> int:
        if key in self.keys:
            return self.keys.count(key)
        n_heads = max(self.n_heads[0], 1)
        if self.n_embd % n_heads:
            self.keys.fail("embedding_length", self.n_embd, f"a multiple of the {n_heads} heads")
        return self.n_embd // n_heads

    def _n_vocab(self) -> int:
        """V by the embedding: the key `vocab_size` is absent from many files and wrong in some."""
        shape = self.file.tensor("token_embd.weight").shape
        if len(shape) != 2 or shape[1] != self.n_embd:
            raise ModelFileError(
                f"{self.file.path}: tensor 'token_embd.weight' has shape {shape}, expected (vocabulary, {self.n_embd})",
            )
        n_tokens = len(self.file.get("tokenizer.ggml.tokens", list[str], []))
        if n_tokens > shape[0]:
            raise ModelFileError(
                f"{self.file.path}: metadata key 'tokenizer.ggml.tokens' has {n_tokens} tokens, expected at most the "
                f"{shape[0]} that 'token_embd.weight' has rows for",
            )
        return shape[0]
