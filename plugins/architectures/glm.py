"""ChatGLM and GLM 4, their dense models, and CogVLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from augury.blocks import Gating, Linear, Rope, RowSelection
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import axes, plain
from augury.plugins.architectures.transformer import Transformer

ChatGLM = Transformer.family(
    "chatglm", "Rope over a part of each head, fused gates.", rope_args={"is_interleaved": True}, ffn_args={"gate": "fused"}
)


def _gate(decoder: Decoder, layer: int) -> Literal["own", "fused"]:
    """How gates are stored: fused, except in Ollama's files of GLM-OCR."""
    return "own" if f"blk.{layer}.ffn_gate.weight" in decoder.file.tensors else "fused"


Glm4 = Transformer.family(
    "glm4",
    "Norms after attention and feed-forward, too; models that see images have positions on axes.",
    rope_args={"sections": axes, "is_interleaved": lambda decoder: axes(decoder) is None},
    attention_args={"has_post_norm": True},
    ffn_args={"gate": _gate, "has_post_norm": True},
)


class CogVLM(Transformer):
    """Its matrices for text; images have others."""

    name = "cogvlm"

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope:
        return Rope(plain(decoder.head_dim, 10000.0))

    @classmethod
    def attention_args_of(cls, decoder: Decoder, layer: int) -> Mapping[str, Any]:
        """Queries, keys and values, of one matrix that has as many rows for each."""
        n, head_dim = decoder.n_heads[layer] * decoder.head_dim, decoder.head_dim
        sizes = (n, decoder.n_kv_heads[layer] * head_dim, decoder.n_kv_heads[layer] * head_dim)
        names = ("q", "k", "v")
        decoder.file.tensor(f"blk.{layer}.attn_qkv.weight", (3 * n, decoder.n_embd))
        return {
            name: Linear(f"blk.{layer}.attn_qkv.weight", decoder.n_embd, size, rows=RowSelection(i * n, size, 3 * n, 3 * n))
            for i, (name, size) in enumerate(zip(names, sizes, strict=True))
        }


Glm4Moe = Transformer.family(
    "glm4moe",
    "GLM 4.5: heads may be normed; the first layers have no experts.",
    rope_args={"sections": axes},
    attention_args={"has_head_norms": lambda decoder, layer: f"blk.{layer}.attn_q_norm.weight" in decoder.file.tensors},
    ffn_args={"norm": "post_attention_norm"},
    experts={"has_weights_scale": True, "fallback": Gating.SIGMOID, "norm": "post_attention_norm"},
    mtp_hidden="output",
)
