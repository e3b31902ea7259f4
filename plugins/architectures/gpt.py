"""Families with layer norms: GPT-2 and its kin, whose feed-forward has two matrices, and the models of Cohere."""

from __future__ import annotations

from typing import Any

from augury.blocks import Activation, Gating, Layer, Linear, NormKind, Rope
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import local_size
from augury.plugins.architectures.transformer import Transformer, own_norms, slopes, stated

_LAYER_NORMS: dict[str, Any] = {"norm": NormKind.LAYER}
_UNGATED: dict[str, Any] = {"activation": Activation.GELU_HALF, "gate": None}
_PERIOD = 4  # one layer in four of Cohere's sees everything, where files do not say otherwise
_WINDOWS = {"period": _PERIOD, "is_required": True}
_N_LAYERS_NORMED = 64  # from so many on, heads of Command R are normed; files do not say so


def _positions(decoder: Decoder) -> Linear:
    return decoder.linear("position_embd", decoder.n_embd, decoder.n_ctx_train)


def _slopes(decoder: Decoder, layer: int) -> tuple[float, ...] | None:
    """The slopes of families whose files state the largest one."""
    return slopes(decoder.n_heads[layer], decoder.keys.number("attention.max_alibi_bias", 0.0, most=1024.0))


Gpt2 = Transformer.family(
    "gpt2",
    "Positions are learned.",
    decoder_args=_LAYER_NORMS,
    rope_args=None,
    ffn_args=_UNGATED,
    embedding_args={"positions": _positions},
)
Starcoder = Gpt2.family("starcoder", "As GPT-2, with few key and value heads.")


Starcoder2 = Transformer.family("starcoder2", "With rope.", decoder_args=_LAYER_NORMS, ffn_args=_UNGATED)
Codeshell = Starcoder2.family(
    "codeshell",
    "As StarCoder 2; the output's weights may serve as the embedding.",
    decoder=lambda file: Decoder(
        file, norm=NormKind.LAYER, embedding="token_embd" if "token_embd.weight" in file.tensors else "output"
    ),
)
GptNeox = Transformer.family(
    "gptneox",
    "Attention and feed-forward in parallel, each with a norm of its own, or in sequence, as the file says.",
    decoder_args=_LAYER_NORMS,
    ffn_args={**_UNGATED, "is_parallel": lambda decoder, _: decoder.keys.flag("use_parallel_residual")},
)


def _first_norm(decoder: Decoder, layer: int) -> str:
    return "attn_norm_2" if f"blk.{layer}.attn_norm_2.weight" in decoder.file.tensors else "attn_norm"


Falcon = Transformer.family(
    "falcon",
    "Attention and feed-forward in parallel; the larger ones have two norms.",
    decoder_args=_LAYER_NORMS,
    attention_args={"has_output_bias": False, "norm": _first_norm},
    ffn_args={**_UNGATED, "norm": "attn_norm", "has_biases": False, "is_parallel": True},
)
Phi2 = Transformer.family(
    "phi2",
    "Attention and feed-forward see one layer norm of the same input; no gates, biases everywhere.",
    decoder_args=_LAYER_NORMS,
    ffn_args={**_UNGATED, "norm": "attn_norm", "is_parallel": True},
)
Bloom = Transformer.family(
    "bloom",
    "Distances lower scores in place of rope; the embedding is normed.",
    decoder_args=_LAYER_NORMS,
    rope_args=None,
    attention_args={"slopes": lambda decoder, layer: slopes(decoder.n_heads[layer], 8.0)},
    ffn_args=_UNGATED,
    embedding_args={"norm": lambda decoder: decoder.norm("token_embd_norm")},
)
Jais = Bloom.family(
    "jais",
    "With gates, and scores scaled by 1 / D.",
    attention_args={"slopes": _slopes, "scale": lambda decoder, _: 1.0 / decoder.head_dim},
    ffn_args={},
    embedding_args={},
)
Mpt = Bloom.family(
    "mpt",
    "Clamped queries, keys and values; some models have learned positions, normed queries and keys, or divisors.",
    attention_args={
        "slopes": _slopes,
        "clamp": stated("attention.clamp_kqv"),
        # llama.cpp clamps before it norms, as `Attention` does
        "has_joint_norms": lambda decoder, layer: f"blk.{layer}.attn_q_norm.weight" in decoder.file.tensors,
    },
    ffn_args={
        **_UNGATED,
        "divisors": lambda decoder, layer: decoder.optional_vector(f"blk.{layer}.ffn.act.scales", decoder.n_ff[layer]),
    },
    embedding_args={
        "positions": lambda decoder: _positions(decoder) if "position_embd.weight" in decoder.file.tensors else None
    },
)
Jais2 = Transformer.family(
    "jais2",
    "Squared ReLU without a gate.",
    decoder_args=_LAYER_NORMS,
    ffn_args={**_UNGATED, "activation": Activation.RELU_SQUARED},
)
Nemotron = Jais2.family("nemotron", "As Jais 2.")
Orion = Transformer.family("orion", "With gates.", decoder_args=_LAYER_NORMS)
Olmo = Transformer.family(
    "olmo",
    "Layer norms without weights; queries, keys and values may be clamped.",
    decoder_args=_LAYER_NORMS,
    rope_args={"is_interleaved": True},
    attention_args={
        "norm": lambda decoder, _: decoder.plain_norm(),
        "clamp": stated("attention.clamp_kqv"),
        "has_output_bias": False,
    },
    ffn_args={"norm": lambda decoder, _: decoder.plain_norm()},
    output_args={"norm": Decoder.plain_norm},
)


class StableLM(Transformer):
    """With gates; the 12B model norms heads, each with weights of its own, and has one norm for both, which see the same."""

    name = "stablelm"
    decoder_args = _LAYER_NORMS

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        is_parallel = f"blk.{layer}.ffn_norm.weight" not in decoder.file.tensors
        norm = "attn_norm" if is_parallel else "ffn_norm"
        feed_forward = decoder.feed_forward(layer, norm=norm, is_parallel=is_parallel)
        return Layer(decoder.attention(layer, rope, **own_norms(decoder, layer, are_optional=True)), feed_forward)


CommandR = Transformer.family(
    "command-r",
    "Attention and feed-forward see one layer norm of the same input; logits are scaled.",
    decoder_args=_LAYER_NORMS,
    rope_args={"is_interleaved": True},
    attention_args=lambda decoder, layer: own_norms(decoder, layer) if decoder.n_layers >= _N_LAYERS_NORMED else {},
    ffn_args={"norm": "attn_norm", "is_parallel": True},
    output_args={"is_tied": True, "scale": stated("logit_scale", 0.0, 1.0)},
)
Cohere2 = Transformer.family(
    "cohere2",
    "Three layers of four see a window only, and they alone have rope.",
    decoder_args=_LAYER_NORMS,
    rope_args=None,
    local_rotary={"is_interleaved": True, "n_rot": local_size},
    windows=_WINDOWS,
    ffn_args={"norm": "attn_norm", "is_parallel": True, "has_scales": True},
    output_args={"is_tied": True, "scale": stated("logit_scale", None, 1.0)},
)


def _turns(decoder: Decoder, layer: int) -> bool:
    is_local = decoder.flags("attention.sliding_window_pattern", _PERIOD, is_first=True, has_mtp=True)[layer]
    return is_local or layer < decoder.keys.count("leading_dense_block_count", least=0)


def _with_its_norms(file: ModelFile) -> Decoder:
    is_rms = file.get("cohere2moe.attention.layer_norm_rms_epsilon", float, 0.0) != 0.0
    return Decoder(file, norm=NormKind.RMS if is_rms else NormKind.LAYER, may_have_experts=True)


Cohere2Moe = Transformer.family(
    "cohere2moe",
    "As Cohere2 with experts, whose mean with a shared one counts; the first layers have none, and always rope.",
    decoder=_with_its_norms,
    rope_args={"is_interleaved": True, "has_factors": True},
    windows={**_WINDOWS, "is_first": True, "has_mtp": True},
    turns=_turns,
    ffn_args=Cohere2.ffn_args,
    experts={
        **Cohere2.ffn_args,
        "fallback": Gating.SIGMOID,
        "has_weights_scale": True,
        "factor": lambda decoder, layer: 0.5 if f"blk.{layer}.ffn_up_shexp.weight" in decoder.file.tensors else 1.0,
    },
    output_args={"scale": stated("logit_scale", None, 1.0)},
    mtp_hidden="output",
)
