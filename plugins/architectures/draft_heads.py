"""Models that draft for another one, from hidden states of it: EAGLE-3, P-EAGLE, DFlash, DFlash2, DSpark and Domino.

Source: llama.cpp, whose converter writes files of EAGLE-3 and DFlash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from augury import blocks
from augury.errors import ModelFileError, UnsupportedError
from augury.files.gguf import BORROWED, ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.tensors import Keys

# llama.cpp's hidden state for the number after a target's last layer: of these the last layer's output, of those nothing, so
# that zeros stand for it, and of all others the input of the output's matrix. Converters never choose this number.
_BEFORE_NORM = ("gpt-oss", "mimo2", "step35", "deepseek4", "qwen4exp")
_MASK = "tokenizer.ggml.mask_token_id"
_UNTOLD = (
    *("hunyuan_vl", "lfm2", "llama", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "qwen3", "qwen3moe"),
)
_SIZE = 16  # of a block, where the file does not say it
_MOST_TAPS = 64
_MARKOV = "markov_head_type"
_UNIT = "prefix_gru.weight"  # that only Domino's heads have


class Eagle3(Architecture):
    """A layer or several, with an embedding and an output of its own or its target's.

    The plan `encoder` makes one hidden state g of several of the target's layers' outputs for a token. The plan `main` is given
    that and the next token, whose embedding its attention reads beside g, and predicts the token after it. Its layer's output
    for a token is g in the next step. P-EAGLE writes all tokens with one pass: a mask stands for each drafted one, and the plan
    `mask` makes the g of all masks. Files of llama.cpp's have one layer, no norms of heads, no windows, and give on what the
    output's norm reads.

    Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
    Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training" (arXiv 2602.01469).
    """

    name = "eagle3"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, blocks.ModelPlan]:
        decoder = Decoder(file, embedding=embedding_of(file))
        n_embd, layers = decoder.n_embd, list[blocks.Layer]()
        if is_normed := decoder.keys.flag("norm_before_residual", default=False):
            layers.append(blocks.Layer(None, norm=decoder.norm("blk.0.attn_norm_2")))
        for i, window in enumerate(decoder.windows(0)):
            attention = _attention(decoder, i, window, is_normed=is_normed and i == 0)
            layers.append(blocks.Layer(attention, decoder.feed_forward(i, has_scales=True)))
        output = output_of(decoder)
        if decoder.keys.flag("norm_output", default=False):  # it gives on what the output's weights read
            layers.append(blocks.Layer(None, norm=output.norm))
            output = attrs.evolve(output, norm=None)
        seen = _features(decoder)
        n_in = len(seen) * decoder.keys.count("target_hidden_size")
        encoder = _encoder(decoder, len(seen), n_in)
        plans = {"encoder": encoder}
        if has_masks := "mask_hidden.weight" in file.tensors:
            plans["mask"] = attrs.evolve(encoder, embedding=blocks.Embedding("mask_hidden.weight", 1, n_in))
        main = blocks.ModelPlan(
            cls.name,
            blocks.Embedding(f"{decoder.embedding}.weight", decoder.n_vocab, n_embd),
            tuple(layers),
            output,
            decoder.n_ctx_train,
            hidden_of=seen,
            block=blocks.DraftBlock(decoder.keys.count("block_size"), mask_of(decoder), 0, None) if has_masks else None,
        )
        return {"main": main, **plans}


def mask_of(decoder: Decoder) -> int:
    """The token that stands for drafted ones."""
    if not 0 <= (mask := decoder.file.get(_MASK, int)) < decoder.n_vocab:
        raise ModelFileError(f"{decoder.file.path}: metadata key {_MASK!r} is {mask}, expected a token below {decoder.n_vocab}")
    return mask


def _encoder(decoder: Decoder, n: int, n_in: int) -> blocks.ModelPlan:
    """Makes one hidden state of n of the target's, which are normed all together or each by itself, if at all."""
    norm = None
    if "enc.fc_norm.weight" in decoder.file.tensors:
        norm = decoder.norm("enc.fc_norm", n_in // n, shape=(n, n_in // n))
    elif decoder.keys.flag("norm_before_fc", default=False):
        norm = decoder.norm("enc.output_norm", n_in)
    made = blocks.Output(norm, decoder.linear("fc", n_in, decoder.n_embd))
    return blocks.ModelPlan(Eagle3.name, blocks.Embedding(None, decoder.n_vocab, n_in), (), made, decoder.n_ctx_train)


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


def _attention(decoder: Decoder, layer: int, window: int | None, *, is_normed: bool) -> blocks.Attention:
    """The attention of a layer, which reads the embedding, too, if it has a norm for what it reads beside that.

    Args:
        window: How many positions a token sees; None: all.
        is_normed: Whether what it reads beside the embedding is normed already.
    """
    at, has_head_norms = f"blk.{layer}", f"blk.{layer}.attn_q_norm.weight" in decoder.file.tensors
    rope = decoder.rope(is_interleaved=True, has_factors=True)
    if f"{at}.attn_norm_2.weight" not in decoder.file.tensors and layer > 0:
        return decoder.attention(layer, rope, has_head_norms=has_head_norms, window=window)
    n_heads, n_kv_heads = decoder.n_heads[layer], decoder.n_kv_heads[layer]
    sizes = {"q": n_heads * decoder.head_dim, "k": n_kv_heads * decoder.head_dim, "v": n_kv_heads * decoder.value_dim}
    return decoder.attention(
        layer,
        rope,
        linears=[decoder.linear(f"{at}.attn_{part}", 2 * decoder.n_embd, n) for part, n in sizes.items()],
        norm=None if is_normed else "attn_norm_2",
        has_head_norms=has_head_norms,
        window=window,
        embedded_norm=decoder.norm(f"{at}.attn_norm"),
    )


def output_of(
    decoder: Decoder, *, may_be_tied: bool = False, factor: float = 1.0, softcap: float | None = None
) -> blocks.Output:
    """Its own, of all tokens or of the ones that it names, or the target's.

    Args:
        may_be_tied: Whether its own embedding serves as output rather than the target's.
        factor: The factor of the logits.
        softcap: The soft cap of the logits.
    """
    file, name, n_out = decoder.file, "output", decoder.n_vocab
    tokens = None
    if "d2t" in file.tensors:
        (n_out,) = file.tensor("d2t").shape
        tokens = blocks.Integers("d2t", (n_out,))
        file.integers("d2t", (n_out,), decoder.n_vocab)
    if may_be_tied and {"token_embd.weight", "output.weight"} & file.tensors.keys() == {"token_embd.weight"}:
        name = "token_embd"
    elif "output.weight" not in file.tensors:
        target = file.target
        is_tied = target is not None and "output.weight" not in target.tensors
        name = f"{BORROWED}{'token_embd' if is_tied else 'output'}"
    weight = decoder.linear(name, decoder.n_embd, n_out, factor=factor)
    return blocks.Output(decoder.norm("output_norm"), weight, softcap, tokens=tokens)


class DFlash(Architecture):
    """Layers that draft a block of tokens with one pass, with an embedding and an output of their own or their target's.

    The plan `encoder` makes one hidden state of several of the target's layers' outputs for a token. Each layer of the plan
    `main` keeps keys and values of these. Its inputs are the last token of the text, with masks in the places of the drafted
    tokens: all see each other and the text before. DSpark adds to the logits in each place the ones that the plan
    `transitions` has for the token before it, and its plan `confidence` gives how sure the choice is. Where its Markov head is
    gated or recurrent, `transitions` is given what `gate` makes of the place and of the row that `previous` has for the token.
    Domino has a recurrent state of all tokens before: `gate` is given the token's embedding, of `previous`, and the state
    before it; `projection` makes of the place and the state what `transitions` is given.
    DFlash2 has convolutions over the block, and judges the best tokens of each place anew: by the product of the rows of the
    plans `predecessor` and `successor` for the token before and for each of them, and of the place's output of `selector`.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036); "Domino: Decoupling
    Causal Modeling from Autoregressive Drafting in Speculative Decoding" (arXiv 2605.29707).
    """

    name = "dflash"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, blocks.ModelPlan]:
        decoder = Decoder(file, embedding=embedding_of(file), is_causal=False)
        keys, n_embd, n_vocab = decoder.keys, decoder.n_embd, decoder.n_vocab
        if (n_streams := keys.count("hyper_connection.count", 0, least=0)) > 0:
            raise UnsupportedError(f"{file.path}: a DFlash head with {n_streams} residual streams, which are not supported")
        seen = tuple(name for _, name in inputs_of_layers(decoder))
        scale, softcap = keys.number("logit_scale", 0.0) or 1.0, keys.number("final_logit_softcapping", 0.0) or None
        output = output_of(decoder, may_be_tied=True, factor=scale, softcap=softcap)
        further = _further(decoder, output)
        main = blocks.ModelPlan(
            cls.name,
            blocks.Embedding(f"{decoder.embedding}.weight", n_vocab, n_embd, _scale_of_embedding(decoder)),
            _layers(decoder),
            output,
            decoder.n_ctx_train,
            hidden_of=seen,
            block=_block(decoder, further),
        )
        given = blocks.Embedding(None, n_vocab, len(seen) * n_embd)
        encoder = blocks.ModelPlan(
            cls.name, given, (), blocks.Output(None, decoder.linear("fc", given.n_embd, n_embd)), decoder.n_ctx_train
        )
        return {"main": main, "encoder": encoder, **further}


def _scale_of_embedding(decoder: Decoder) -> float:
    """The factor of the embedding; that of a target whose embedding has one, where the head was trained on it as it is."""
    keys, target = decoder.keys, decoder.file.target
    is_scaled = keys.flag("has_target_scale", default=False) and target is not None and target.architecture.startswith("gemma")
    return keys.number("embedding_scale", 0.0) or (math.sqrt(decoder.n_embd) if is_scaled else 1.0)


def _block(decoder: Decoder, further: Mapping[str, blocks.ModelPlan]) -> blocks.DraftBlock:
    keys = decoder.keys
    begins = "transitions" in further and keys.flag("sample_from_anchor", default=True)
    return blocks.DraftBlock(
        size=keys.count("block_size", _SIZE, least=1 if begins else 2),
        mask=mask_of(decoder),
        n_unread=0 if begins else 1,
        norm=decoder.norm("enc.output_norm"),
        has_transitions="transitions" in further,
        n_selected=keys.count("selector_top_k", most=decoder.n_vocab) if "selector" in further else 0,
        markov=_markov(decoder),
        n_uncorrected=keys.count("n_uncorrected", 0, least=0),
        has_confidence="confidence" in further,
    )


def _markov(decoder: Decoder) -> str:
    """The kind of DSpark's Markov head, or Domino's in its place."""
    if (kind := decoder.keys.text(_MARKOV, "vanilla")) not in ("vanilla", "gated", "rnn", "domino"):
        decoder.keys.fail(_MARKOV, kind, "vanilla, gated, rnn or domino")
    return kind


def _layers(decoder: Decoder) -> tuple[blocks.Layer, ...]:
    keys, tensors = decoder.keys, decoder.file.tensors
    windows = decoder.windows(0)
    act = keys.text("hidden_act", "silu")
    if act not in ("silu", "gelu"):
        raise UnsupportedError(f"{decoder.file.path}: {keys.full('hidden_act')!r} is {act!r}; known are silu and gelu")
    layers = []
    for i, window in enumerate(windows):
        has_post_norm = f"blk.{i}.post_ffw_norm.weight" in tensors
        feed_forward = decoder.feed_forward(i, blocks.Activation(act), has_post_norm=has_post_norm, has_scales=True)
        attention = _block_attention(decoder, i, window)
        layer = blocks.Layer(
            _convolved(decoder, f"blk.{i}.attn_conv", attention), _convolved(decoder, f"blk.{i}.ffn_conv", feed_forward)
        )
        if f"blk.{i}.layer_output_scale.weight" in tensors:
            layer = attrs.evolve(layer, scale=float(decoder.values(f"blk.{i}.layer_output_scale.weight", 1)[0]))
        layers.append(layer)
    return tuple(layers)


def _convolved(
    decoder: Decoder, at: str, inner: blocks.Attention | blocks.FeedForward
) -> blocks.Attention | blocks.FeedForward | blocks.Convolved:
    """A block with the convolutions around it that DFlash2 has."""
    if f"{at}_base" not in decoder.file.tensors:
        return inner
    keys, n_embd = decoder.keys, decoder.n_embd
    n_taps, group = keys.count("conv_kernel_size", most=_MOST_TAPS), keys.count("conv_group_size")
    if n_embd % group:
        keys.fail("conv_group_size", group, f"a divisor of {n_embd}")
    base = decoder.vector(f"{at}_base", 2 * n_taps * n_embd, (2, n_taps, n_embd))
    return blocks.Convolved(inner, decoder.linear(f"{at}_proj", n_embd, 2 * n_taps * (n_embd // group)), base, n_taps)


def _block_attention(decoder: Decoder, layer: int, window: int | None) -> blocks.Attention:
    keys, tensors, at, head_dim = decoder.keys, decoder.file.tensors, f"blk.{layer}", decoder.head_dim
    of_values: dict[str, Any] = {}
    if f"{at}.attn_v.weight" not in tensors:
        if decoder.value_dim != head_dim:
            keys.fail("attention.value_length", decoder.value_dim, f"{head_dim}, since keys are values")
        of_values = {"names": ("attn_q", "attn_k", "attn_k"), "v_norm": blocks.Norm(None, head_dim, decoder.eps)}
    return decoder.attention(
        layer,
        decoder.rope(has_factors=True),
        scale=keys.number("attention.scale", 0.0) or None,
        has_head_norms=True,
        has_post_norm=f"{at}.post_attention_norm.weight" in tensors,
        factor=keys.number("attention.value_scale", 0.0) or 1.0,
        window=window,
        sinks=decoder.optional_vector(f"{at}.attn_sinks.weight", decoder.n_heads[layer]),
        is_causal=_is_causal(decoder, layer),
        **of_values,
    )


def _is_causal(decoder: Decoder, layer: int) -> bool:
    """Whether tokens of the block see no later ones; a file says it of all layers, or of each."""
    key = "attention.causal"
    if isinstance(decoder.file.metadata.get(decoder.keys.full(key)), np.ndarray):
        return decoder.flags(key, None)[layer]
    return decoder.keys.flag(key, default=False)


def _further(decoder: Decoder, output: blocks.Output) -> dict[str, blocks.ModelPlan]:
    """Further inputs of a place's choice: logits by tokens before, DSpark's confidence, or DFlash2's selector."""
    file, keys, n_vocab, weight = decoder.file, decoder.keys, decoder.n_vocab, output.weight
    if weight is None or not {"markov_w1.weight", "selector_hidden.weight", _UNIT} & file.tensors.keys():
        return {}

    def plan(embedding: blocks.Embedding, name: str, n_out: int, tokens: blocks.Integers | None = None) -> blocks.ModelPlan:
        made = blocks.Output(None, decoder.linear(name, embedding.n_embd, n_out), tokens=tokens)
        return blocks.ModelPlan(DFlash.name, embedding, (), made, decoder.n_ctx_train)

    def table(name: str) -> blocks.Embedding:
        rank = file.tensor(f"{name}.weight").shape[-1]
        file.tensor(f"{name}.weight", (n_vocab, rank))
        return blocks.Embedding(f"{name}.weight", n_vocab, rank)

    if _UNIT in file.tensors:
        n_state, n_given = file.tensor(_UNIT).shape[0] // 4, file.tensor("correction_down.weight").shape[0]
        token = blocks.Embedding(f"{decoder.embedding}.weight", n_vocab, decoder.n_embd, _scale_of_embedding(decoder))
        given = blocks.Embedding(None, 1, decoder.n_embd + n_state)
        return {
            "previous": plan(token, decoder.embedding, n_vocab),
            "gate": plan(given, "prefix_gru", 4 * n_state),
            "projection": plan(given, "correction_down", n_given),
            "transitions": plan(blocks.Embedding(None, 1, n_given), "correction_up", weight.n_out, output.tokens),
        }
    if "markov_w1.weight" not in file.tensors:
        tables = {each: table(f"selector_{each}") for each in ("predecessor", "successor")}
        plans = {name: plan(each, f"selector_{name}", n_vocab) for name, each in tables.items()}
        given = blocks.Embedding(None, tables["predecessor"].n_embd, decoder.n_embd)
        return {**plans, "selector": plan(given, "selector_hidden", tables["successor"].n_embd)}
    before, kind = table("markov_w1"), _markov(decoder)
    given, plans = before, {}
    if kind != "vanilla":
        plans["previous"] = plan(before, "markov_w1", n_vocab)
        n_states = 1 if kind == "gated" else 2  # of the token, and of all before
        of_gate = blocks.Embedding(None, 1, decoder.n_embd + n_states * before.n_embd)
        plans["gate"] = plan(of_gate, "markov_gate", (1 if kind == "gated" else 3) * before.n_embd)
        given = blocks.Embedding(None, 1, before.n_embd)
    plans["transitions"] = plan(given, "markov_w2", weight.n_out, output.tokens)
    if keys.flag("has_confidence_head", default=True) and "conf_proj.weight" in file.tensors:
        plans["confidence"] = plan(blocks.Embedding(None, 1, decoder.n_embd + before.n_embd), "conf_proj", 1)
    return plans
