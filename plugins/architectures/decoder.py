"""The common parts of decoder-only transformers' files: sizes under the same keys, tensors under the same names.

A family whose file says `foo.block_count`, `blk.0.attn_q.weight` and so on builds its plan from these blocks and states only
its own differences. Every tensor's shape is checked against the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import attrs
import numpy as np

from augury import blocks
from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import ModelFile
from augury.plugins.architectures import rope
from augury.plugins.architectures.tensors import Tensors

_EPS_KEYS = {blocks.NormKind.RMS: "attention.layer_norm_rms_epsilon", blocks.NormKind.LAYER: "attention.layer_norm_epsilon"}

_ATTENTION_NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
_FEED_FORWARD_NAMES = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}


class Decoder(Tensors):
    """The sizes of a transformer, read and checked, and its blocks by layer.

    Methods that make a block share arguments: `norm` is the norm of its input, or the name of its tensor; `has_post_norm` says
    whether its output is normed before it is added to the residual stream, `has_biases`, `has_scales` and the like whether the
    family takes note of such tensors, as llama.cpp does not in all; `factor` is its output's, `**others` are further fields.

    Attributes:
        n_stored: Layers of the file.
        n_layers: Layers, without layers that predict further tokens.
        n_embd: E, values of a token's residual stream.
        n_heads: H, query heads by layer.
        n_kv_heads: G, key and value heads by layer; each serves H / G query heads.
    """

    def __init__(
        self,
        file: ModelFile,
        *,
        norm: blocks.NormKind = blocks.NormKind.RMS,
        least: int = 1,
        least_eps: float = 0.0,
        may_have_experts: bool = False,
        embedding: str = "token_embd",
        is_causal: bool = True,
        architecture: str | None = None,
    ) -> None:
        """Read the sizes.

        Args:
            file: A file of the family.
            norm: The kind of its norms.
            least: The smallest number of heads and of a feed-forward's values; 0 if the family leaves blocks out.
            least_eps: The epsilon if the file does not state one, or states 0; if this is 0, the file has to.
            may_have_experts: Whether a number of experts means nothing to the family, or its page takes care of them.
            embedding: The name of the embedding's tensor.
            is_causal: Whether a file that says that tokens see later ones is refused.
            architecture: The architecture of another model in the file, whose keys and tensors begin with it.
        """
        super().__init__(file, architecture)
        keys = self.keys
        if (n := keys.count("expert_count", 0, least=0)) and not may_have_experts:
            what = "mixtures of experts are not supported; use a dense model"
            raise UnsupportedError(f"{file.path}: {keys.full('expert_count')!r} is {n}: {what}")
        if is_causal and not keys.flag("attention.causal", default=True):
            what = "tokens that see later ones are not supported"
            raise UnsupportedError(f"{file.path}: {keys.full('attention.causal')!r} is false: {what}")
        self.n_stored = n_stored = keys.count("block_count")
        if n_stored > len(file.tensors):
            keys.fail("block_count", n_stored, f"at most {len(file.tensors)}, the number of tensors in the file")
        self.n_layers = n_stored - keys.n_mtp(n_stored - 1)
        self.has_mtp = f"blk.{self.n_layers}.nextn.eh_proj.weight" in file.tensors  # and not only states them
        self.n_ctx_train = keys.count("context_length", most=rope.MAX_POSITIONS)
        self.n_embd = keys.count("embedding_length")
        self._least = least
        self.n_heads = keys.counts("attention.head_count", n_stored, least=least)
        self.n_kv_heads = keys.counts("attention.head_count_kv", n_stored, self.n_heads, least=least)
        for n_heads, n_kv_heads in zip(self.n_heads, self.n_kv_heads, strict=True):
            if n_kv_heads and n_heads % n_kv_heads:
                keys.fail("attention.head_count_kv", n_kv_heads, f"a divisor of the {n_heads} heads")
        self.norm_kind = norm
        key = _EPS_KEYS[norm]
        self.eps = (keys.number(key, 0.0) or least_eps) if least_eps else keys.positive(key)
        self.embedding = embedding
        self.n_vocab = self._n_vocab()

    def rope(self, **arguments: Any) -> blocks.Rope:
        """Rotary positions, with the scaling that the file states; see `rope.of_file`."""
        return rope.of_file(self, **arguments)

    def windows(
        self,
        period: int | None,
        *,
        default: int = 0,
        is_required: bool = False,
        is_first: bool = False,
        has_mtp: bool = False,
    ) -> tuple[int | None, ...]:
        """By layer how many positions a token sees; all where None.

        Args:
            period: One layer in so many sees everything, where the file does not say otherwise; None: the file has to say,
                layer by layer.
            default: The window where the file states none; 0: there is none then.
            is_required: Whether the file has to state it.
            is_first: Whether it is the first of them, not the last.
            has_mtp: Whether layers that predict further tokens follow.
        """
        keys, key = self.keys, "attention.sliding_window"
        window = keys.count(key, None if is_required else default, least=0) or None
        if window is None:
            return (None,) * (self.n_stored if has_mtp else self.n_layers)
        flags = self.flags(f"{key}_pattern", period, is_first=is_first, has_mtp=has_mtp)
        return tuple(window if is_local else None for is_local in flags)

    def flags(self, key: str, period: int | None, *, is_first: bool = False, has_mtp: bool = False) -> list[bool]:
        """Truth values by layer: as the file's array says, else true except for the last, or first, of every n.

        With `has_mtp` those of layers that predict further tokens follow, false where an array says nothing of them.
        """
        n = self.n_stored if has_mtp else self.n_layers
        keys = self.keys
        array = self.file.metadata.get(keys.full(key))
        if isinstance(array, np.ndarray):
            if len(array.shape) != 1 or array.size < self.n_layers or array.dtype.kind not in "iub":
                keys.fail(key, f"an array of {array.size} {array.dtype}", f"{self.n_layers} truth values, one per layer")
            return [layer < array.size and bool(array[layer]) for layer in range(n)]
        period = keys.count(key, period, least=0)
        odd = 0 if is_first else period - 1
        return [period == 0 or layer % period != odd for layer in range(n)]

    def plan(
        self,
        layers: Iterable[blocks.Layer],
        *,
        output: blocks.Output | None = None,
        mtp: Callable[[int], blocks.Layer] | None = None,
        mtp_hidden: Literal["output", "layer"] = "output",
        mtp_output: Callable[[str, blocks.Output], blocks.Output] = lambda _, output: output,
        **embedding: Any,
    ) -> blocks.ModelPlan:
        """The model of these layers, from the embedding to the output.

        Args:
            layers: In order.
            output: The last block; None: that of `output()`.
            mtp: Makes a layer that predicts further tokens, by its number; None: the family does without them.
            mtp_hidden: The feature that these layers read, see `MtpLayer`.
            mtp_output: Makes the output of such a layer, by its tensors' prefix, of the model's with its own norm and weights.
            **embedding: Further fields of `Embedding`, such as `scale`.
        """
        first = blocks.Embedding(f"{self.embedding}.weight", self.n_vocab, self.n_embd, **embedding)
        plan = blocks.ModelPlan(self.file.architecture, first, tuple(layers), output or self.output(), self.n_ctx_train)
        if mtp is None or not self.has_mtp:
            return plan
        numbers = range(self.n_layers, self.n_stored)
        return attrs.evolve(plan, mtp=tuple(self._mtp(i, mtp(i), mtp_hidden, mtp_output, plan) for i in numbers))

    def _mtp(
        self,
        number: int,
        layer: blocks.Layer,
        hidden: Literal["output", "layer"],
        output_of: Callable[[str, blocks.Output], blocks.Output],
        plan: blocks.ModelPlan,
    ) -> blocks.MtpLayer:
        """A layer that predicts further tokens; the model's embedding and output serve where it has none of its own."""
        at, tensors, n_embd, n_vocab = f"blk.{number}.nextn", self.file.tensors, self.n_embd, self.n_vocab
        rows = f"{at}.embed_tokens.weight" if f"{at}.embed_tokens.weight" in tensors else f"{self.embedding}.weight"
        self.file.tensor(rows, (n_vocab, n_embd))
        output, by_stream = plan.output, (plan.embedding.n_streams, n_embd)
        for name in (f"blk.{number}.layer_output_norm", f"{at}.shared_head_norm"):  # the latter where a file has both
            if f"{name}.weight" in tensors:
                output = attrs.evolve(output, norm=self.norm(name))
        if f"{at}.shared_head_head.weight" in tensors and output.weight is not None:
            own = self.linear(f"{at}.shared_head_head", n_embd, n_vocab, has_bias=False, factor=output.weight.scale)
            output = attrs.evolve(output, weight=own)
        is_by_stream = self.file.tensor(f"{at}.hnorm.weight").shape == by_stream
        begin = blocks.MtpInput(
            token_norm=self.norm(f"{at}.enorm"),
            hidden_norm=self.norm(f"{at}.hnorm", shape=by_stream if is_by_stream else None),
            projection=self.linear(f"{at}.eh_proj", 2 * n_embd, n_embd, has_bias=False),
            n_hidden=n_embd if hidden == "output" else plan.n_hidden,
        )
        return blocks.MtpLayer(blocks.Embedding(rows, n_vocab, n_embd), begin, (layer,), output_of(at, output), hidden)

    def attention(
        self,
        layer: int,
        rope: blocks.Rope | None,
        *,
        scale: float | None = None,
        names: tuple[str, str, str] = ("attn_q", "attn_k", "attn_v"),
        norm: str | blocks.Norm | None = "attn_norm",
        has_head_norms: bool = False,
        has_joint_norms: bool = False,
        has_post_norm: bool = False,
        linears: Sequence[blocks.Linear] = (),
        has_biases: bool = True,
        has_output_bias: bool = True,
        has_scales: bool = True,
        factor: float = 1.0,
        **others: Any,
    ) -> blocks.Attention:
        """The attention of a layer; q, k, v and o have biases where the file has them.

        Args:
            rope: Of its queries and keys, if any.
            scale: The scale of q · k, by default 1 / sqrt(D).
            names: The tensors of q, k and v, where no `attn_qkv` holds all three.
            has_head_norms: Whether queries and keys are normed per head.
            has_joint_norms: Whether they are normed over all heads.
            linears: The products q, k and v, as far as they are not those of these tensors.
            has_biases, has_scales: Of q, k and v; `has_output_bias`: of o.
        """
        n_heads, n_kv_heads = self.n_heads[layer], self.n_kv_heads[layer]
        at, n_made, marks = f"blk.{layer}", len(linears), {"has_scale": has_scales, "has_bias": has_biases}
        sizes = (n_heads * self.head_dim, n_kv_heads * self.head_dim, n_kv_heads * self.value_dim)
        q, k, v = (*linears, *self.fused(at, names[n_made:], "" if n_made else "attn_qkv", sizes[n_made:], **marks))
        q_norm = k_norm = None
        if has_head_norms or has_joint_norms:
            n_q, n_k = (n_heads, n_kv_heads) if has_joint_norms else (1, 1)
            q_norm, k_norm = (self.norm(f"{at}.attn_{part}_norm", n * self.head_dim) for part, n in (("q", n_q), ("k", n_k)))
        attention = blocks.Attention(
            norm=self.norm(f"{at}.{norm}") if isinstance(norm, str) else norm,
            q=q,
            k=k,
            v=v,
            o=self.linear(f"{at}.attn_output", n_heads * self.value_dim, self.n_embd, has_bias=has_output_bias, factor=factor),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            scale=1.0 / math.sqrt(self.head_dim) if scale is None else scale,
            rope=rope,
            q_norm=q_norm,
            k_norm=k_norm,
            has_joint_norms=has_joint_norms,
            post_norm=self.norm(f"{at}.post_attention_norm") if has_post_norm else None,
        )
        return attrs.evolve(attention, **others)

    def feed_forward(
        self,
        layer: int,
        activation: blocks.Activation = blocks.Activation.SILU,
        *,
        gate: Literal["own", "fused"] | None = "own",
        norm: str | blocks.Norm | None = "ffn_norm",
        has_post_norm: bool = False,
        has_scales: bool = False,
        has_biases: bool = True,
        factor: float = 1.0,
        n_ff: int | None = None,
        suffix: str = "",
        **others: Any,
    ) -> blocks.FeedForward:
        """The feed-forward of a layer.

        Args:
            activation: The activation of its gate.
            gate: Whether it has a tensor of its own, is the first half of that of `up`, or does not exist.
            n_ff: F, if it is not the file's key.
            suffix: The end of its tensors' names.
        """
        at, n_ff = f"blk.{layer}", self.n_ff[layer] if n_ff is None else n_ff
        marks: dict[str, Any] = {"has_scale": has_scales, "scales_bias": True, "has_bias": has_biases}
        gate_linear = None
        if gate == "fused":
            gate_linear, up = self.fused(at, (), f"ffn_up{suffix}", (n_ff, n_ff), **marks)
        else:
            up = self.linear(f"{at}.ffn_up{suffix}", self.n_embd, n_ff, **marks)
            if gate is not None:
                gate_linear = self.linear(f"{at}.ffn_gate{suffix}", self.n_embd, n_ff, **marks)
        feed_forward = blocks.FeedForward(
            norm=self.norm(f"{at}.{norm}") if isinstance(norm, str) else norm,
            gate=gate_linear,
            up=up,
            down=self.linear(f"{at}.ffn_down{suffix}", n_ff, self.n_embd, factor=factor, **marks),
            activation=activation,
            post_norm=self.norm(f"{at}.post_ffw_norm") if has_post_norm else None,
        )
        return attrs.evolve(feed_forward, **others)

    def again(self, stored: blocks.Layer, layer: int, *, has_scales: bool = False) -> blocks.Layer:
        """A stored layer that comes again as `layer`, with that one's scale tensors; `has_scales`: of feed-forwards too."""
        changed: dict[str, Any] = {}
        for block, names in (("mixer", _ATTENTION_NAMES), ("feed_forward", _FEED_FORWARD_NAMES if has_scales else {})):
            linears = {}
            for part, name in names.items():
                linear, scale = getattr(getattr(stored, block), part), self.scale(f"blk.{layer}.{name}")
                linears[part] = attrs.evolve(linear, scale=scale, bias_scale=1.0 if block == "mixer" else scale)
            changed[block] = attrs.evolve(getattr(stored, block), **linears)
        return attrs.evolve(stored, **changed)

    def output(
        self,
        *,
        norm: str | blocks.Norm | None = "output_norm",
        is_tied: bool = False,
        has_bias: bool = True,
        has_scale: bool = True,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> blocks.Output:
        """The last block; the embedding's weights serve where the file has none of its own, or with `is_tied` in any case.

        `scale` and `softcap` are those of the logits.
        """
        name = "output" if "output.weight" in self.file.tensors and not is_tied else self.embedding
        weight = self.linear(name, self.n_embd, self.n_vocab, has_scale=has_scale, has_bias=has_bias, factor=scale)
        return blocks.Output(self.norm(norm) if isinstance(norm, str) else norm, weight, softcap)

    def indexer_sizes(self) -> tuple[int, int]:
        """The number of heads of an indexer, and the values of each, of which rope turns some."""
        n_heads, size = (self.keys.count(f"attention.indexer.{each}") for each in ("head_count", "key_length"))
        if size < self.n_rot:
            self.keys.fail("attention.indexer.key_length", size, f"at least the {self.n_rot} values that rope turns")
        return n_heads, size

    @cached_property
    def n_ff(self) -> tuple[int, ...]:
        """F by layer; files of mixtures need not say, as the shapes of experts do."""
        return self.keys.counts("feed_forward_length", self.n_stored, least=self._least)

    @cached_property
    def head_dim(self) -> int:  # type: ignore[override]
        """D; latent attention has sizes of its own."""
        return self._head_dim("attention.key_length")

    @cached_property
    def value_dim(self) -> int:
        """D_v."""
        return self._head_dim("attention.value_length")

    def _head_dim(self, key: str) -> int:
        if key in self.keys:
            return self.keys.count(key)
        n_heads = next(filter(None, self.n_heads), 1)
        if self.n_embd % n_heads:
            self.keys.fail("embedding_length", self.n_embd, f"a multiple of the {n_heads} heads")
        return self.n_embd // n_heads

    def _n_vocab(self) -> int:
        """V by the embedding: the key `vocab_size` is absent from many files and wrong in some."""
        name = f"{self.prefix}{self.embedding}.weight"
        shape = self.file.tensor(name).shape
        if len(shape) != 2 or shape[1] != self.n_embd:
            file, own_name = self.file.owner(name)
            draft = f" of {self.file.path}; use a draft model that was made for this target" if file is not self.file else ""
            raise ModelFileError(
                f"{file.path}: tensor {own_name!r} has shape {shape}, expected (vocabulary, {self.n_embd}){draft}"
            )
        n_tokens = len(self.file.get("tokenizer.ggml.tokens", list[str], []))
        if n_tokens > shape[0]:
            raise ModelFileError(
                f"{self.file.path}: metadata key 'tokenizer.ggml.tokens' has {n_tokens} tokens, expected at most the "
                f"{shape[0]} that {name!r} has rows for"
            )
        return shape[0]
