"""How blocks read and write the residual stream where there are several, or where it is not merely added to.

Every token has S streams (S, E). A block sees one row x (E,) that its connection makes of them, and gives one row y (E,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from augury.blocks.block import Block

if TYPE_CHECKING:
    from augury.blocks.parts import Linear, Norm, Vector

__all__ = ["AllStreams", "AttentionResidual", "Connection", "GatedHyperConnection", "HyperConnection", "StreamMean"]


@frozen
class AttentionResidual(Block):
    """X is the mean of all streams, weighed by softmax of the sums of their norms; y is added to the last stream.

    Without a norm x is the last stream. Where it `begins` a stream, y is one more, the last.

    Source: Kimi K3, as llama.cpp computes it.
    """

    norm: Norm | None
    begins: bool = False


@frozen
class HyperConnection(Block):
    """X is the sum of pre[i] * stream[i]; then stream[j] = post[j] * y + the sum over i of comb[i, j] * stream[i].

    With c = coefficients(norm(all streams, one after the other)), scaled part by part, plus base: pre is eps plus the sigmoid
    of the first S, post is post_eps plus post_scale times that of the next S. The other S * S, where there are such, become
    comb: softmax over j, plus eps, and then columns and rows in turn, columns first and last, are divided by eps plus their
    sums, columns `n_rounds` times. Otherwise streams stay as they are but for what is added. Without a post part nothing is
    written.

    Source: Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections".
    """

    norm: Norm  # of S * E values
    coefficients: Linear  # S * E → S * (2 + S), 2 * S, or S
    scales: Vector  # one of each part: of pre, post and comb
    base: Vector
    n_streams: int  # S
    eps: float
    post_scale: float = 1.0
    post_eps: float = 0.0
    n_rounds: int = 0

    @property
    def parts(self) -> tuple[int, ...]:
        """How many coefficients belong to pre, post and comb."""
        n = self.n_streams
        return (n, n, n * n)[: self.scales.size]


@frozen
class GatedHyperConnection(Block):
    """X is the mean of sigmoid(up(silu(down(n)))) * n over streams; then stream[j] += 2 * sigmoid(inject(n)[j]) * y.

    n are the norms of all streams, one after the other.

    Source: Qwen4, as llama.cpp computes it.
    """

    norm: Norm  # of E values, with weights for each stream
    down: Linear  # S * E → R
    up: Linear  # R → S * E
    inject: Linear | None = None  # S * E → S; None: nothing is written


@frozen
class StreamMean(Block):
    """X is the mean of all streams; nothing is written."""


@frozen
class AllStreams(Block):
    """X are all streams, one after the other, and y of as many values is added to them."""


Connection = AttentionResidual | HyperConnection | GatedHyperConnection | StreamMean | AllStreams
"""How a block reads and writes the residual streams."""
