"""Families whose attention is gated, or whose embedding goes on beside the layers: Muse Glimmer, Spark, Talkie, Step, HRM."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from augury.blocks import Activation, Gating, Layer, ModelPlan, Norm, Rope, SecondStream
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import limited_feed_forward
from augury.plugins.architectures.rope import local_base, local_size, own_local_base
from augury.plugins.architectures.transformer import Transformer, gates, stated

_POST_EPS = 1e-8  # of Muse Glimmer's norms of blocks' outputs
_FACTORS, _LEAST_FACTOR = "rope_freqs.weight", 1e-3
_MOST_LAYERS = 512  # that llama.cpp takes


def _post_norm(decoder: Decoder, name: str) -> Norm:
    return attrs.evolve(decoder.norm(name), eps=_POST_EPS)


MuseGlimmer = Transformer.family(
    "muse-glimmer",
    "Gates by value, normed heads, norms before and after; three layers of four see a window, and they alone have rope.",
    rope_args=None,
    local_rotary={"base": local_base, "is_scaled": False, "is_interleaved": True},
    windows={"period": 4, "is_required": True},
    attention_args={
        "has_head_norms": True,
        "gate": gates,
        "post_norm": lambda decoder, layer: _post_norm(decoder, f"blk.{layer}.post_attention_norm"),
    },
    ffn_args={"post_norm": lambda decoder, layer: _post_norm(decoder, f"blk.{layer}.post_ffw_norm")},
    embedding_args={"norm": Decoder.plain_norm},
    output_args={
        "scale": lambda decoder: decoder.keys.positive("logit_scale"),
        "softcap": stated("final_logit_softcapping", 30.0),
    },
)
Spark = Transformer.family(
    "spark2_5",
    "Gates by head, GELU; the file says which layers see a window only.",
    local_rotary={"base": local_base, "n_rot": local_size},
    windows={"period": None, "is_required": True},
    attention_args={"gate": lambda decoder, layer: gates(decoder, layer, by_head=True)},
    ffn_args={"activation": Activation.GELU_HALF},
)


class Talkie(Transformer):
    """Norms without weights; every layer adds a share of the embedding; query heads are normed, and weighted, after rope."""

    name = "talkie"
    embedding_args = {"norm": Decoder.plain_norm}
    output_args = {"norm": Decoder.plain_norm, "scale": lambda decoder: decoder.keys.positive("logit_scale")}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        at, norm = f"blk.{layer}", decoder.plain_norm()
        attention = decoder.attention(
            layer,
            rope,
            norm=norm,
            is_rope_first=True,
            q_norm=decoder.norm(f"{at}.attn_q_norm", decoder.head_dim, shape=(decoder.n_heads[layer], 1)),
            k_norm=decoder.plain_norm(decoder.head_dim),
        )
        feed_forward = decoder.feed_forward(layer, norm=norm)
        down = decoder.linear(f"{at}.ffn_down", decoder.n_ff[layer], decoder.n_embd, has_bias=False)
        skip = SecondStream(float(decoder.values(f"{at}.layer_output_scale.weight", 1)[0]))
        return Layer(attention, (attrs.evolve(feed_forward, down=down), skip))


def _half_turned(decoder: Decoder) -> Rope:
    """The rope of layers without a window, which turn half of the dimensions that the file states."""
    n_rot = decoder.n_rot // 2
    if n_rot % 2:
        decoder.keys.fail("rope.dimension_count", decoder.n_rot, "a multiple of 4")
    rope = decoder.rope(n_rot=n_rot)
    if _FACTORS not in decoder.file.tensors:
        return rope
    factors = decoder.values(_FACTORS, max(n_rot, local_size(decoder)) // 2)[: n_rot // 2]
    if not (factors > _LEAST_FACTOR).all():
        found = f"holds {factors.min()}, expected more than {_LEAST_FACTOR}"
        raise ModelFileError(f"{decoder.file.path}: tensor {_FACTORS!r} {found}")
    return attrs.evolve(rope, frequencies=rope.frequencies / factors)


def _optional_parts(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    at, tensors, parts = f"blk.{layer}", decoder.file.tensors, dict[str, Any](has_output_bias=False)
    for part in ("q_norm", "k_norm"):
        if f"{at}.attn_{part}.weight" in tensors:
            parts[part] = decoder.norm(f"{at}.attn_{part}", decoder.head_dim, has_bias=False)
    if f"{at}.attn_gate.weight" in tensors:
        parts["gate"] = decoder.matrix(f"{at}.attn_gate", decoder.n_embd, decoder.n_heads[layer])
    return parts


Step35 = Transformer.family(
    "step35",
    "Step 3.5: layers with a window have heads and a rope of their own; heads are gated, and hidden values are limited.",
    decoder_args={"may_have_experts": True},
    rope=_half_turned,
    local_rotary={"base": own_local_base, "n_rot": local_size, "is_scaled": False},
    windows={"period": None, "is_required": True, "has_mtp": True},
    attention_args=_optional_parts,
    feed_forward=partial(limited_feed_forward, fallback=Gating.SIGMOID, has_weights_scale=True),
    mtp_hidden="layer",
)


class HrmText(Architecture):
    """Low layers several times, then high ones, and all of it again, each with a residual stream of its own.

    Each stack is given the sum of both streams. Norms have no weights, and attention's mix has gates.
    """

    name = "hrm_text"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        keys, rope, norm = decoder.keys, decoder.rope(), decoder.plain_norm()
        n_stack = keys.count("hrm.layers_per_stack", most=_MOST_LAYERS)
        n_high, n_low = (keys.count(f"hrm.{which}_cycles", most=_MOST_LAYERS) for which in "hl")
        if decoder.n_layers != n_stack * n_high * (n_low + 1):
            keys.fail("block_count", decoder.n_layers, f"{n_stack * n_high * (n_low + 1)}, which layers and cycles make")
        stored = []
        for layer in range(2 * n_stack):
            attention = decoder.attention(layer, rope, norm=norm, gate=gates(decoder, layer))
            stored.append(Layer(attention, decoder.feed_forward(layer, norm=norm)))
        low, high = stored[:n_stack], stored[n_stack:]
        first = decoder.vector("hrm.z_l_init", decoder.n_embd)
        layers: list[Layer] = []
        for _ in range(n_high):
            for cycle in range(n_low + 1):
                stack = [decoder.again(layer, len(layers) + i) for i, layer in enumerate(low if cycle < n_low else high)]
                other = SecondStream(swaps=not 0 < cycle < n_low) if layers else SecondStream(first=first)
                stack[0] = attrs.evolve(stack[0], mixer=(other, *stack[0].mixers))
                stack[-1] = attrs.evolve(stack[-1], norm=norm)
                layers += stack
        layers[-1] = attrs.evolve(layers[-1], norm=None)  # the output's norm does it
        scale = keys.number("embedding_scale", 0.0) or 1.0
        return {"main": decoder.plan(layers, output=decoder.output(norm=norm), scale=scale)}
