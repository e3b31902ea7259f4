"""MiniMax-01: lightning attention, and softmax attention in one layer of eight."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from augury.blocks import Block, Gating, Layer, LightningAttention, LinearRecurrence, ModelPlan, Norm, RowSelection
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import mixture

_PERIOD = 8  # one layer in eight attends, where the file does not say otherwise
_LEAST_SCALE = 1e-6  # its square divides


class MiniMax01(Architecture):
    """The residual beside a block is its norm, times a scale s: n = norm(x), then x = s n + block(n).

    The plan computes x / s: blocks add a share of 1 / s, and norms have an epsilon of eps / s^2. Mixers and mixtures are layers
    by themselves, each followed by the norm of the next.
    """

    name = "minimax-01"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        keys, rope, n = decoder.keys, decoder.rope(), decoder.n_layers
        scale, period = keys.number("residual_scale", least=_LEAST_SCALE), keys.count("full_attention_interval", _PERIOD)

        def norm(name: str) -> Norm:
            return attrs.evolve(decoder.norm(name), eps=decoder.eps / scale**2)

        layers = []
        for layer, is_recurrent in enumerate(decoder.flags("attention.recurrent_layers", period)):
            mixer: Block
            if is_recurrent:
                mixer = _lightning_attention(decoder, layer, 1.0 / scale)
            else:
                mixer = decoder.attention(layer, rope, norm=None, has_output_bias=False, factor=1.0 / scale)
            layers.append(Layer(mixer, norm=norm(f"blk.{layer}.ffn_norm")))
            experts = mixture(decoder, layer, gating=Gating.SOFTMAX, is_normalised=True, factor=1.0 / scale)
            after = norm(f"blk.{layer + 1}.attn_norm") if layer + 1 < n else None
            layers.append(Layer(None, attrs.evolve(experts, norm=None), norm=after))
        output = decoder.output(norm=norm("output_norm"))
        return {"main": decoder.plan(layers, output=output, norm=decoder.norm("blk.0.attn_norm"))}


def _lightning_attention(decoder: Decoder, layer: int, factor: float) -> LightningAttention:
    """Queries, keys and values are rows of one matrix, in turns by head; heads forget faster in the first layers."""
    n_heads, size, at = decoder.n_heads[layer], decoder.head_dim, f"blk.{layer}"
    n = n_heads * size
    q, k, v = (
        decoder.matrix(f"{at}.attn_qkv", decoder.n_embd, n, rows=RowSelection(i * size, size, 3 * size, 3 * n))
        for i in range(3)
    )
    start = 2.0 ** -(2.0 ** -(math.log2(n_heads) - 3))
    slope = 1.0 - layer / max(decoder.n_layers - 1, 1) + 1e-5
    return LightningAttention(
        norm=None,
        q=q,
        k=k,
        v=v,
        gate=decoder.matrix(f"{at}.attn_gate", decoder.n_embd, n),
        decays=tuple(math.exp(-slope * start ** (head + 1)) for head in range(n_heads)),
        recurrence=LinearRecurrence(n_heads, n_heads, size, size, has_delta=False),
        out_norm=decoder.norm(f"{at}.attn_norm_2", n),
        o=decoder.matrix(f"{at}.attn_output", n, decoder.n_embd, factor=factor),
    )
