"""The operations of memories of n-grams; see `NgramMemory`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.parts import SequenceState
from augury.lowering.operation import Operation, Value

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm

__all__ = ["GateStreams", "LookUpNgrams"]


@frozen(eq=False)
class LookUpNgrams(Operation):
    """out = the rows of a table that heads look up by the last tokens, side by side."""

    table: Linear  # P → rows
    multipliers: tuple[int, ...]  # by how far back a token is
    first: tuple[int, ...]  # by head
    size: tuple[int, ...]
    eos: int
    state: int  # a place in `Block.states`
    out: Value  # heads * P

    @property
    def n_tokens(self) -> int:
        """N, how many tokens the longest n-gram has."""
        return len(self.multipliers)

    def kept(self) -> dict[int, SequenceState]:
        """See `Operation.kept`."""
        return {self.state: SequenceState((self.n_tokens - 1, self.n_tokens), self.n_tokens)}


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
    out: tuple[Value, Value]  # S * E each

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        """See `Operation.sizes`."""
        size = self.key_norm.size
        yield "x, stream by stream,", self.x.width, max(self.x.width // size, 1) * size
        yield "keys", self.keys.width, self.x.width
        yield "values", self.values.width, size
