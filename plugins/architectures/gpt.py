"""GPT-2 and its kin before gates: layer norms with biases, and a feed-forward of two matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.blocks import Activation, Layer, Linear, NormKind, Rope
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.transformer import Transformer, own_norms, slopes

_UNGATED: dict[str, Any] = {"activation": Activation.GELU_HALF, "gate": None}


def _positions(decoder: Decoder) -> Linear:
    return decoder.linear("position_embd", decoder.n_embd, decoder.n_ctx_train)


def _slopes(decoder: Decoder, layer: int) -> tuple[float, ...] | None:
    """The slopes of families whose files state the largest one."""
    return slopes(decoder.n_heads[layer], decoder.keys.number("attention.max_alibi_bias", 0.0, most=1024.0))


Gpt2 = Transformer.family(
    "gpt2",
    "Positions are learned.",
    decoder_args={"norm": NormKind.LAYER},
    rope_args=None,
    ffn_args=_UNGATED,
    embedding_args={"positions": _positions},
)
Starcoder = Gpt2.family("starcoder", "As GPT-2, with few key and value heads.")


class Starcoder2(Transformer):
    """With rope."""

    name = "starcoder2"
    decoder_args = {"norm": NormKind.LAYER}
    ffn_args = _UNGATED


class Codeshell(Starcoder2):
    """As StarCoder 2; the output's weights may serve as the embedding."""

    name = "codeshell"

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        name = "token_embd" if "token_embd.weight" in file.tensors else "output"
        return Decoder(file, **cls.decoder_args, embedding=name)


PocketTTS = Transformer.family(
    "pockettts",
    "The language model of Pocket TTS, which has no logits of its own.",
    decoder_args={"norm": NormKind.LAYER},
    rope_args={"is_interleaved": True},
    ffn_args=_UNGATED,
    output_args={"is_tied": True},
)
GptNeox = Transformer.family(
    "gptneox",
    "Attention and feed-forward in parallel, each with a norm of its own, or in sequence, as the file says.",
    decoder_args={"norm": NormKind.LAYER},
    ffn_args={**_UNGATED, "is_parallel": lambda decoder, _: decoder.keys.flag("use_parallel_residual")},
)


class Falcon(Transformer):
    """Attention and feed-forward in parallel; the larger ones have two norms."""

    name = "falcon"
    decoder_args = {"norm": NormKind.LAYER}
    ffn_args = {**_UNGATED, "norm": "attn_norm", "has_biases": False, "is_parallel": True}
    attention_args = {"has_output_bias": False}

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        has_two = f"blk.{layer}.attn_norm_2.weight" in decoder.file.tensors
        return {"norm": "attn_norm_2" if has_two else "attn_norm"}


Bloom = Transformer.family(
    "bloom",
    "Distances lower scores in place of rope; the embedding is normed.",
    decoder_args={"norm": NormKind.LAYER},
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
        "clamp": lambda decoder, _: decoder.keys.number("attention.clamp_kqv", 0.0) or None,
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
    decoder_args={"norm": NormKind.LAYER},
    ffn_args={**_UNGATED, "activation": Activation.RELU_SQUARED},
)
Nemotron = Jais2.family("nemotron", "As Jais 2.")
Orion = Transformer.family("orion", "With gates.", decoder_args={"norm": NormKind.LAYER})


class StableLM(Transformer):
    """With gates; the 12B model norms heads, each with weights of its own, and has one norm for both, which see the same."""

    name = "stablelm"
    decoder_args = {"norm": NormKind.LAYER}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        is_parallel = f"blk.{layer}.ffn_norm.weight" not in decoder.file.tensors
        norm = "attn_norm" if is_parallel else "ffn_norm"
        feed_forward = decoder.feed_forward(layer, norm=norm, is_parallel=is_parallel)
        return Layer(decoder.attention(layer, rope, **own_norms(decoder, layer, are_optional=True)), feed_forward)
