"""A memory of n-grams: rows of a table, looked up by the last tokens, are added to the residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.block import Block
from augury.blocks.parts import SequenceState

if TYPE_CHECKING:
    from augury.blocks.parts import Convolution, Linear, Norm
    from augury.lowering.builder import Builder

__all__ = ["NgramMemory"]


@frozen
class NgramMemory(Block):
    """x += v + silu(conv(conv_norm(v))), where x are S residual streams, one after the other, and v what a table gives to each.

    Every head looks up a row of the table, first[h] + hash % size[h], by the last tokens: the first heads by two of them, as
    many others by three, and so on, up to as many as there are multipliers. The hash is the xor of tokens, the last one first,
    times multipliers, in 64 bits. What is before a sequence, or an `eos` token and all before it, counts as `eos`.

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

    @property
    def n_tokens(self) -> int:
        """N, how many tokens the longest n-gram has."""
        return len(self.multipliers)

    def states(self) -> tuple[SequenceState, ...]:
        """The tokens before, each N times, by their ids plus 1; the convolution's inputs."""
        n = self.n_tokens
        return (SequenceState((n - 1, n), n), self.conv.state)

    def lower(self, build: Builder) -> None:
        """See `Block.lower`."""
        x = build.normalize(build.x, None)
        rows = build.look_up_ngrams(self.table, self.multipliers, self.first, self.size, self.eos, 0)
        keys, values = build.multiply(rows, self.key, self.value, purpose="keys and values of n-grams")
        given, normed = build.gate_streams(x, keys, values, self.key_norm, self.query_norm, self.conv_norm)
        build.add(build.add_weighed(given, build.convolve([normed], [self.conv], [1], has_silu=True)))
