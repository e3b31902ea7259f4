"""EAGLE-3: a layer that drafts for another model, from hidden states of it.

The plan `encoder` makes one hidden state g of several of the target's layers' outputs for a token. The plan `main` is given
that and the next token, whose embedding its attention reads beside g, and predicts the token after it. Its layer's output for a
token is g in the next step. P-EAGLE writes all tokens with one pass: a mask stands for each drafted one, and the plan `mask`
makes the g of all masks.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training" (arXiv 2602.01469), and llama.cpp, whose converter
writes files of EAGLE-3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from augury.blocks import Attention, DraftBlock, Embedding, Integers, Layer, ModelPlan, Output
from augury.errors import ModelFileError
from augury.files.gguf import BORROWED, ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.keys import Keys

# llama.cpp's hidden state for the number after a target's last layer: of these the last layer's output, of those nothing, so
# that zeros stand for it, and of all others the input of the output's matrix. Converters never choose this number.
_BEFORE_NORM = ("gpt-oss", "mimo2", "step35", "deepseek4", "qwen4exp")
_MASK = "tokenizer.ggml.mask_token_id"
_UNTOLD = (
    *("hunyuan_vl", "lfm2", "llama", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "qwen3", "qwen3moe"),
)


class Eagle3(Architecture):
    """A layer or several, with an embedding and an output of its own or its target's.

    Files of llama.cpp's have one layer, no norms of heads, no windows, and give on what the output's norm reads.
    """

    name = "eagle3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, embedding=embedding_of(file))
        n_embd, layers = decoder.n_embd, list[Layer]()
        if is_normed := decoder.keys.flag("norm_before_residual", default=False):
            layers.append(Layer(None, norm=decoder.norm("blk.0.attn_norm_2")))
        for i, window in enumerate(decoder.windows(0)):
            attention = _attention(decoder, i, window, is_normed=is_normed and i == 0)
            layers.append(Layer(attention, decoder.feed_forward(i, has_scales=True)))
        output = output_of(decoder)
        if decoder.keys.flag("norm_output", default=False):  # it gives on what the output's weights read
            layers.append(Layer(None, norm=output.norm))
            output = attrs.evolve(output, norm=None)
        seen = _features(decoder)
        n_in = len(seen) * decoder.keys.count("target_hidden_size")
        encoder = _encoder(decoder, len(seen), n_in)
        plans = {"encoder": encoder}
        if has_masks := "mask_hidden.weight" in file.tensors:
            plans["mask"] = attrs.evolve(encoder, embedding=Embedding("mask_hidden.weight", 1, n_in))
        main = ModelPlan(
            cls.name,
            Embedding(f"{decoder.embedding}.weight", decoder.n_vocab, n_embd),
            tuple(layers),
            output,
            decoder.n_ctx_train,
            hidden_of=seen,
            block=DraftBlock(decoder.keys.count("block_size"), mask_of(decoder), 0, None) if has_masks else None,
        )
        return {"main": main, **plans}


def mask_of(decoder: Decoder) -> int:
    """The token that stands for drafted ones."""
    if not 0 <= (mask := decoder.file.get(_MASK, int)) < decoder.n_vocab:
        raise ModelFileError(f"{decoder.file.path}: metadata key {_MASK!r} is {mask}, expected a token below {decoder.n_vocab}")
    return mask


def _encoder(decoder: Decoder, n: int, n_in: int) -> ModelPlan:
    """Makes one hidden state of n of the target's, which are normed all together or each by itself, if at all."""
    norm = None
    if "enc.fc_norm.weight" in decoder.file.tensors:
        norm = decoder.norm("enc.fc_norm", n_in // n, shape=(n, n_in // n))
    elif decoder.keys.flag("norm_before_fc", default=False):
        norm = decoder.norm("enc.output_norm", n_in)
    made = Output(norm, decoder.linear("fc", n_in, decoder.n_embd))
    return ModelPlan(Eagle3.name, Embedding(None, decoder.n_vocab, n_in), (), made, decoder.n_ctx_train)


def embedding_of(file: ModelFile) -> str:
    """Its own, or the target's, whose output's weights may serve as its embedding."""
    if "token_embd.weight" in file.tensors:
        return "token_embd"
    tensors = () if file.target is None else file.target.tensors
    is_tied = "token_embd.weight" not in tensors and "output.weight" in tensors
    return f"{BORROWED}{'output' if is_tied else 'token_embd'}"


def _features(decoder: Decoder) -> tuple[str, ...]:
    """The target's features that the head reads, by name; the file numbers layers by their inputs."""
    target, after_last = decoder.file.target, dict[int, str]()
    if target is not None and target.architecture not in _BEFORE_NORM:
        keys = Keys(target)
        n_layers = keys.count("block_count") - keys.n_mtp()
        after_last[n_layers] = "" if target.architecture in _UNTOLD else "output"
    return tuple(after_last.get(number, name) for number, name in inputs_of_layers(decoder))


def inputs_of_layers(decoder: Decoder) -> list[tuple[int, str]]:
    """The numbers that a file has of the target's layers, and the features that are the inputs of these."""
    target, key = decoder.file.target, "target_layers"
    if key not in decoder.keys and target is not None:
        keys = Keys(target)
        n_layers = keys.count("block_count") - keys.n_mtp()
        numbers = [2, n_layers // 2, n_layers - 3]  # the original's choice
    else:
        numbers = decoder.file.get(decoder.keys.full(key), list[int])
    if not numbers or min(numbers) < 0:
        decoder.keys.fail(key, numbers, "numbers of layers")
    return [(number, f"layer.{number - 1}" if number else "embedding") for number in numbers]


def _attention(decoder: Decoder, layer: int, window: int | None, *, is_normed: bool) -> Attention:
    """The attention of a layer, which reads the embedding, too, if it has a norm for what it reads beside that.

    Args:
        decoder: Of the file.
        layer: From 0.
        window: How many positions a token sees; None: all.
        is_normed: Whether what it reads beside the embedding is normed already.
    """
    at, has_head_norms = f"blk.{layer}", f"blk.{layer}.attn_q_norm.weight" in decoder.file.tensors
    rope = decoder.rope(is_interleaved=True, has_factors=True)
    if f"{at}.attn_norm_2.weight" not in decoder.file.tensors and layer > 0:
        return decoder.attention(layer, rope, has_head_norms=has_head_norms, window=window)
    n_heads, n_kv_heads, n_in = decoder.n_heads[layer], decoder.n_kv_heads[layer], 2 * decoder.n_embd
    q_norm, k_norm = (decoder.norm(f"{at}.attn_{part}_norm", decoder.head_dim) if has_head_norms else None for part in "qk")
    return Attention(
        norm=None if is_normed else decoder.norm(f"{at}.attn_norm_2"),
        q=decoder.linear(f"{at}.attn_q", n_in, n_heads * decoder.head_dim),
        k=decoder.linear(f"{at}.attn_k", n_in, n_kv_heads * decoder.head_dim),
        v=decoder.linear(f"{at}.attn_v", n_in, n_kv_heads * decoder.value_dim),
        o=decoder.linear(f"{at}.attn_output", n_heads * decoder.value_dim, decoder.n_embd),
        **decoder.heads(layer),
        scale=1.0 / math.sqrt(decoder.head_dim),
        rope=rope,
        q_norm=q_norm,
        k_norm=k_norm,
        window=window,
        embedded_norm=decoder.norm(f"{at}.attn_norm"),
    )


def output_of(decoder: Decoder, *, may_be_tied: bool = False, factor: float = 1.0, softcap: float | None = None) -> Output:
    """Its own, of all tokens or of the ones that it names, or the target's.

    Args:
        decoder: Of the file.
        may_be_tied: Whether its own embedding serves as output rather than the target's.
        factor: The factor of the logits.
        softcap: The soft cap of the logits.
    """
    file, name, n_out = decoder.file, "output", decoder.n_vocab
    tokens = None
    if "d2t" in file.tensors:
        (n_out,) = file.tensor("d2t").shape
        tokens = Integers("d2t", (n_out,))
        file.integers("d2t", (n_out,), decoder.n_vocab)
    if may_be_tied and {"token_embd.weight", "output.weight"} & file.tensors.keys() == {"token_embd.weight"}:
        name = "token_embd"
    elif "output.weight" not in file.tensors:
        target = file.target
        is_tied = target is not None and "output.weight" not in target.tensors
        name = f"{BORROWED}{'token_embd' if is_tied else 'output'}"
    weight = decoder.linear(name, decoder.n_embd, n_out, factor=factor)
    return Output(decoder.norm("output_norm"), weight, softcap, tokens=tokens)
