"""Llama 1 to 3, models built like it that say `llama`, as Mistral and SmolLM2, and families that differ from it in a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from augury.blocks import Activation, Gating, Layer, ModelPlan, Norm, Projection, Rope, Temperature
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import MAX_POSITIONS, local_base
from augury.plugins.architectures.transformer import Transformer, slopes

_ROPE: dict[str, Any] = {"is_interleaved": True, "has_factors": True}
_EXPERTS: dict[str, Any] = {"gating": Gating.SOFTMAX, "is_normalised": True, "has_scales": True}  # Mixtral's
_CHUNK, _PERIOD, _N_EXPERTS_MAVERICK = 8192, 4, 128  # of Llama 4, whose files say none of it
_N_LAYERS_7B, _N_LAYERS_13B = 32, 40  # of Baichuan, whose files do not say which positions they have


class Llama(Transformer):
    """Pre-norm attention with interleaved rope, into which order converters permute q and k; gated feed-forward.

    The window that files of the first Mistral may state is not used, as llama.cpp does not.
    """

    name = "llama"
    rope_args = _ROPE
    ffn_args = {"has_scales": True}
    experts = _EXPERTS
    mtp_hidden = "output"


class Mistral3(Transformer):
    """Queries that grow with the position beyond the original context."""

    name = "mistral3"
    ffn_args = {"has_scales": True}
    experts = _EXPERTS
    rope_args = {**_ROPE, "yarn_keys": ("beta_fast", "beta_slow", "log_multiplier")}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:  # noqa: ARG003 - as its parent's
        keys = decoder.keys
        if not (scale := keys.number("attention.temperature_scale", 0.0)):
            return {}
        period = keys.count("rope.scaling.original_context_length", decoder.n_ctx_train, most=MAX_POSITIONS)
        return {"temperature": Temperature(scale, period)}


Smollm3 = Transformer.family(
    "smollm3",
    "Every fourth layer has no rope.",
    rope_args={"is_interleaved": True},
    turns=lambda _, layer: (layer + 1) % 4 != 0,
)
Arcee = Transformer.family(
    "arcee", "Squared ReLU without a gate.", rope_args=_ROPE, ffn_args={"activation": Activation.RELU_SQUARED, "gate": None}
)
Ernie = Transformer.family(
    "ernie4_5",
    "As Llama.",
    decoder_args={"may_have_experts": True},  # its mixtures have a name of their own
    rope_args={"is_interleaved": True},
    attention_args={"has_output_bias": False},
)
Internlm2 = Transformer.family("internlm2", "As Llama.", rope_args={"is_interleaved": True})
Xverse = Internlm2.family("xverse", "As InternLM 2.")
Maincoder = Transformer.family(
    "maincoder",
    "Heads are normed after rope.",
    rope_args={"is_interleaved": True},
    attention_args={"has_head_norms": True, "is_rope_first": True},
)
SeedOss = Transformer.family("seed_oss", "The feed-forward's norm has another name.", ffn_args={"norm": "post_attention_norm"})
PanguEmbedded = Transformer.family("pangu-embedded", "As Llama, except for the order of its rope.")


class BitNet(Transformer):
    """Norms before the last matrix of attention and of the feed-forward."""

    name = "bitnet"
    output_args = {"is_tied": True}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        at, n_mixed = f"blk.{layer}", decoder.n_heads[layer] * decoder.value_dim
        attention = decoder.attention(layer, rope, out_norm=decoder.norm(f"{at}.attn_sub_norm", n_mixed))
        hidden_norm = decoder.norm(f"{at}.ffn_sub_norm", decoder.n_ff[layer])
        return Layer(attention, decoder.feed_forward(layer, hidden_norm=hidden_norm, has_scales=True))


Refact = Transformer.family(
    "refact",
    "Distances lower scores in place of rope.",
    rope_args=None,
    attention_args={"has_output_bias": False, "slopes": lambda decoder, layer: slopes(decoder.n_heads[layer], 8.0)},
    ffn_args={"has_biases": False},
)
Baichuan = Transformer.family(
    "baichuan",
    "The 7B model has rope, the 13B model slopes; by the number of layers, as llama.cpp tells them apart.",
    rope_args={"is_interleaved": True},
    turns=lambda decoder, _: decoder.n_layers == _N_LAYERS_7B,
    attention_args={
        "slopes": lambda decoder, layer: slopes(decoder.n_heads[layer], 8.0 if decoder.n_layers == _N_LAYERS_13B else 0.0)
    },
)


class Nanbeige(Transformer):
    """Its layers are gone through several times, each time with keys and values of their own."""

    name = "nanbeige"
    rope_args = _ROPE
    ffn_args = {"has_scales": True}

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file)
        rope, keys = cls.rope(decoder), decoder.keys
        n_loops = keys.count("num_loops", 1, most=512 // decoder.n_layers or 1)
        stored = [cls.layer(decoder, layer, rope) for layer in range(decoder.n_layers)]
        layers = [decoder.again(layer, i, has_scales=True) for i, layer in enumerate(stored * n_loops)]
        if not keys.flag("skip_loop_final_norm", default=False):
            for i in range(len(stored) - 1, len(layers) - 1, len(stored)):
                layers[i] = attrs.evolve(layers[i], norm=decoder.norm("output_norm"))
        return {"main": decoder.plan(layers)}


class Deci(Transformer):
    """Pruned Llamas: some layers have a matrix in place of attention, or no attention, or nothing at all."""

    name = "deci"
    decoder_args = {"least": 0}
    rope_args = _ROPE

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        if not decoder.n_ff[layer]:
            return Layer(None)
        if decoder.n_kv_heads[layer]:
            return super().layer(decoder, layer, rope)
        mixer = None
        if decoder.n_heads[layer]:
            o = decoder.matrix(f"blk.{layer}.attn_output", decoder.n_embd, decoder.n_embd)
            mixer = Projection(decoder.norm(f"blk.{layer}.attn_norm"), o)
        return Layer(mixer, cls.feed_forward(decoder, layer))


ErnieMoe = Ernie.family(
    "ernie4_5-moe",
    "As Ernie, with experts in some layers, and one that is shared.",
    experts={"gating": Gating.SOFTMAX, "is_normalised": True},
)
PaddleOcr = Transformer.family(
    "paddleocr",
    "The language model of PaddleOCR, as Ernie with positions on the axes of an image.",
    decoder_args=Ernie.decoder_args,
    rope_args={"sections": "blocks"},
)


class Llama4(Transformer):
    """Three layers of four have rope and see chunks; the others grow their queries with the position."""

    name = "llama4"
    rope_args = _ROPE
    experts = {"gating": Gating.SIGMOID, "is_normalised": False, "weighs_input": True}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        """A layer, from 0; files that state a window of 0 have neither chunks nor temperature."""
        keys, key = decoder.keys, "attention.sliding_window"
        has_chunks = key not in keys or keys.count(key, least=0) > 0
        turns = (layer + 1) % (_PERIOD if has_chunks else decoder.n_layers) != 0
        common: dict[str, Any] = {"scale": keys.number("attention.scale", 0.0) or None}
        if has_chunks and decoder.flags(f"{key}_pattern", _PERIOD)[layer]:
            common["chunk"] = _CHUNK
            rope = decoder.rope(base=local_base(decoder), **cls.rope_args)
        if turns and keys.count("expert_count", 0, least=0) != _N_EXPERTS_MAVERICK:
            norm = Norm(None, decoder.head_dim, decoder.eps)
            common |= {"q_norm": norm, "k_norm": norm, "is_rope_first": True}
        if has_chunks and not turns:
            common["temperature"] = Temperature(0.1, _CHUNK, 1.0)
        attention = decoder.attention(layer, rope if turns else None, **common)
        return Layer(attention, cls.feed_forward(decoder, layer))
