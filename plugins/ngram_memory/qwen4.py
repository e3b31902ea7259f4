"""Qwen 4: gated hyper-connections around delta nets and attention to pooled blocks, and a memory of n-grams."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from augury.blocks import AllStreams, Attention, Convolution, Gating, Layer, Linear, ModelPlan, Norm, Output, Rope
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import mixture
from augury.plugins.architectures.linear_attention import Qwen35, gated_attention
from augury.plugins.ngram_memory.block import NgramMemory
from augury.plugins.pooling import PoolIndexer, Pooling
from augury.plugins.residual_streams import GatedHyperConnection

_MOST_TOKENS = 8  # of an n-gram


class Qwen4(Qwen35):
    """The mixtures of experts; the memory is a layer of its own, before the one that the file has it in."""

    name = "qwen4exp"

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = Decoder(file, least=0, may_have_experts=True)
        keys, rope = decoder.keys, cls.rope(decoder)
        memories = file.get(keys.full("ple.layers"), list[int], [])
        if len(memories) > 1:
            keys.fail("ple.layers", memories, "one layer at most")
        layers = []
        for layer in range(decoder.n_layers):
            if layer in memories:
                layers.append(Layer(cls.memory(decoder, layer)).connected(AllStreams()))
            layers.append(cls.layer(decoder, layer, rope))

        def read_by(name: str, output: Output) -> Output:
            return attrs.evolve(output, connection=cls.connection(decoder, name, writes=False))

        plan = decoder.plan(
            layers,
            output=read_by("output_hc", decoder.output(norm=None)),
            mtp=lambda layer: cls.layer(decoder, layer, rope),
            mtp_hidden="layer",
            mtp_output=lambda at, output: read_by(f"{at}.hc_head", output),
            n_streams=keys.count("hyper_connection.count", least=2),
        )
        return {"main": plan}

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        delta_net = cls.delta_net(decoder, layer, None) if cls.is_recurrent(decoder, layer) else None
        mixer = cls.attention(decoder, layer, rope) if delta_net is None else attrs.evolve(delta_net, has_sigmoid=True)
        experts = mixture(
            decoder, layer, gating=Gating.SOFTMAX, is_normalised=True, has_weights_scale=True, has_scales=True, norm=None
        )
        names = (f"blk.{layer}.hc_{part}" for part in ("attn", "ffn"))
        return Layer(mixer, experts).connected(*(cls.connection(decoder, name) for name in names))

    @classmethod
    def connection(cls, decoder: Decoder, name: str, *, writes: bool = True) -> GatedHyperConnection:
        """The hyper-connection of some tensors."""
        n = decoder.keys.count("hyper_connection.count", least=2)
        n_all, n_low = n * decoder.n_embd, decoder.keys.count("hyper_connection.low_rank")
        inject = decoder.matrix(f"{name}_inject", n_all, n, factor=1.0 / n) if writes else None
        return GatedHyperConnection(
            norm=_norm_of_streams(decoder, f"{name}_norm"),
            down=decoder.matrix(f"{name}_down", n_all, n_low, factor=1.0 / n),
            up=decoder.matrix(f"{name}_up", n_low, n_all),
            inject=inject,
        )

    @classmethod
    def attention(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Attention:
        """The attention of a layer, to chosen blocks where the file says how large these are."""
        keys = decoder.keys
        attention = gated_attention(decoder, layer, rope, None, has_biases=False)  # llama.cpp takes no note of any
        ratios = decoder.file.get(keys.full("attention.compress_ratios"), list[int], [0] * decoder.n_stored)
        if len(ratios) < (n := max(layer + 1, decoder.n_layers)):
            keys.fail("attention.compress_ratios", ratios, f"{n}, one per layer")
        if not (size := ratios[layer]):
            return attention
        n_chosen, at, n_embd = keys.count("attention.indexer.top_k"), f"blk.{layer}.indexer", decoder.n_embd
        if size < 2 or n_chosen % size:
            keys.fail("attention.compress_ratios", size, f"a divisor above 1 of {n_chosen}")
        n_heads, width = decoder.indexer_sizes()
        key = decoder.matrix(f"{at}.k_proj", n_embd, width)
        indexer = PoolIndexer(
            q=decoder.matrix(f"{at}.q_proj", n_embd, n_heads * width),
            keys=Pooling(size, key, norm=decoder.norm(f"{at}.k_norm", width), rope=rope),
            rope=rope,
            n_chosen=n_chosen // size,
            q_norm=decoder.norm(f"{at}.q_norm", width),
        )
        return attrs.evolve(attention, indexer=indexer)

    @classmethod
    def memory(cls, decoder: Decoder, layer: int) -> NgramMemory:
        """The memory of n-grams before a layer."""
        keys, at, n_embd, file = decoder.keys, f"blk.{layer}", decoder.n_embd, decoder.file
        n_all = keys.count("hyper_connection.count", least=2) * n_embd
        n_tokens, n_each = keys.count("ple.ngram_size", least=2, most=_MOST_TOKENS), keys.count("ple.heads_per_ngram")
        n_heads, width = (n_tokens - 1) * n_each, keys.count("embedding_length_per_layer_input")
        numbers = []
        for key, n in (("layer_multipliers", n_tokens), ("head_offsets", n_heads), ("head_vocab_sizes", n_heads)):
            found = file.get(keys.full(f"ple.{key}"), list[int])
            if len(found) < n or min(found[:n]) < (key == "head_vocab_sizes"):
                keys.fail(f"ple.{key}", found, f"{n} whole numbers, of at least 0, or 1 for sizes")
            numbers.append(tuple(found[:n]))
        multipliers, first, size = numbers
        name = "per_layer_token_embd.weight"
        n_rows = file.tensor(name).shape[0]
        if n_rows < max(map(sum, zip(first, size, strict=True))):
            keys.fail("ple.head_offsets", first, f"rows of the {n_rows} in tensor {name!r}")
        file.tensor(name, (n_rows, width))
        n_taps = keys.count("ple.conv_kernel")
        conv = decoder.check(Convolution(f"{at}.ple_conv1d.weight", n_all, n_taps, dilation=n_tokens))
        key_norm, query_norm, conv_norm = (
            _norm_of_streams(decoder, f"{at}.ple_norm_{each}") for each in ("key", "query", "conv")
        )
        return NgramMemory(
            table=Linear(name, width, n_rows),
            key=decoder.matrix(f"{at}.ple_key", n_heads * width, n_all),
            value=decoder.matrix(f"{at}.ple_value", n_heads * width, n_embd),
            key_norm=key_norm,
            query_norm=query_norm,
            conv_norm=conv_norm,
            conv=conv,
            multipliers=multipliers,
            first=first,
            size=size,
            eos=keys.count("ple.eos_token_id", least=0),
        )


def _norm_of_streams(decoder: Decoder, name: str) -> Norm:
    n = decoder.keys.count("hyper_connection.count", least=2)
    return decoder.norm(name, shape=(n, decoder.n_embd), has_bias=False)


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer Qwen 4."""
    return (Qwen4,)
