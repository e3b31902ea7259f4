"""Architectures that are stated in a few words, as differences from Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Literal, Self

from augury.blocks import Block, FeedForward, Layer, Linear, MixtureOfExperts, ModelPlan, Output, Rope, Vector
from augury.files.gguf import ModelFile
from augury.interfaces import Architecture
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import has_experts, mixture


class Transformer(Architecture):
    """Layers of attention and feed-forward, all alike: Llama's, except for a family's own fields.

    An argument that depends on the file is a function of its `Decoder`; those of a layer's blocks are given its number, too.

    Attributes:
        decoder_args: Arguments of `Decoder`.
        rope_args: Arguments of `Decoder.rope`; None: it has no rotary positions.
        local_rotary: The same for layers with a window; None: these have the rope of the others.
        windows: Arguments of `Decoder.windows`; None: every layer sees all positions.
        turns: Whether a layer has rotary positions, given its number; None: all have those that the model has.
        attention_args: Arguments of `Decoder.attention`, or a function that makes all of them.
        without_heads: Makes the mixer of a layer that has no key heads, given its number; None: all have attention.
        ffn_args: Arguments of `Decoder.feed_forward`.
        experts: Arguments of `mixture`, which stands in place of a feed-forward in layers with a router; None: none has one.
        embedding_args: Fields of the embedding beside its weight.
        output_args: Arguments of `Decoder.output`.
        mtp_hidden: The hidden state that its layers for further tokens read, see `MtpLayer`; None: it does without them.
    """

    decoder_args: ClassVar[Mapping[str, Any]] = {}
    rope_args: ClassVar[Mapping[str, Any] | None] = {}
    local_rotary: ClassVar[Mapping[str, Any] | None] = None
    windows: ClassVar[Mapping[str, Any] | None] = None
    turns: ClassVar[Callable[[Decoder, int], bool] | None] = None
    attention_args: ClassVar[Mapping[str, Any] | Callable[[Decoder, int], Mapping[str, Any]]] = {}
    without_heads: ClassVar[Callable[[Decoder, int], Block] | None] = None
    ffn_args: ClassVar[Mapping[str, Any]] = {}
    experts: ClassVar[Mapping[str, Any] | None] = None
    embedding_args: ClassVar[Mapping[str, Any]] = {}
    output_args: ClassVar[Mapping[str, Any]] = {}
    mtp_hidden: ClassVar[Literal["output", "layer"] | None] = None

    @classmethod
    def family(cls, family: str, about: str, **fields: Any) -> type[Self]:
        """A family that differs from this one in fields, or in methods, which are functions without the class.

        >>> Transformer.family("tidal", "Heads are normed.", attention_args={"has_head_norms": True}).name
        'tidal'
        """
        if unknown := [field for field in fields if not hasattr(cls, field)]:
            raise TypeError(f"{family} has a field {unknown[0]!r}, which {cls.__name__} does not know")
        return type(family, (cls,), {"name": family, "__doc__": about, "__module__": cls.__module__, **fields})

    @classmethod
    def plans(cls, file: ModelFile) -> Mapping[str, ModelPlan]:
        decoder = cls.decoder(file)
        rope = cls.rope(decoder)
        layers = [cls.layer(decoder, layer, rope) for layer in range(decoder.n_layers)]
        mtp = None if cls.mtp_hidden is None else lambda layer: cls.layer(decoder, layer, rope)
        others = {"output": cls.output(decoder), **cls.embedding(decoder)}
        mtp_args: Mapping[str, Any] = {"mtp_hidden": cls.mtp_hidden or "output", "mtp_output": partial(cls.mtp_output, decoder)}
        return {"main": decoder.plan(layers, mtp=mtp, **mtp_args, **others)}

    @classmethod
    def mtp_output(cls, decoder: Decoder, at: str, output: Output) -> Output:  # noqa: ARG003 - as `Decoder.plan` calls it
        """The output of a layer for further tokens, by its tensors' prefix, of the model's with its own norm and weights."""
        return output

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        """The sizes of a file."""
        return Decoder(file, **{"may_have_experts": cls.experts is not None, **cls.decoder_args})

    @classmethod
    def rope(cls, decoder: Decoder) -> Rope | None:
        """The rotary positions of all layers."""
        return None if cls.rope_args is None else decoder.rope(**of_file(cls.rope_args, decoder))

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:
        """A layer, from 0."""
        return Layer(cls.mixer(decoder, layer, rope), cls.feed_forward(decoder, layer))

    @classmethod
    def mixer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Block | tuple[Block, ...]:
        """The attention of a layer, or what stands in its place."""
        if cls.without_heads is not None and not decoder.n_kv_heads[layer]:
            return cls.without_heads(decoder, layer)
        window = None if cls.windows is None else decoder.windows(**cls.windows)[layer]
        turned = rope if window is None else cls.local_rope(decoder, rope)
        turned = turned if cls.turns is None or cls.turns(decoder, layer) else None
        return decoder.attention(layer, turned, **{"window": window, **of_file(cls.attention_args, decoder, layer)})

    @classmethod
    def local_rope(cls, decoder: Decoder, rope: Rope | None) -> Rope | None:
        """The rotary positions of layers with a window, given those of the others."""
        return rope if cls.local_rotary is None else decoder.rope(**of_file(cls.local_rotary, decoder))

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer."""
        if cls.experts is not None and has_experts(decoder, layer):
            return mixture(decoder, layer, **of_file(cls.experts, decoder, layer))
        return decoder.feed_forward(layer, **of_file(cls.ffn_args, decoder, layer))

    @classmethod
    def embedding(cls, decoder: Decoder) -> Mapping[str, Any]:
        """The embedding's fields beside its weight."""
        return of_file(cls.embedding_args, decoder)

    @classmethod
    def output(cls, decoder: Decoder) -> Output:
        """The last block."""
        return decoder.output(**of_file(cls.output_args, decoder))


def of_file(arguments: Mapping[str, Any] | Callable[..., Mapping[str, Any]], *given: Any) -> Mapping[str, Any]:
    """Arguments, with the results of functions in their places."""
    if callable(arguments):
        return arguments(*given)
    return {name: each(*given) if isinstance(each, FunctionType) else each for name, each in arguments.items()}


def stated(key: str, default: float | None = 0.0, otherwise: float | None = None) -> Callable[..., float | None]:
    """An argument that is the number of a key, which is required if there is no default; `otherwise` where that is 0."""
    return lambda decoder, *_: decoder.keys.number(key, default) or otherwise


def own_norms(decoder: Decoder, layer: int, *, are_optional: bool = False) -> dict[str, Any]:
    """Arguments of `Decoder.attention`: norms of queries and keys whose heads have weights of their own."""
    size, heads = decoder.head_dim, {"q_norm": decoder.n_heads[layer], "k_norm": decoder.n_kv_heads[layer]}
    names = {part: f"blk.{layer}.attn_{part}" for part in heads}
    found = [part for part in heads if not are_optional or f"{names[part]}.weight" in decoder.file.tensors]
    return {part: decoder.norm(names[part], size, shape=(heads[part], size)) for part in found}


def sinks(decoder: Decoder, layer: int, *, are_optional: bool = False) -> Vector | None:
    """Scores of query heads that take part in softmax without a value."""
    made = decoder.optional_vector if are_optional else decoder.vector
    return made(f"blk.{layer}.attn_sinks.weight", decoder.n_heads[layer])


def gates(decoder: Decoder, layer: int, *, by_head: bool = False) -> Linear:
    """The gates of attention's mix: one for each value, or for each head."""
    n_gates = decoder.n_heads[layer] * (1 if by_head else decoder.value_dim)
    return decoder.linear(f"blk.{layer}.attn_gate", decoder.n_embd, n_gates, has_scale=False)


def slopes(n_heads: int, largest: float) -> tuple[float, ...] | None:
    """By head how fast a score falls with distance; None where `largest` is 0.

    Source: Press et al. 2021, "Train Short, Test Long", and ggml's soft_max for other numbers of heads than powers of two.

    >>> slopes(4, 8.0)
    (0.25, 0.0625, 0.015625, 0.00390625)
    """
    if not largest:
        return None
    n_even = 1 << (n_heads.bit_length() - 1)
    even = (2.0 ** (-largest * (head + 1) / n_even) for head in range(n_even))
    between = (2.0 ** (-largest / 2 * (2 * head + 1) / n_even) for head in range(n_heads - n_even))
    return (*even, *between)
