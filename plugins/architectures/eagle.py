"""EAGLE-3: a layer that drafts for another model, from hidden states of it.

The plan `encoder` makes one hidden state g of several of the target's layers' outputs for a token. The plan `main` is given
that and the next token, whose embedding its attention reads beside g, and predicts the token after it. Its layer's output for a
token is g in the next step.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test", and
llama.cpp, whose converter writes these files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from augury.blocks import Attention, Embedding, Integers, Layer, ModelPlan, Norm, Output
from augury.files.gguf import BORROWED, ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.keys import Keys

# llama.cpp's hidden state for the number after a target's last layer: of these the last layer's output, of those nothing, so
# that zeros stand for it, and of all others the input of the output's matrix. Converters never choose this number.
_BEFORE_NORM = ("gpt-oss", "mimo2", "step35", "deepseek4", "qwen4exp")
_UNTOLD = (
    *("hunyuan_vl", "lfm2", "llama", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "qwen3", "qwen3moe"),
)


class Eagle3(Architecture):
    """One layer, with an embedding and an output of its own or its target's."""

    name = "eagle3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, embedding=embedding_of(file))
        if decoder.n_layers != 1:
            decoder.keys.fail("block_count", decoder.n_layers, "1")
        n_embd, layers = decoder.n_embd, list[Layer]()
        hidden_norm: Norm | None = decoder.norm("blk.0.attn_norm_2")
        if decoder.keys.flag("norm_before_residual", default=False):
            layers, hidden_norm = [Layer(None, norm=hidden_norm)], None
        layers.append(Layer(_attention(decoder, hidden_norm), decoder.feed_forward(0, has_scales=True)))
        n_seen = decoder.keys.count("target_hidden_size")
        seen = _features(decoder)
        main = ModelPlan(
            cls.name,
            Embedding(f"{decoder.embedding}.weight", decoder.n_vocab, n_embd),
            tuple(layers),
            output_of(decoder),
            decoder.n_ctx_train,
            hidden_of=seen,
        )
        n_features = len(seen) * n_seen
        has_norm = decoder.keys.flag("norm_before_fc", default=False)
        made = Output(
            decoder.norm("enc.output_norm", n_features) if has_norm else None, decoder.linear("fc", n_features, n_embd)
        )
        given = Embedding(None, decoder.n_vocab, n_features)
        return {"main": main, "encoder": ModelPlan(cls.name, given, (), made, decoder.n_ctx_train)}


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
    numbers = decoder.file.get(decoder.keys.full("target_layers"), list[int])
    if not numbers or min(numbers) < 0:
        decoder.keys.fail("target_layers", numbers, "numbers of layers")
    return [(number, f"layer.{number - 1}" if number else "embedding") for number in numbers]


def _attention(decoder: Decoder, norm: Norm | None) -> Attention:
    (n_heads,), (n_kv_heads,), n_in = decoder.n_heads, decoder.n_kv_heads, 2 * decoder.n_embd
    return Attention(
        norm=norm,
        q=decoder.linear("blk.0.attn_q", n_in, n_heads * decoder.head_dim),
        k=decoder.linear("blk.0.attn_k", n_in, n_kv_heads * decoder.head_dim),
        v=decoder.linear("blk.0.attn_v", n_in, n_kv_heads * decoder.value_dim),
        o=decoder.linear("blk.0.attn_output", n_heads * decoder.value_dim, decoder.n_embd),
        **decoder.heads(0),
        scale=1.0 / math.sqrt(decoder.head_dim),
        rope=decoder.rope(is_interleaved=True, has_factors=True),
        embedded_norm=decoder.norm("blk.0.attn_norm"),
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
