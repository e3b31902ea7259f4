"""Gemma 1 to 4, their text models."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from augury import blocks
from augury.files.gguf import ModelFile
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture
from augury.plugins.architectures.rope import local_base, own_local_base
from augury.plugins.architectures.transformer import Transformer

_N_LAYERS_27B = {"gemma2": 46, "gemma3": 62}  # this size alone scales by E / H instead of D, and files do not say so


def _scale(decoder: Decoder, _layer: int) -> float:
    """The factor of q · k."""
    is_27b = decoder.n_layers == _N_LAYERS_27B[decoder.file.architecture]
    return 1.0 / math.sqrt(decoder.n_embd // decoder.n_heads[0] if is_27b else decoder.head_dim)


class Gemma(Transformer):
    """Embeddings scaled by sqrt(E), GELU gates; its norms multiply by 1 + w, and files hold the sum."""

    name = "gemma"
    attention_args = {"scale": lambda decoder, _: 1.0 / math.sqrt(decoder.value_dim)}
    ffn_args = {"activation": blocks.Activation.GELU_HALF}
    embedding_args = {"scale": lambda decoder: math.sqrt(decoder.n_embd)}
    output_args = {"is_tied": True}


Gemma2 = Gemma.family(
    "gemma2",
    "Norms before and after attention and feed-forward, soft caps; every other layer sees a window only.",
    local_rotary={"base": local_base},
    windows={"period": 2, "default": 4096},
    attention_args={
        "has_post_norm": True,
        "scale": _scale,
        "softcap": lambda decoder, _: decoder.keys.positive("attn_logit_softcapping", 50.0),
    },
    ffn_args={**Gemma.ffn_args, "has_post_norm": True},
    output_args={"is_tied": True, "softcap": lambda decoder: decoder.keys.positive("final_logit_softcapping", 30.0)},
)
Gemma3 = Gemma.family(
    "gemma3",
    "Normed heads; five layers of six see a window only, with a rope of their own.",
    local_rotary={"base": own_local_base, "is_scaled": False},
    windows={"period": 6},
    attention_args={
        "has_head_norms": True,
        "has_post_norm": True,
        "scale": _scale,
    },  # llama.cpp reads no `attention.scale` here
    ffn_args=Gemma2.ffn_args,
    output_args={"softcap": lambda decoder: decoder.keys.number("final_logit_softcapping", 0.0) or None},
)


class Gemma4(Gemma):
    """Layers with a window have heads of another size; values are normed; a mixture stands beside the feed-forward.

    Its assistants attend to the caches of the last local layer and the last wide one.
    """

    name = "gemma4"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, blocks.ModelPlan]:
        decoder = Decoder(file, may_have_experts=True)
        keys, (local, local_rope) = decoder.keys, cls._local(decoder)
        n_inputs = keys.count("embedding_length_per_layer_input", 0, least=0)
        n_kept = keys.count("block_count") - keys.count("attention.shared_kv_layers", 0, least=0)
        wide_rope = decoder.rope(has_factors=True)
        layers: list[blocks.Layer] = []
        windows = decoder.windows(None, is_required=True)
        for layer, window in enumerate(windows):
            sizes, rope = (decoder, wide_rope) if window is None else (local, local_rope)
            source = None
            if layer >= n_kept:
                kept = n_kept - (1 if window is None else 2)
                if kept < 0 or windows[kept] != window:
                    keys.fail("attention.shared_kv_layers", decoder.n_layers - n_kept, "a local and a wide layer before these")
                source = kept * (2 if n_inputs else 1)
            attention = cls._attention(sizes, layer, rope, window, source, layers)
            scale = f"blk.{layer}.layer_output_scale.weight"
            factor = float(decoder.values(scale, 1)[0]) if scale in file.tensors else 1.0
            layers.append(blocks.Layer(attention, cls.feed_forward(decoder, layer), scale=1.0 if n_inputs else factor))
            if n_inputs:
                layers.append(blocks.Layer(None, cls._layer_input(decoder, layer, n_inputs), scale=factor))
        output = decoder.output(softcap=keys.number("final_logit_softcapping", 0.0) or None)
        plan = decoder.plan(layers, output=output, **cls.embedding(decoder))
        return {"main": attrs.evolve(plan, mtp=cls._assistant(file, plan))}

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> blocks.FeedForward | blocks.MixtureOfExperts:
        """The feed-forward of a layer; of one with experts it is the shared one."""
        dense: dict[str, Any] = {"activation": blocks.Activation.GELU_HALF, "has_biases": False, "has_scales": True}
        if not has_experts(decoder, layer):
            return decoder.feed_forward(layer, has_post_norm=True, **dense)
        after_dense, after_experts = (decoder.norm(f"blk.{layer}.post_ffw_norm_{i}") for i in (1, 2))
        return mixture(
            decoder,
            layer,
            gating=blocks.Gating.SOFTMAX,
            activation=blocks.Activation.GELU_HALF,
            is_normalised=True,
            norm="pre_ffw_norm_2",
            has_router_norm=True,
            has_scales=True,
            sum_norm=after_experts,
            shared=decoder.feed_forward(layer, post_norm=after_dense, **dense),
            has_post_norm=True,
        )

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        size = decoder.keys.count("embedding_length_per_layer_input", 0, least=0)
        if not size:
            return super().embedding(decoder)
        n, table = size * decoder.n_layers, "per_layer_token_embd.weight"
        decoder.file.tensor(table, (decoder.n_vocab, n))
        inputs = blocks.LayerInputs(
            table=blocks.Linear(table, n, decoder.n_vocab),
            projection=decoder.matrix("per_layer_model_proj", decoder.n_embd, n, factor=1.0 / math.sqrt(decoder.n_embd)),
            norm=decoder.norm("per_layer_proj_norm", size),
            table_scale=math.sqrt(size),
            scale=1.0 / math.sqrt(2.0),
        )
        return {**super().embedding(decoder), "layer_inputs": inputs}

    @staticmethod
    def _local(decoder: Decoder) -> tuple[Decoder, blocks.Rope]:
        """The sizes of layers with a window, and their rope."""
        keys, local = decoder.keys, copy.copy(decoder)
        local.head_dim, local.value_dim = (keys.count(f"attention.{part}_length_swa") for part in ("key", "value"))
        local.n_rot = keys.count("rope.dimension_count_swa", decoder.n_rot, least=2, most=local.head_dim)
        if local.n_rot % 2:
            keys.fail("rope.dimension_count_swa", local.n_rot, "an even number")
        return local, local.rope(base=own_local_base(decoder), is_scaled=False)

    @classmethod
    def _assistant(cls, file: ModelFile, plan: blocks.ModelPlan) -> tuple[blocks.MtpLayer, ...]:
        """The assistant of a model, where a file of one was given beside it.

        The tokens that it drafts are all at the position after the text, of which the model keeps nothing yet. So they are
        computed one position before, in a window that is shorter by one, with queries that are turned further by one.

        Source: llama.cpp's `src/models/gemma4-assistant.cpp` and `common/speculative.cpp`.
        """
        name, embedding = f"{cls.name}-assistant", plan.embedding
        if f"{name}/nextn.pre_projection.weight" not in file.tensors or embedding.weight is None:
            return ()
        decoder = Decoder(file, architecture=name)
        keys, n_embd, (local, local_rope) = decoder.keys, decoder.n_embd, cls._local(decoder)
        if (n := keys.count("embedding_length_out")) != embedding.n_embd or decoder.n_vocab != embedding.n_vocab:
            found, expected = (
                f"{n}, and {decoder.n_vocab} tokens",
                f"{embedding.n_embd}, and {embedding.n_vocab}, as of the model",
            )
            keys.fail("embedding_length_out", found, expected)
        mixers = [(i, layer.mixer) for i, layer in enumerate(plan.layers) if isinstance(layer.mixer, blocks.Attention)]
        sources = {mixer.window is None: i if mixer.source is None else mixer.source for i, mixer in mixers[-2:]}
        wide_rope, layers = decoder.rope(has_factors=True), []
        for layer, window in enumerate(decoder.windows(None, is_required=True)):
            if (is_wide := window is None) not in sources:
                keys.fail(
                    "attention.sliding_window_pattern",
                    f"{not is_wide} of layer {layer}",
                    "a local and a wide one at the model's end",
                )
            sizes, rope = (decoder, wide_rope) if window is None else (local, local_rope)
            seen = None if window is None else window - 1
            attention = cls._attention(sizes, layer, attrs.evolve(rope, ahead=1), seen, sources[is_wide], plan.layers)
            dense = decoder.feed_forward(layer, blocks.Activation.GELU_HALF, has_post_norm=True, has_biases=False)
            layers.append(
                blocks.Layer(attention, dense, scale=float(decoder.values(f"blk.{layer}.layer_output_scale.weight", 1)[0]))
            )
        table = blocks.Linear(embedding.weight, embedding.n_embd, embedding.n_vocab)
        before = decoder.matrix("nextn.pre_projection", 2 * embedding.n_embd, n_embd)
        after = decoder.matrix("nextn.post_projection", n_embd, embedding.n_embd)
        return (
            blocks.MtpLayer(
                blocks.Embedding(None, embedding.n_vocab, n_embd),
                blocks.AssistantInput(table, embedding.scale, before, embedding.n_embd),
                tuple(layers),
                attrs.evolve(decoder.output(is_tied=True, has_bias=False), given=after),
            ),
        )

    @classmethod
    def _layer_input(cls, decoder: Decoder, layer: int, size: int) -> blocks.LayerInput:
        """The block of a layer's inputs."""
        at = f"blk.{layer}"
        return blocks.LayerInput(
            gate=decoder.matrix(f"{at}.inp_gate", decoder.n_embd, size),
            o=decoder.matrix(f"{at}.proj", size, decoder.n_embd),
            activation=blocks.Activation.GELU_HALF,
            post_norm=decoder.norm(f"{at}.post_norm"),
            index=layer,
            n_layers=decoder.n_layers,
        )

    @classmethod
    def _attention(
        cls,
        decoder: Decoder,
        layer: int,
        rope: blocks.Rope,
        window: int | None,
        source: int | None,
        layers: Sequence[blocks.Layer],
    ) -> blocks.Attention:
        """The attention of a layer, whose values may be its keys as they are before norm and rope, or another layer's."""
        at, size, n_kv_heads = f"blk.{layer}", decoder.head_dim, decoder.n_kv_heads[layer]
        if decoder.value_dim != size:
            decoder.keys.fail("attention.value_length", decoder.value_dim, f"{size}, as keys")
        has_values = any(f"{at}.{name}.weight" in decoder.file.tensors for name in ("attn_v", "attn_qkv"))
        kept, linears = None if source is None else layers[source].mixer, list[blocks.Linear]()
        if isinstance(kept, blocks.Attention):
            if kept.n_kv_heads != n_kv_heads:
                decoder.keys.fail("attention.head_count_kv", n_kv_heads, f"{kept.n_kv_heads}, as the layer whose keys it reads")
            q = decoder.linear(f"{at}.attn_q", decoder.n_embd, decoder.n_heads[layer] * size, has_bias=False)
            linears = [q, kept.k, kept.v]
        return decoder.attention(
            layer,
            rope,
            scale=1.0,
            names=("attn_q", "attn_k", "attn_v" if has_values else "attn_k"),
            linears=linears,
            q_norm=decoder.norm(f"{at}.attn_q_norm", size),
            k_norm=kept.k_norm if isinstance(kept, blocks.Attention) else decoder.norm(f"{at}.attn_k_norm", size),
            v_norm=decoder.plain_norm(size),
            has_post_norm=True,
            has_biases=False,
            has_output_bias=False,
            window=window,
            source=source,
        )
