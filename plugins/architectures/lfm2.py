"""LFM2."""

from __future__ import annotations

from augury.blocks import Convolution, ShortConvolution
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import local_size
from augury.plugins.architectures.transformer import Transformer


def _window(decoder: Decoder) -> int | None:
    """How many positions attention sees."""
    return decoder.keys.count("attention.sliding_window", 0, least=0) or None


def _short_convolution(decoder: Decoder, layer: int) -> ShortConvolution:
    at, n_embd = f"blk.{layer}", decoder.n_embd
    n_taps = decoder.keys.count("shortconv.l_cache", least=2)
    return ShortConvolution(
        norm=decoder.norm(f"{at}.attn_norm"),
        inputs=decoder.linear(f"{at}.shortconv.in_proj", n_embd, 3 * n_embd, has_scale=False),
        conv=decoder.check(Convolution(f"{at}.shortconv.conv.weight", n_embd, n_taps)),
        o=decoder.linear(f"{at}.shortconv.out_proj", n_embd, n_embd, has_scale=False),
    )


Lfm2 = Transformer.family(
    "lfm2",
    "Gated short convolutions, and attention with normed heads in layers that have key heads; the dense models.",
    decoder_args={"least": 0, "may_have_experts": True},
    rope_args={"n_rot": lambda decoder: None if _window(decoder) is None else local_size(decoder)},
    attention_args={"has_head_norms": True, "window": lambda decoder, _: _window(decoder)},
    without_heads=_short_convolution,
    ffn_args={"has_biases": False},
    output_args={"norm": "token_embd_norm"},  # as converters have misnamed it
)
Lfm2Moe = Lfm2.family(
    "lfm2moe",
    "The mixtures of experts, whose first layers are dense, without a window.",
    rope_args={},
    attention_args={"has_head_norms": True},
    experts={"is_normalised": True},
)
