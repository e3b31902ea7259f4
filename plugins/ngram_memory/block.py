"""A memory of n-grams: rows of a table, looked up by the last tokens, are added to the residual streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import frozen

from augury.blocks import Block, Preparation
from augury.lowering import Add, AddWeighed, CachedRows, Convolve, Multiply, Operation, ReadTokens, Value, makes

if TYPE_CHECKING:
    from augury.blocks import Convolution, Linear, Norm
    from augury.lowering import Builder

_LEAST_SCORE = 1e-6
_ROOM = "augury.plugins.ngram_memory"


def rows_of_ngrams(
    tokens: list[int], multipliers: tuple[int, ...], first: tuple[int, ...], size: tuple[int, ...], eos: int
) -> list[int]:
    """The table's rows (heads,) of a token, given it and those before, the last one first; -1 where there are none."""
    ends = [i for i, token in enumerate(tokens) if i and token in (-1, eos)]
    seen = tokens[: ends[0]] if ends else tokens
    seen = seen + [eos] * (len(tokens) - len(seen))
    mixed, n_heads, rows = seen[0] * multipliers[0], len(size) // (len(tokens) - 1), []
    for i in range(1, len(tokens)):
        mixed ^= seen[i] * multipliers[i]
        heads = slice((i - 1) * n_heads, i * n_heads)
        rows += [at + mixed % 2**64 % n for at, n in zip(first[heads], size[heads], strict=True)]
    return rows


def look_up(
    tokens: np.ndarray,
    table: np.ndarray,
    multipliers: tuple[int, ...],
    first: tuple[int, ...],
    size: tuple[int, ...],
    eos: int,
    out: np.ndarray,
) -> None:
    """Compute `LookUpNgrams` for one token."""
    n, seen = len(multipliers), [int(token) for token in tokens[::-1, 0]]
    out[:] = table[rows_of_ngrams([*seen, *[-1] * n][:n], multipliers, first, size, eos)].reshape(-1)


def gate_streams(
    x: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    key_norm: Callable[[np.ndarray], np.ndarray],
    query_norm: Callable[[np.ndarray], np.ndarray],
    norm: Callable[[np.ndarray], np.ndarray],
    given: np.ndarray,
    normed: np.ndarray,
) -> None:
    """Compute `GateStreams` for one token."""
    products = (key_norm(keys) * query_norm(x)).reshape(-1, len(values))
    scores = products.sum(axis=1) / math.sqrt(len(values))
    roots = np.sign(scores) * np.sqrt(np.maximum(np.abs(scores), _LEAST_SCORE))
    given[:] = np.outer(1.0 / (1.0 + np.exp(-roots)), values).reshape(-1)
    normed[:] = norm(given)


@frozen(eq=False)
class LookUpNgrams(Operation):
    """out = the rows of a table that heads look up by the last tokens, side by side."""

    tokens: CachedRows  # ids
    table: Linear  # P → rows
    multipliers: tuple[int, ...]  # by how far back a token is
    first: tuple[int, ...]  # by head
    size: tuple[int, ...]
    eos: int
    out: Value = makes(lambda each: Value(len(each.size) * each.table.n_in))

    kernels: ClassVar[Mapping[str, Any]] = {
        "reference": look_up,
        "numba-cpu": f"{_ROOM}.numba_cpu:LookUpNgramsEmitter",
        "numba-cuda": f"{_ROOM}.numba_cuda:LookUpNgramsEmitter",
    }

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "tokens", self.tokens.width, 1


@frozen(eq=False)
class GateStreams(Operation):
    """out = v = gate * values for each of S streams, and norm(v).

    A gate is the sigmoid of sign(s) * sqrt(max(abs(s), 1e-6)), with s = key_norm(key) · query_norm(x) / sqrt(E).
    """

    x: Value  # S * E
    keys: Value  # S * E
    values: Value  # E
    key_norm: Norm
    query_norm: Norm
    norm: Norm
    out: tuple[Value, Value] = makes(lambda each: (Value(each.x.width), Value(each.x.width)))

    kernels: ClassVar[Mapping[str, Any]] = {
        "reference": gate_streams,
        "numba-cpu": f"{_ROOM}.numba_cpu:GateStreamsEmitter",
        "numba-cuda": f"{_ROOM}.numba_cuda:GateStreamsEmitter",
    }

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        size = self.key_norm.size
        yield "x, stream by stream,", self.x.width, max(self.x.width // size, 1) * size
        yield "keys", self.keys.width, self.x.width
        yield "values", self.values.width, size


@frozen
class NgramMemory(Block):
    """x += v + silu(conv(conv_norm(v))), where x are S residual streams, one after the other, and v a table's values for each.

    Every head looks up a row of the table, first[h] + hash % size[h], by the last tokens: the first heads by two of them, as
    many others by three, and so on, up to as many as there are multipliers. The hash is the xor of tokens, the last one first,
    times multipliers, in 64 bits. Positions before a sequence, or an `eos` token and all before it, count as `eos`.

    Of all rows e together, v = gate * value(e) for each stream, gate = sigmoid(sign(s) * sqrt(max(abs(s), 1e-6))), with
    s = key_norm(key(e)) · query_norm(x) / sqrt(E).

    Source: Qwen4, as llama.cpp computes it.
    """

    table: Linear  # P → rows
    key: Linear  # all heads' rows → S * E
    value: Linear  # all heads' rows → E
    key_norm: Norm  # of E values, with weights for each stream, like the others
    query_norm: Norm
    conv_norm: Norm
    conv: Convolution
    multipliers: tuple[int, ...]  # by how far back a token is
    first: tuple[int, ...]  # by head, those of shorter n-grams before
    size: tuple[int, ...]
    eos: int

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        return (("f32", 1, 1),)

    def lower(self, build: Builder) -> None:
        x = build.normalize(build.x, None)
        build.prepare_heads([build.add(ReadTokens)], [1], [Preparation()], [0])
        rows = build.add(LookUpNgrams, CachedRows(0, 1), self.table, self.multipliers, self.first, self.size, self.eos)
        keys, values = build.add(Multiply, rows, (self.key, self.value), "keys and values of n-grams")
        given, normed = build.add(GateStreams, x, keys, values, self.key_norm, self.query_norm, self.conv_norm)
        build.add(Add, build.add(AddWeighed, given, build.add(Convolve, (normed,), (self.conv,), (0,), has_silu=True)))
