"""Command R and its successors, the models of Cohere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.blocks import Gating, NormKind
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import local_size
from augury.plugins.architectures.transformer import Transformer, own_norms

_PERIOD = 4  # one layer in four sees everything, where files do not say otherwise
_WINDOWS = {"period": _PERIOD, "is_required": True}
_N_LAYERS_NORMED = 64  # from so many on, heads are normed; files do not say so


class CommandR(Transformer):
    """Attention and feed-forward see one layer norm of the same input; logits are scaled."""

    name = "command-r"
    decoder_args = {"norm": NormKind.LAYER}
    rope_args = {"is_interleaved": True}
    ffn_args = {"norm": "attn_norm", "is_parallel": True}
    output_args = {"is_tied": True, "scale": lambda decoder: decoder.keys.number("logit_scale", 0.0) or 1.0}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        return own_norms(decoder, layer) if decoder.n_layers >= _N_LAYERS_NORMED else {}


Cohere2 = Transformer.family(
    "cohere2",
    "Three layers of four see a window only, and they alone have rope.",
    decoder_args={"norm": NormKind.LAYER},
    rope_args=None,
    local_rotary={"is_interleaved": True, "n_rot": local_size},
    windows=_WINDOWS,
    ffn_args={"norm": "attn_norm", "is_parallel": True, "has_scales": True},
    output_args={"is_tied": True, "scale": lambda decoder: decoder.keys.number("logit_scale") or 1.0},
)


def _turns(decoder: Decoder, layer: int) -> bool:
    is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD, is_first=True, has_mtp=True)[layer]
    return is_local or layer < decoder.keys.count("leading_dense_block_count", least=0)


class Cohere2Moe(Transformer):
    """As Cohere2 with experts, whose mean with a shared one counts; the first layers have none, and always rope."""

    name = "cohere2moe"
    rope_args = {"is_interleaved": True, "has_factors": True}
    windows = {**_WINDOWS, "is_first": True, "has_mtp": True}
    turns = _turns
    ffn_args = Cohere2.ffn_args
    experts = {
        **Cohere2.ffn_args,
        "fallback": Gating.SIGMOID,
        "has_weights_scale": True,
        "factor": lambda decoder, layer: 0.5 if f"blk.{layer}.ffn_up_shexp.weight" in decoder.file.tensors else 1.0,
    }
    output_args = {"scale": lambda decoder: decoder.keys.number("logit_scale") or 1.0}
    mtp_hidden = "output"

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        is_rms = file.get(f"{cls.name}.attention.layer_norm_rms_epsilon", float, 0.0) != 0.0
        return Decoder(file, norm=NormKind.RMS if is_rms else NormKind.LAYER, may_have_experts=True)
