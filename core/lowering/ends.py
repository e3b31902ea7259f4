"""The operations that embeddings and outputs are made of, beside others: rows of tables, inputs of layers, and logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import frozen

from augury.lowering.operation import Operation, Value

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm


@frozen(eq=False)
class LookUp(Operation):
    """out = scale * W[i], rows of a matrix by the ids of tokens, or by their positions."""

    table: Linear  # P → as many rows as there are ids
    scale: float
    is_by_position: bool
    out: Value  # P

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield f"a row of {self.table.weight}", self.out.width, self.table.n_in


@frozen(eq=False)
class GiveInputs(Operation):
    """The rows that `ReadInput` reads become scale * (x + factor * other), those of all layers side by side."""

    x: Value
    other: Value
    factor: float
    scale: float

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield "other", self.other.width, self.x.width


@frozen(eq=False)
class GiveLogits(Operation):
    """The logits become linear(norm(x)), of the tokens that are asked for; with a softcap, softcap * tanh(logits / softcap)."""

    x: Value
    norm: Norm | None
    linear: Linear
    softcap: float | None

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        yield f"x of {self.linear.weight}", self.x.width, self.linear.n_in
        yield "the norm of x", self.x.width if self.norm is None else self.norm.size, self.x.width
