"""The inputs of layers that predict further tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.block import Block

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm
    from augury.lowering.builder import Builder

__all__ = ["AssistantInput", "NextnInput"]


@frozen
class NextnInput(Block):
    """The residual streams begin as projection(token_norm(x), hidden_norm(h)), both norms side by side.

    x is the token's embedding, h the row of `Batch.hidden`, of the token before it. Where h has a row (E,) for each stream,
    each begins as its own, and the norm may have weights for each; one row is the beginning of all.

    Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.2.
    """

    token_norm: Norm
    hidden_norm: Norm
    projection: Linear  # 2 E → E
    n_hidden: int  # values of h

    def lower(self, build: Builder) -> None:
        x, size = build.normalize(build.x, self.token_norm), self.hidden_norm.size
        hidden = build.normalize(build.read_hidden(self.n_hidden), self.hidden_norm)
        joined = [build.join(x, row) for row in hidden.split(*[size] * (self.n_hidden // size))]
        build.begin_streams(*(build.multiply(each, self.projection, purpose="nextn input")[0] for each in joined))


@frozen
class AssistantInput(Block):
    """The residual stream begins as projection(scale * W[token], h), both side by side.

    W, of shape (V, F), is the embedding of the model that is drafted for, h the row of `Batch.hidden`, of the token before.

    Source: llama.cpp's `gemma4-assistant`.
    """

    table: Linear  # F → V: W
    scale: float
    projection: Linear  # 2 F → E
    n_hidden: int  # F

    def lower(self, build: Builder) -> None:
        joined = build.join(build.look_up(self.table, self.scale), build.read_hidden(self.n_hidden))
        build.begin_streams(*build.multiply(joined, self.projection, purpose="nextn input"))
