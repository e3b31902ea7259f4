"""Arctic, GroveMoE and SmallThinker, whose experts or routers have another input than the norm after attention."""

from __future__ import annotations

import attrs

from augury.blocks import Activation, Gating, Layer, MixtureOfExperts, Rope
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import expert_matrices, mixture
from augury.plugins.architectures.rope import local_base
from augury.plugins.architectures.transformer import Transformer

_WINDOW, _PERIOD = 4096, 4  # in place of the window that a file states


class Arctic(Transformer):
    """A dense feed-forward, and beside both blocks of a layer a mixture over the layer's input."""

    name = "arctic"
    rope_args = {"is_interleaved": True}
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True, "norm": "ffn_norm_exps"}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        attention = decoder.attention(layer, rope, has_output_bias=False)
        dense = decoder.feed_forward(layer, n_ff=decoder.n_embd, has_biases=False)
        return Layer(attention, (dense, mixture(decoder, layer, is_parallel=True, **cls.experts)))


class GroveMoe(Transformer):
    """Normed heads; experts' outputs go through experts of groups of them, too."""

    name = "grovemoe"
    attention_args = {"has_head_norms": True}
    experts = {"gating": Gating.SOFTMAX, "is_normalised": True}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> MixtureOfExperts:
        block, keys = mixture(decoder, layer, **cls.experts), decoder.keys
        n_experts = block.router.logits.n_out
        n_alike = keys.count("experts_per_group", most=n_experts)
        n_groups = n_experts // n_alike
        if n_experts % n_alike:
            keys.fail("experts_per_group", n_alike, f"a divisor of the {n_experts} experts")
        router = attrs.evolve(
            block.router, n_used=min(block.router.n_used, n_groups), n_alike=n_alike, scale=keys.number("expert_group_scale")
        )
        parts = expert_matrices(decoder, layer, n_groups, suffix="chexps")
        adjugate = MixtureOfExperts(norm=None, router=router, activation=block.activation, **parts)
        return attrs.evolve(block, adjugate=adjugate)


class SmallThinker(Transformer):
    """Experts are chosen by the layer's input; layers with a window have rope, and the others none."""

    name = "smallthinker"
    experts = {"is_normalised": True, "activation": Activation.RELU}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        window = None
        if decoder.keys.count("attention.sliding_window", 0, least=0):
            is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD, is_first=True)[layer]
            window = _WINDOW if is_local else None
            turns = decoder.n_layers == _PERIOD or layer % _PERIOD
            rope = (decoder.rope(base=local_base(decoder)) if is_local else rope) if turns else None
        block = mixture(decoder, layer, **cls.experts)
        early = attrs.evolve(block, router=attrs.evolve(block.router, is_early=True))
        return Layer(decoder.attention(layer, rope, window=window), early)
