"""Rows that are pooled of several positions, and the choice of blocks by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import frozen

from augury.blocks import HasParts, PositionIndexer, Preparation
from augury.lowering import CachedRows, Choose, Operation, PositionChoice, Value

if TYPE_CHECKING:
    from augury.blocks import Linear, Norm, Rope, Vector
    from augury.lowering import Builder

_ROOM = "augury.plugins.pooling"


@frozen
class Pooling(HasParts):
    """Makes one row (D,) of every `size` positions, once the last of them is there.

    A token at position p keeps v = value_norm(values(n)) and, where there are weights, w = weights(n) + places[p % size]. A row
    is the norm of the sum of v over its tokens, weighed channel by channel by softmax of w, or of their mean; rope turns it
    like the first of its positions.

    Where it `overlaps`, v and w have 2 D values, and a row is made of twice as many tokens: of the first halves of those in the
    block before, if there is one, and of the second halves of its own.

    Source: DeepSeek-AI 2026, "DeepSeek-V4", for weights and overlaps, as llama.cpp computes them.
    """

    size: int
    values: Linear  # E → D, or 2 D
    value_norm: Norm | None = None
    weights: Linear | None = None  # E → D, or 2 D
    places: Vector | None = None  # (size, D or 2 D)
    norm: Norm | None = None
    rope: Rope | None = None
    overlaps: bool = False

    @property
    def width(self) -> int:
        """D."""
        return self.values.n_out // (1 + self.overlaps)

    def cached(self, kind: str) -> tuple[tuple[str, int, int], ...]:
        """See `Block.cached`: tokens' values to be pooled, and rows of a cache type, by the last of their tokens."""
        return (("f32", 1, self.values.n_out * len(self.linears)), (kind, 1, self.width))

    def pool(self, build: Builder, made: Sequence[Value], cache: int) -> None:
        """Write operations that pool products of its `linears`; its caches are those of the block from place `cache` on."""
        values, weights = made[0], made[1] if self.weights is not None else None
        kept = CachedRows(cache, self.values.n_out * len(made))
        build.add(KeepToPool, build.normalize(values, self.value_norm), weights, self.places, self.size, kept)
        row = build.add(Pool, kept, self.size, weights is not None, self.overlaps, Value(self.width))
        steps = Preparation(norm=self.norm, rope=self.rope, lag=self.size - 1)
        build.prepare_heads([row], [self.width], [steps], [cache + 1])


@frozen
class PoolIndexer(PositionIndexer):
    """Chooses `n_chosen` blocks of positions by pooled keys; positions after the last whole block always take part.

    The score of a block is the sum of w_h * max(q_h · key, 0) over heads; of equal ones the earlier is chosen. Its
    q = rope(q_norm(q)) is made of the same values as attention's q; w is weights(n), or 1 / sqrt(D_i).
    """

    q: Linear  # → H_i * D_i
    keys: Pooling  # rows of D_i
    rope: Rope | None
    n_chosen: int
    q_norm: Norm | None = None
    weights: Linear | None = None  # E → H_i

    @property
    def reach(self) -> int:
        return (self.n_chosen + 1) * self.keys.size - 1

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return self.keys.cached("f32")

    def choose(self, build: Builder, made: Sequence[Value], cache: int, *, window: int | None = None) -> PositionChoice:
        """See `PositionIndexer.choose`; with a window the choice has the last so many positions, and blocks' pooled rows."""
        q, *others = made
        n_pooled = len(self.keys.linears)
        self.keys.pool(build, others[:n_pooled], cache)
        (q,) = build.prepare_heads([q], [self.keys.width], [Preparation(norm=self.q_norm, rope=self.rope)])
        weights = others[n_pooled] if self.weights is not None else None
        return build.add(Choose, q, weights, cache + 1, self.n_chosen, PositionChoice(1, size=self.keys.size, window=window))


def keep_to_pool(
    values: np.ndarray, weights: np.ndarray | None, places: np.ndarray | None, size: int, kept: np.ndarray
) -> None:
    """Compute `KeepToPool` for one token."""
    n = len(values)
    kept[-1, :n] = values
    if weights is not None:
        kept[-1, n:] = weights if places is None else weights + places.reshape(size, n)[(len(kept) - 1) % size]


def pool(kept: np.ndarray, size: int, has_weights: bool, overlaps: bool, out: np.ndarray) -> None:  # noqa: FBT001 - by place
    """Compute `Pool` for one token."""
    width = len(out)
    out[:] = 0.0
    if len(kept) % size:
        return
    parts = kept[-size:].reshape(size, 1 + has_weights, -1)[:, :, -width:]  # values, and weights where there are such
    if overlaps and len(kept) > size:
        before = kept[-2 * size : -size].reshape(size, 1 + has_weights, -1)[:, :, :width]
        parts = np.concatenate([before, parts])
    shares = np.full((len(parts), width), 1.0 / size)
    if has_weights:
        weights = np.ascontiguousarray(parts[:, 1].T)
        powers = np.exp(weights - weights.max(axis=1, keepdims=True))
        shares = (powers / powers.sum(axis=1, keepdims=True)).T
    out[:] = (shares * parts[:, 0]).sum(axis=0)


@frozen(eq=False)
class KeepToPool(Operation):
    """Keep the values of a token, and weights to which the row of its place in a block is added."""

    values: Value
    weights: Value | None
    places: Vector | None  # (size, values)
    size: int  # of a block
    rows: CachedRows  # values, then weights

    kernels: ClassVar[Mapping[str, Any]] = {
        "reference": keep_to_pool,
        "numba-cpu": f"{_ROOM}.numba_cpu:KeepToPoolEmitter",
        "numba-cuda": f"{_ROOM}.numba_cuda:KeepToPoolEmitter",
    }

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        given = [value for value in (self.values, self.weights) if value is not None]
        yield "what is kept", self.rows.width, sum(value.width for value in given)
        if self.places is not None:
            yield f"{self.places.weight}, in {self.size} rows,", self.places.size, self.size * self.values.width

    def cached(self) -> dict[int, int]:
        return {self.rows.cache: self.rows.width}


@frozen(eq=False)
class Pool(Operation):
    """out = the row that the block of `size` positions is pooled to which a token ends, see `Pooling`; 0 where it ends none."""

    rows: CachedRows
    size: int
    has_weights: bool
    overlaps: bool
    out: Value  # D

    kernels: ClassVar[Mapping[str, Any]] = {
        "reference": pool,
        "numba-cpu": f"{_ROOM}.numba_cpu:PoolEmitter",
        "numba-cuda": f"{_ROOM}.numba_cuda:PoolEmitter",
    }

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "what is kept", self.rows.width, self.out.width * (1 + self.has_weights) * (1 + self.overlaps)
