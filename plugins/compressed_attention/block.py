"""Attention to the last tokens, and to rows that stand for blocks of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, frozen

from augury.blocks import Block, Preparation
from augury.lowering import Attend, Choose, Multiply, MultiplyHeads, PositionChoice

if TYPE_CHECKING:
    from augury.blocks import Linear, Matrices, Norm, Rope, Vector
    from augury.lowering import Builder, Value
    from augury.plugins.pooling import PoolIndexer, Pooling


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
