"""The operations of attention: preparing heads, keeping them, choosing positions, and mixing values.

Caches are named by their places in `Block.cached()`. Operations see the rows that earlier ones have kept of the same token.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from augury.lowering.operation import Operation, Value, makes
from augury.lowering.parts import Matrices, Norm, Preparation, Rope, Temperature, Vector


@frozen(eq=False)
class PositionChoice(Value):
    """Lists of positions that a token attends to, in a form of the backend's: one, or one for each KV head.

    A list has all positions of a block or none. With a `window` it has the last so many positions instead, and the pooled rows
    of the chosen blocks.
    """

    size: int = 1  # positions of a block
    window: int | None = None
    is_all: bool = False  # whether all blocks are chosen


@frozen(eq=False)
class PrepareHeads(Operation):
    """out[i] = x[i] with its heads prepared, perhaps in place; heads with a cache, perhaps of `source`, are kept."""

    x: tuple[Value, ...]
    dims: tuple[int, ...]  # values of a head
    steps: tuple[Preparation, ...]
    caches: tuple[int | None, ...]
    source: int | None = None  # a layer whose caches these are; None: they are the block's
    out: tuple[Value, ...] = makes(lambda each: tuple(Value(x.width) for x in each.x))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        for x, dim, steps in zip(self.x, self.dims, self.steps, strict=True):
            yield f"x, in heads of {dim},", x.width, max(x.width // dim, 1) * dim
            yield "the norm of heads", dim if steps.norm is None else steps.norm.size, dim
            n_turned = 0 if steps.rope is None else steps.rope.offset + 2 * len(steps.rope.frequencies)
            yield "the turned part of heads", n_turned, min(n_turned, dim)

    def cached(self) -> dict[int, int]:
        kept = zip(self.caches, self.x, strict=True)
        return {cache: x.width for cache, x in kept if cache is not None and self.source is None}


@frozen(eq=False)
class PrepareLatents(Operation):
    """out = (keys[h] a, rope(b)) for the query (a, b) of each head h, times the temperature.

    Of latents (c, r), (norm(c), rope(turned_norm(r))) is kept. Shape letters are those of `LatentAttention`.
    """

    queries: Value  # H * (N + R)
    latents: Value  # L + R
    keys: Matrices
    norm: Norm
    turned_norm: Norm | None
    rope: Rope | None
    temperature: Temperature | None
    cache: int
    out: Value = makes(
        lambda each: Value(each.keys.n * (each.queries.width // each.keys.n - each.keys.n_in + each.keys.n_out))
    )  # H * (L + R)

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        n_turned = self.latents.width - self.norm.size
        yield "queries", self.queries.width, self.keys.n * (self.keys.n_in + n_turned)
        yield "the products of heads", self.keys.n_out, self.norm.size

    def cached(self) -> dict[int, int]:
        return {self.cache: self.latents.width}


@frozen(eq=False)
class MultiplyHeads(Operation):
    """out = matrices[h] x[h] of each head h, or of each group of heads."""

    x: Value
    matrices: Matrices
    out: Value = makes(lambda each: Value(each.matrices.n * each.matrices.n_out))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "x", self.x.width, self.matrices.n * self.matrices.n_in


@frozen(eq=False)
class Attend(Operation):
    """out = softmax(scale * q k^T) v by head, over the positions that a token sees; with a `choice`, over the chosen ones.

    Scores, windows, chunks and sinks are those of `Attention`. Query head h reads head h // (H / G) of the caches. Rows of
    the cache `pooled` take part as well where the choice has a window.
    """

    queries: Value  # H * D
    keys: int
    values: int | None  # None: the first D_v numbers of keys
    n_heads: int
    value_dim: int  # D_v
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    sinks: Vector | None = None
    choice: PositionChoice | None = None
    pooled: int | None = None
    source: int | None = None  # a layer whose mixer keeps keys and values; None: the block does
    is_causal: bool = True
    out: Value = makes(lambda each: Value(each.n_heads * each.value_dim))

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        n = self.n_heads
        yield f"queries of {n} heads", self.queries.width, max(self.queries.width // n, 1) * n
        yield "sinks", n if self.sinks is None else self.sinks.size, n
        yield "slopes", n if self.slopes is None else len(self.slopes), n

    def seen(self) -> tuple[int, ...]:
        places = (self.keys, self.values, self.pooled)
        return tuple(place for place in places if place is not None) if self.source is None else ()


@frozen(eq=False)
class Choose(Operation):
    """out = the `n_chosen` whole blocks of positions with the highest scores, and the positions after the last whole block.

    A block's score is the sum of w_h * max(q_h · key, 0) over heads, with the key of its last position; w is 1 / sqrt(D_i)
    without weights; of equal ones the earlier is chosen. Without queries all blocks are.
    """

    queries: Value | None = None  # H_i * D_i
    weights: Value | None = None  # H_i
    keys: int | None = None
    n_chosen: int = 0
    out: PositionChoice = makes(lambda _: PositionChoice(1))

    def seen(self) -> tuple[int, ...]:
        return () if self.keys is None else (self.keys,)


@frozen(eq=False)
class ChooseByHead(Operation):
    """out[h] = the `n_chosen` blocks of positions with the highest scores for query h, among the positions that a token sees.

    A block's score is the largest q_h · key in it. The last `n_local` blocks are chosen before all others; of equal ones the
    earlier is.
    """

    queries: Value  # G * D_i
    keys: int
    n_chosen: int
    n_local: int
    out: PositionChoice

    def seen(self) -> tuple[int, ...]:
        return (self.keys,)
