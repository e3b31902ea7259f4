"""Llama 1 to 3, and dense families that differ from it in a few words: most that have RMS norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from augury.blocks import (
    Activation,
    Attention,
    FeedForward,
    Gating,
    Layer,
    Linear,
    ModelPlan,
    Projection,
    Rope,
    RowSelection,
    Temperature,
)
from augury.errors import ModelFileError
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.rope import MAX_POSITIONS, axes, base_of, plain
from augury.plugins.architectures.transformer import Transformer, slopes

_ROPE: dict[str, Any] = {"is_interleaved": True, "has_factors": True}
_EXPERTS: dict[str, Any] = {"gating": Gating.SOFTMAX, "is_normalised": True, "has_scales": True}  # Mixtral's
_N_LAYERS_7B, _N_LAYERS_13B = 32, 40  # of Baichuan, whose files do not say which positions they have
_N_LAYERS_32B = 64  # of EXAONE 4: this size alone has windows; files of others may state one, which means nothing
_MOST_CONSTANT = 1e6  # of xIELU


class Llama(Transformer):
    """Pre-norm attention with interleaved rope, into which order converters permute q and k; gated feed-forward.

    The window that files of the first Mistral may state is not used, as llama.cpp does not.
    """

    name = "llama"
    rope_args = _ROPE
    ffn_args = {"has_scales": True}
    experts = _EXPERTS
    mtp_hidden = "output"


def _growing_queries(decoder: Decoder, _: int) -> Mapping[str, Any]:
    if not (scale := decoder.keys.number("attention.temperature_scale", 0.0)):
        return {}
    period = decoder.keys.count("rope.scaling.original_context_length", decoder.n_ctx_train, most=MAX_POSITIONS)
    return {"temperature": Temperature(scale, period)}


Mistral3 = Transformer.family(
    "mistral3",
    "Queries that grow with the position beyond the original context.",
    rope_args={**_ROPE, "yarn_keys": ("beta_fast", "beta_slow", "log_multiplier")},
    attention_args=_growing_queries,
    ffn_args={"has_scales": True},
    experts=_EXPERTS,
)
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
PaddleOcr = Transformer.family(
    "paddleocr",
    "The language model of PaddleOCR, as Ernie with positions on the axes of an image.",
    decoder_args=Ernie.decoder_args,
    rope_args={"sections": "blocks"},
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
BitNet = Transformer.family(
    "bitnet",
    "Norms before the last matrix of attention and of the feed-forward.",
    attention_args={
        "out_norm": lambda decoder, layer: decoder.norm(
            f"blk.{layer}.attn_sub_norm", decoder.n_heads[layer] * decoder.value_dim
        )
    },
    ffn_args={
        "hidden_norm": lambda decoder, layer: decoder.norm(f"blk.{layer}.ffn_sub_norm", decoder.n_ff[layer]),
        "has_scales": True,
    },
    output_args={"is_tied": True},
)
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


Qwen = Transformer.family(
    "qwen",
    "As Qwen2; its files state twice the size of the feed-forward.",
    ffn_args={"n_ff": lambda decoder, layer: decoder.n_ff[layer] // 2},
)
Qwen2 = Transformer.family("qwen2", "Pre-norm attention with biased q, k and v, gated feed-forward.")
Qwen2VL = Transformer.family(
    "qwen2vl",
    "As Qwen2, with positions on the axes of an image; texts have one.",
    decoder_args={"least_eps": 1e-30},  # llama.cpp reads none, and writes 0
    rope_args={"sections": "blocks"},
    output_args={"has_bias": False},
)
Qwen3 = Transformer.family(
    "qwen3",
    "Pre-norm attention with normed query and key heads, gated feed-forward.",
    attention_args={"has_head_norms": True},
    ffn_args={"has_scales": True},
)
Qwen3VL = Transformer.family(
    "qwen3vl",
    "As Qwen3, with positions on the axes of an image; texts have one.",
    rope_args={"sections": "turns"},
    attention_args={"has_head_norms": True},
)
Qwen3TTS = Qwen3VL.family("qwen3tts", "The language model of Qwen3-TTS.")
Phi3 = Transformer.family(
    "phi3",
    "Fused matrices and LongRoPE. It attends to everything without regard to its window, as in llama.cpp.",
    rope_args={"has_factors": True},
    ffn_args={"gate": "fused"},
)
Olmo2 = Transformer.family(
    "olmo2",
    "Norms after attention and feed-forward alone; queries and keys are normed over all heads; OLMo 3 has windows.",
    windows={"period": 4},
    local_rope=lambda decoder, _: Rope(decoder.rope(is_scaled=False).frequencies),
    attention_args={"norm": None, "has_joint_norms": True, "has_post_norm": True},
    ffn_args={"norm": None, "has_post_norm": True},
)
OpenElm = Transformer.family(
    "openelm",
    "Normed heads; how many differs by layer.",
    attention_args={"has_head_norms": True, "has_scales": False},
    output_args={"is_tied": True},
)
Exaone = Transformer.family("exaone", "As Llama.", rope_args={"has_factors": True})


class Exaone4(Transformer):
    """Norms after attention and feed-forward alone, normed heads; where there are windows, the other layers have no rope."""

    name = "exaone4"
    rope_args = {"has_factors": True}
    attention_args = {"norm": None, "has_head_norms": True, "has_post_norm": True}
    ffn_args = {"norm": None, "has_post_norm": True}
    mtp_hidden = "output"

    @classmethod
    def mixer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Attention:
        window, has_windows = None, decoder.n_layers == _N_LAYERS_32B
        if has_windows:  # those for further tokens are as the first one
            window = decoder.windows(4, default=4096)[layer if layer < decoder.n_layers else 0]
        turned = None if has_windows and window is None else rope
        return decoder.attention(layer, turned, window=window, **cls.attention_args)


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


def _of_text(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    """Queries, keys and values of one matrix, which has as many rows for each."""
    name, n, head_dim = f"blk.{layer}.attn_qkv.weight", decoder.n_heads[layer] * decoder.head_dim, decoder.head_dim
    sizes = (n, decoder.n_kv_heads[layer] * head_dim, decoder.n_kv_heads[layer] * head_dim)
    decoder.file.tensor(name, (3 * n, decoder.n_embd))
    linears = [Linear(name, decoder.n_embd, size, rows=RowSelection(i * n, size, 3 * n, 3 * n)) for i, size in enumerate(sizes)]
    return {"linears": linears}


CogVLM = Transformer.family(
    "cogvlm",
    "Its matrices for text; images have others.",
    rope=lambda decoder: Rope(plain(decoder.head_dim, 10000.0)),
    attention_args=_of_text,
)


def _grown_rope(decoder: Decoder) -> Rope:
    keys, base, head_dim = decoder.keys, base_of(decoder), decoder.head_dim
    if (alpha := keys.number("rope.scaling.alpha", 0.0, most=1e6)) and head_dim > 2:
        base *= alpha ** (head_dim / (head_dim - 2))
    return decoder.rope(base=base, has_factors=True, sections=axes(decoder))


HunyuanDense = Transformer.family(
    "hunyuan-dense",
    "Heads are normed after rope, whose base grows by a factor that files may state.",
    decoder_args={"may_have_experts": True},  # files may state one, which is the feed-forward itself
    rope=_grown_rope,
    attention_args={"has_head_norms": True, "is_rope_first": True},
)
HunyuanVL = HunyuanDense.family("hunyuan_vl", "The language model of Hunyuan-VL.")


def _plain_norms(decoder: Decoder, layer: int) -> Mapping[str, Any]:
    """Norms of heads, without the biases that a file may have."""
    names = ("q_norm", "k_norm")
    return {name: decoder.norm(f"blk.{layer}.attn_{name}", decoder.head_dim, has_bias=False) for name in names}


def _xielu(decoder: Decoder, layer: int) -> FeedForward:
    """A feed-forward without a gate, whose activation has four constants; files hold two of them before their softplus."""
    below, above, slope, eps = (_constant(decoder.file, name, layer) for name in ("alpha_n", "alpha_p", "beta", "eps"))
    constants = (slope + _softplus(below), _softplus(above), slope, eps)
    return decoder.feed_forward(layer, Activation.XIELU, constants=constants, gate=None, has_biases=False)


def _softplus(x: float) -> float:
    return x if x > 20.0 else math.log1p(math.exp(x))


def _constant(file: ModelFile, name: str, layer: int) -> float:
    """A constant of a layer: files state a number for all of them, or one for each."""
    key = f"xielu.{name}"
    stored = file.metadata.get(key)
    values = [file.get(key, float)] * (layer + 1) if isinstance(stored, float) else file.get(key, list[float])
    if layer >= len(values) or not abs(values[layer]) <= _MOST_CONSTANT:
        raise ModelFileError(f"{file.path}: metadata key {key!r} has no finite number for layer {layer}")
    return values[layer]


Apertus = Transformer.family(
    "apertus",
    "xIELU has constants for each layer, two of which are stored before their softplus.",
    rope_args={"has_factors": True},
    attention_args=_plain_norms,
    feed_forward=_xielu,
)
