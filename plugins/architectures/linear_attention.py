"""Linear attention: gated delta nets of Qwen3-Next and Qwen3.5, DeltaNet, and MiniMax-01's lightning attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
from attrs import frozen

from augury import blocks
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.lowering import Activate, Builder, Constant, Convolve, Multiply, Recur, ScaleToLength
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import mixture
from augury.plugins.architectures.mamba import convolution
from augury.plugins.architectures.transformer import Transformer

_PERIOD, _PERIOD_OF_MINIMAX = 4, 8  # one layer of so many attends, where the file does not say otherwise
_LEAST_SCALE = 1e-6  # of MiniMax's residuals: its square divides
_EPS = 1e-6  # is added to squares of lengths in DeltaNet


class Qwen35(Transformer):
    """Gated delta nets, and attention with normed heads that is gated by value; the dense models.

    Attributes:
        is_tiled: How heads of the recurrence share keys; see `LinearRecurrence`.
        marks: Arguments of `Decoder.linear` for the matrices around it.
    """

    name = "qwen35"
    decoder_args = {"least": 0, "may_have_experts": True}
    rope_args = {"sections": "turns"}
    ffn_args = {"norm": "post_attention_norm", "has_biases": False, "has_scales": True}
    mtp_hidden = "output"
    is_tiled: ClassVar[bool] = True
    marks: ClassVar[Mapping[str, Any]] = {"has_bias": False}

    @classmethod
    def mixer(cls, decoder: Decoder, layer: int, rope: blocks.Rope | None) -> blocks.Block:
        norm, is_recurrent = decoder.norm(f"blk.{layer}.attn_norm"), cls.is_recurrent(decoder, layer)
        return cls.delta_net(decoder, layer, norm) if is_recurrent else gated_attention(decoder, layer, rope, norm)

    @classmethod
    def is_recurrent(cls, decoder: Decoder, layer: int) -> bool:
        """Whether a layer has a delta net; layers that predict further tokens attend."""
        period = decoder.keys.count("full_attention_interval", _PERIOD)
        return layer < decoder.n_layers and decoder.flags("attention.recurrent_layers", period)[layer]

    @classmethod
    def alpha_and_beta(cls, decoder: Decoder, layer: int, heads: blocks.LinearRecurrence) -> Sequence[blocks.Linear]:
        """The inputs of decays and betas."""
        names = (f"blk.{layer}.ssm_{name}" for name in ("alpha", "beta"))
        return [decoder.linear(name, decoder.n_embd, heads.n_heads, **cls.marks) for name in names]

    @classmethod
    def delta_net(cls, decoder: Decoder, layer: int, norm: blocks.Norm | None) -> blocks.GatedDeltaNet:
        """The delta net of a layer, with a norm of its input."""
        keys, at, n_embd = decoder.keys, f"blk.{layer}", decoder.n_embd
        n_heads, n_keys, size = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count"), keys.count("ssm.state_size")
        if n_heads % n_keys:
            keys.fail("ssm.group_count", n_keys, f"a divisor of the {n_heads} heads")
        heads = blocks.LinearRecurrence(n_heads, n_keys, size, size, has_delta=True, is_tiled=cls.is_tiled)
        n_values, n_inputs = n_heads * size, (2 * n_keys + n_heads) * size
        alpha, beta = cls.alpha_and_beta(decoder, layer, heads)
        decoder.norm(f"{at}.ssm_norm", size)
        return blocks.GatedDeltaNet(
            norm=norm,
            inputs=decoder.linear(f"{at}.attn_qkv", n_embd, n_inputs, **cls.marks),
            conv=convolution(decoder, layer, n_inputs, has_bias=False),
            gate=decoder.linear(f"{at}.attn_gate", n_embd, n_values, **cls.marks),
            alpha=alpha,
            beta=beta,
            dt=decoder.vector(f"{at}.ssm_dt.bias", n_heads),
            a=decoder.vector(f"{at}.ssm_a", n_heads),
            recurrence=heads,
            eps=decoder.eps,
            out_norm=blocks.Norm(f"{at}.ssm_norm.weight", size, decoder.eps),
            o=decoder.linear(f"{at}.ssm_out", n_values, n_embd, **cls.marks),
        )


Qwen35Moe = Qwen35.family(
    "qwen35moe",
    "The mixtures of experts.",
    experts={"gating": blocks.Gating.SOFTMAX, "is_normalised": True, "norm": "post_attention_norm", "has_scales": True},
)


def _interleaved(decoder: Decoder, layer: int, heads: blocks.LinearRecurrence) -> Sequence[blocks.Linear]:
    """Alphas and betas, rows of one matrix, in turns by key."""
    n, size = heads.n_heads, heads.n_heads // heads.n_key_heads
    rows = (blocks.RowSelection(first, size, 2 * size, 2 * n) for first in (size, 0))
    return [decoder.matrix(f"blk.{layer}.ssm_ba", decoder.n_embd, n, rows=each) for each in rows]


Qwen3Next = Qwen35Moe.family(
    "qwen3next",
    "Mixtures, whose alphas and betas are rows of one matrix, in turns by key.",
    rope_args={},
    is_tiled=False,
    marks={"has_bias": False, "has_scale": False},
    alpha_and_beta=_interleaved,
)


def gated_attention(
    decoder: Decoder, layer: int, rope: blocks.Rope | None, norm: blocks.Norm | None, *, has_biases: bool = True
) -> blocks.Attention:
    """Attention whose queries and gates are rows of one matrix, in turns by head; `has_biases`: see `Decoder.attention`."""
    size, n = decoder.head_dim, decoder.n_heads[layer] * decoder.head_dim
    q, gate = (
        decoder.linear(
            f"blk.{layer}.attn_q",
            decoder.n_embd,
            n,
            rows=blocks.RowSelection(first, size, 2 * size, 2 * n),
            has_bias=has_biases,
        )
        for first in (0, size)
    )
    scale = decoder.keys.number("attention.scale", 0.0) or None
    marks: dict[str, Any] = {"has_head_norms": True, "has_biases": has_biases, "has_output_bias": False}
    return decoder.attention(layer, rope, scale=scale, norm=norm, linears=[q], gate=gate, **marks)


@frozen
class DeltaNetMixer(blocks.Block):
    """x += o(out_norm(y)) by head, with n = norm(x), and y the output of a recurrence with the delta rule and without decays.

    Queries, keys and values are silu(conv(q(n))), and so on; queries and keys are divided by their lengths, queries by sqrt(K).
    Betas are sigmoid(beta(n)).

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484).
    """

    norm: blocks.Norm
    q: blocks.Linear  # E → H K
    k: blocks.Linear  # E → H K
    v: blocks.Linear  # E → H V
    beta: blocks.Linear  # E → H
    q_conv: blocks.Convolution
    k_conv: blocks.Convolution
    v_conv: blocks.Convolution
    recurrence: blocks.LinearRecurrence
    out_norm: blocks.Norm  # of V values
    o: blocks.Linear  # H V → E

    def states(self) -> tuple[blocks.SequenceState, ...]:
        return (self.q_conv.state, self.k_conv.state, self.v_conv.state, self.recurrence.state)

    def lower(self, build: Builder) -> None:
        heads, n = self.recurrence, build.normalize(build.x, self.norm)
        *inputs, beta = build.add(Multiply, n, (self.q, self.k, self.v, self.beta), "queries, keys, values, betas")
        made = build.add(Convolve, tuple(inputs), (self.q_conv, self.k_conv, self.v_conv), (0, 1, 2), has_silu=True)
        both, values = made.split(2 * self.q.n_out, self.v.n_out)
        build.add(ScaleToLength, both, heads.key_dim, _EPS, heads.n_heads, heads.key_dim**-0.5)
        queries, keys = both.split(self.q.n_out, self.k.n_out)
        decays, betas = build.add(Constant, (1.0,) * heads.n_heads), build.add(Activate, beta, blocks.GateKind.SIGMOID)
        y = build.add(Recur, heads, 3, queries, keys, values, decays, betas)
        build.add_product(build.normalize(y, self.out_norm), self.o, "recurrence's output")


def _delta_net(decoder: Decoder, layer: int, _: blocks.Rope | None) -> DeltaNetMixer:
    at, n_embd, n_heads = f"blk.{layer}", decoder.n_embd, decoder.n_heads[layer]
    n_key, n_value = n_heads * decoder.head_dim, n_heads * decoder.value_dim
    n_taps, sizes = decoder.keys.count("ssm.conv_kernel", least=2), {"q": n_key, "k": n_key, "v": n_value}
    q, k, v = (decoder.linear(f"{at}.attn_{part}", n_embd, n) for part, n in sizes.items())
    q_conv, k_conv, v_conv = (
        decoder.check(blocks.Convolution(f"{at}.ssm_conv1d_{part}.weight", n, n_taps)) for part, n in sizes.items()
    )
    return DeltaNetMixer(
        norm=decoder.norm(f"{at}.attn_norm"),
        q=q,
        k=k,
        v=v,
        beta=decoder.linear(f"{at}.ssm_beta", n_embd, n_heads),
        q_conv=q_conv,
        k_conv=k_conv,
        v_conv=v_conv,
        recurrence=blocks.LinearRecurrence(n_heads, n_heads, decoder.head_dim, decoder.value_dim, has_delta=True),
        out_norm=decoder.norm(f"{at}.ssm_norm", decoder.value_dim),
        o=decoder.linear(f"{at}.attn_output", n_value, n_embd),
    )


DeltaNet = Transformer.family(
    "deltanet",
    "The delta rule in every layer, as in the models of flash-linear-attention: without gates, queries of length one.",
    rope_args=None,
    mixer=_delta_net,
    ffn_args={"has_scales": True},
)


class MiniMax01(Architecture):
    """The residual beside a block is its norm, times a scale s: n = norm(x), then x = s n + block(n).

    The plan computes x / s: blocks add a share of 1 / s, and norms have an epsilon of eps / s^2. Mixers and mixtures are layers
    by themselves, each followed by the norm of the next.
    """

    name = "minimax-01"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, blocks.ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        keys, rope, n = decoder.keys, decoder.rope(), decoder.n_layers
        scale, period = (
            keys.number("residual_scale", least=_LEAST_SCALE),
            keys.count("full_attention_interval", _PERIOD_OF_MINIMAX),
        )

        def norm(name: str) -> blocks.Norm:
            return attrs.evolve(decoder.norm(name), eps=decoder.eps / scale**2)

        layers = list[blocks.Layer]()
        for layer, is_recurrent in enumerate(decoder.flags("attention.recurrent_layers", period)):
            mixer: blocks.Block
            if is_recurrent:
                mixer = _lightning_attention(decoder, layer, 1.0 / scale)
            else:
                mixer = decoder.attention(layer, rope, norm=None, has_output_bias=False, factor=1.0 / scale)
            layers.append(blocks.Layer(mixer, norm=norm(f"blk.{layer}.ffn_norm")))
            experts = mixture(decoder, layer, gating=blocks.Gating.SOFTMAX, is_normalised=True, factor=1.0 / scale)
            after = norm(f"blk.{layer + 1}.attn_norm") if layer + 1 < n else None
            layers.append(blocks.Layer(None, attrs.evolve(experts, norm=None), norm=after))
        output = decoder.output(norm=norm("output_norm"))
        return {"main": decoder.plan(layers, output=output, norm=decoder.norm("blk.0.attn_norm"))}


def _lightning_attention(decoder: Decoder, layer: int, factor: float) -> blocks.LightningAttention:
    """Queries, keys and values are rows of one matrix, in turns by head; heads forget faster in the first layers."""
    n_heads, size, at = decoder.n_heads[layer], decoder.head_dim, f"blk.{layer}"
    n = n_heads * size
    q, k, v = (
        decoder.matrix(f"{at}.attn_qkv", decoder.n_embd, n, rows=blocks.RowSelection(i * size, size, 3 * size, 3 * n))
        for i in range(3)
    )
    start = 2.0 ** -(2.0 ** -(math.log2(n_heads) - 3))
    slope = 1.0 - layer / max(decoder.n_layers - 1, 1) + 1e-5
    return blocks.LightningAttention(
        norm=None,
        q=q,
        k=k,
        v=v,
        gate=decoder.matrix(f"{at}.attn_gate", decoder.n_embd, n),
        decays=tuple(math.exp(-slope * start ** (head + 1)) for head in range(n_heads)),
        recurrence=blocks.LinearRecurrence(n_heads, n_heads, size, size, has_delta=False),
        out_norm=decoder.norm(f"{at}.attn_norm_2", n),
        o=decoder.matrix(f"{at}.attn_output", n, decoder.n_embd, factor=factor),
    )
