"""DeepSeek 4: attention to the last tokens and to pooled rows, and residual streams that are mixed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from augury.blocks import Block, FeedForward, Gating, Integers, Layer, Matrices, MixtureOfExperts, Norm, Preparation, Rope
from augury.files.gguf import ModelFile
from augury.hookspecs import hookimpl
from augury.interfaces import Architecture
from augury.lowering import Attend, Choose, Multiply, MultiplyHeads, PositionChoice
from augury.plugins.architectures.decoder import Decoder
from augury.plugins.architectures.experts import limited_feed_forward
from augury.plugins.architectures.rope import MAX_POSITIONS, base_of, local_size
from augury.plugins.architectures.streams import HyperConnected, mixed_streams
from augury.plugins.pooling import PoolIndexer, Pooling

if TYPE_CHECKING:
    from augury.blocks import Linear, Vector
    from augury.lowering import Builder, Value

_OVERLAPPING = 4  # positions of the smaller blocks, which overlap
_RATIOS = (0, _OVERLAPPING, 128)


@frozen
class CompressedAttention(Block):
    """x += o(groups(softmax(scale * q k^T) k)), where all heads read the same rows k (D,), as keys and as values.

    With n = norm(x), a token keeps k = rope(kv_norm(kv(n))). Queries (H, D) are rope(head_norm(q(q_norm(q_down(n))))). Rows are
    those of the last `window` tokens and, with `pooling`, one for each whole block up to the token, or for the ones that the
    `indexer` chooses, whose queries have the same input as q. `sinks` take part in softmax as scores without a value. Heads'
    outputs are turned back by the rope of the token, and each group of as many heads has a matrix of its own before o.

    Source: DeepSeek-AI 2026, "DeepSeek-V4", as llama.cpp computes it.
    """

    norm: Norm
    q_down: Linear  # E → R
    q_norm: Norm
    q: Linear  # R → H * D
    head_norm: Norm
    kv: Linear  # E → D
    kv_norm: Norm
    rope: Rope
    sinks: Vector  # (H,)
    window: int
    scale: float
    groups: Matrices  # by group, of the heads that it has
    o: Linear  # → E
    pooling: Pooling | None = None  # to rows of D
    indexer: PoolIndexer | None = None  # of blocks as large as those of `pooling`

    @property
    def n_heads(self) -> int:
        """H."""
        return self.sinks.size

    @property
    def head_dim(self) -> int:
        """D."""
        return self.kv.n_out

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """Rows of tokens; the values to be pooled; pooled rows, in the place of their last token; the indexer's keys."""
        rows = (("cache_type_k", 1, self.head_dim),)
        if self.pooling is None:
            return rows
        pooled = (*rows, *self.pooling.cached("cache_type_k"))
        return pooled if self.indexer is None else (*pooled, *self.indexer.cached())

    def lower(self, build: Builder) -> None:
        pooling, indexer, size = self.pooling, self.indexer, self.head_dim
        to_pool, compared = () if pooling is None else pooling.linears, () if indexer is None else indexer.linears
        n, linears = build.normalize(build.x, self.norm), (self.kv, *to_pool, *compared[1:], self.q_down)
        row, *others, down = build.add(Multiply, n, linears, "queries, rows")
        asking = build.normalize(down, self.q_norm)
        *of_indexer, q = build.add(Multiply, asking, (*compared[:1], self.q), "queries")
        steps = [Preparation(norm=norm, rope=self.rope) for norm in (self.head_norm, self.kv_norm)]
        q, _ = build.prepare_heads([q, row], [size, size], steps, [None, 0])
        choice = None
        if pooling is not None:
            pooling.pool(build, others[: len(to_pool)], 1)
            choice = self._choice(build, pooling.size, [*of_indexer, *others[len(to_pool) :]])
        heads, pooled = (self.n_heads, size, self.scale), None if choice is None else 2
        window = self.window if choice is None else None  # a list has no other positions than those in the window
        y = build.add(Attend, q, 0, None, *heads, window=window, sinks=self.sinks, choice=choice, pooled=pooled)
        (y,) = build.prepare_heads([y], [size], [Preparation(rope=evolve(self.rope, frequencies=-self.rope.frequencies))])
        build.add_product(build.add(MultiplyHeads, y, self.groups), self.o, "attention's output")

    def _choice(self, build: Builder, size: int, compared: list[Value]) -> PositionChoice:
        """The last tokens, and the blocks that take part."""
        if self.indexer is None:
            return build.add(Choose, out=PositionChoice(1, size=size, window=self.window, is_all=True))
        return self.indexer.choose(build, compared, 3, window=self.window)


class DeepSeek4(HyperConnected):
    """DeepSeek 4: attention to the last tokens, and to rows that are pooled of four or of 128, by layer."""

    name = "deepseek4"
    experts = {"gating": Gating.SQRT_SOFTPLUS, "has_weights_scale": True}
    mtp_hidden = "layer"

    @classmethod
    def decoder(cls, file: ModelFile) -> Decoder:
        """The sizes of a file; layers that predict further tokens count as others where they are not complete."""
        decoder = super().decoder(file)
        decoder.n_rot = local_size(decoder)  # all layers have a window
        if not decoder.has_mtp:
            decoder.n_layers = decoder.n_stored
        return decoder

    @classmethod
    def rope(cls, decoder: Decoder) -> None:
        """Layers have different ones."""

    @classmethod
    def layer(cls, decoder: Decoder, layer: int, rope: Rope | None) -> Layer:  # noqa: ARG003 - see `rope`
        keys, key = decoder.keys, "attention.compress_ratios"
        ratios = decoder.file.get(keys.full(key), list[int])
        if len(ratios) < max(layer + 1, decoder.n_layers) or any(ratio not in _RATIOS for ratio in ratios):
            keys.fail(key, ratios[:8], f"{decoder.n_layers} of 0, 4 and 128, one per layer")
        mixer = cls.attention(decoder, layer, ratios[layer])
        return Layer(mixer, cls.feed_forward(decoder, layer)).connected(*mixed_streams(decoder, layer))

    @classmethod
    def attention(cls, decoder: Decoder, layer: int, ratio: int) -> CompressedAttention:
        """The attention of a layer that pools so many positions; 0: none."""
        keys, at, n_embd, size = decoder.keys, f"blk.{layer}", decoder.n_embd, decoder.head_dim
        n_heads, n_low, n_rot = decoder.n_heads[layer], keys.count("attention.q_lora_rank"), decoder.n_rot
        n_groups, n_out = keys.count("attention.output_group_count"), keys.count("attention.output_lora_rank")
        if n_heads % n_groups:
            keys.fail("attention.output_group_count", n_groups, f"a divisor of the {n_heads} heads")
        base = base_of(decoder, "attention.compress_rope_freq_base") if ratio else None
        rope = decoder.rope(is_interleaved=True, base=base, is_scaled=ratio > 0)
        rope = evolve(rope, magnitude=1.0, offset=size - n_rot)
        groups = Matrices(f"{at}.attn_output_a.weight", n_groups, n_heads // n_groups * size, n_out)
        stored = decoder.file.tensor(groups.weight).shape
        if stored == (n_groups * n_out, groups.n_in):
            groups = evolve(groups, is_flat=True)
        decoder.check(groups)
        return CompressedAttention(
            norm=decoder.norm(f"{at}.attn_norm"),
            q_down=decoder.matrix(f"{at}.attn_q_a", n_embd, n_low),
            q_norm=decoder.norm(f"{at}.attn_q_a_norm", n_low),
            q=decoder.matrix(f"{at}.attn_q_b", n_low, n_heads * size),
            head_norm=Norm(None, size, decoder.eps),
            kv=decoder.matrix(f"{at}.attn_kv", n_embd, size),
            kv_norm=decoder.norm(f"{at}.attn_kv_a_norm", size),
            rope=rope,
            sinks=decoder.vector(f"{at}.attn_sinks.weight", n_heads),
            window=keys.count("attention.sliding_window", most=MAX_POSITIONS),
            scale=1.0 / math.sqrt(size),
            groups=groups,
            o=decoder.matrix(f"{at}.attn_output_b", n_groups * n_out, n_embd),
            pooling=cls.pooling(decoder, f"{at}.attn", ratio, size, rope) if ratio else None,
            indexer=cls.indexer(decoder, layer, ratio, rope) if ratio == _OVERLAPPING else None,
        )

    @classmethod
    def pooling(cls, decoder: Decoder, at: str, ratio: int, size: int, rope: Rope) -> Pooling:
        """The pooling of so many positions to rows of a size."""
        n = size * (2 if ratio == _OVERLAPPING else 1)
        return Pooling(
            ratio,
            decoder.matrix(f"{at}_compressor_kv", decoder.n_embd, n),
            weights=decoder.matrix(f"{at}_compressor_gate", decoder.n_embd, n),
            places=decoder.vector(f"{at}_compressor_ape.weight", ratio * n, (ratio, n)),
            norm=decoder.norm(f"{at}_compressor_norm", size),
            rope=evolve(rope, offset=size - decoder.n_rot),
            overlaps=ratio == _OVERLAPPING,
        )

    @classmethod
    def indexer(cls, decoder: Decoder, layer: int, ratio: int, rope: Rope) -> PoolIndexer:
        """The indexer of a layer."""
        keys, at = decoder.keys, f"blk.{layer}.indexer"
        n_heads, width = decoder.indexer_sizes()
        return PoolIndexer(
            q=decoder.matrix(f"{at}.attn_q_b", keys.count("attention.q_lora_rank"), n_heads * width),
            keys=cls.pooling(decoder, at, ratio, width, rope),
            rope=evolve(rope, offset=width - decoder.n_rot),
            n_chosen=keys.count("attention.indexer.top_k"),
            weights=decoder.matrix(f"{at}.proj", decoder.n_embd, n_heads, factor=1.0 / math.sqrt(width * n_heads)),
        )

    @classmethod
    def feed_forward(cls, decoder: Decoder, layer: int) -> FeedForward | MixtureOfExperts:
        """The feed-forward of a layer; gates are limited. The first layers' experts are chosen by token id."""
        block = limited_feed_forward(decoder, layer, limits_activated=False, shares_limit=True, **(cls.experts or {}))
        if layer >= decoder.keys.count("hash_layer_count", least=0) or not isinstance(block, MixtureOfExperts):
            return block
        router = block.router
        table = Integers(f"blk.{layer}.ffn_gate_tid2eid.weight", (decoder.n_vocab, router.n_used))
        decoder.file.integers(table.weight, table.shape, router.logits.n_out)
        return evolve(block, router=evolve(router, bias=None, token_experts=table))


@hookimpl
def augury_architectures() -> tuple[type[Architecture], ...]:
    """Offer DeepSeek 4."""
    return (DeepSeek4,)
