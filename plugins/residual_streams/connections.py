"""How blocks read and write the residual streams of some families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

from augury.blocks import Connection, Linear, ModelPlan, Norm, Vector

Given = Callable[[Any], Any]


def emitters(name: str) -> Mapping[str, str]:
    """The classes of a name for `HasKernels.kernels`."""
    return {f"numba-{each}": f"augury.plugins.residual_streams.numba_{each}:{name}" for each in ("cpu", "cuda")}


@frozen
class AttentionResidual(Connection):
    """X is the mean of all streams, weighed by softmax of the sums of their norms; y is added to the last stream.

    Without a norm x is the last stream. Where it `begins` a stream, y is one more, the last.

    Source: Kimi K3, as llama.cpp computes it.
    """

    norm: Norm | None
    begins: bool = False

    kernels: ClassVar = emitters("AttentionResidualEmitter")

    def read(self, given: Given, streams: np.ndarray) -> np.ndarray:
        if self.norm is None:
            return streams[:, -1]
        scores = given(self.norm)(streams).sum(axis=2)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return _weighed(powers / powers.sum(axis=1, keepdims=True), streams)

    def write(self, given: Given, streams: np.ndarray, y: np.ndarray) -> np.ndarray:  # noqa: ARG002 - as its parent's
        kept, last = (streams, y) if self.begins else (streams[:, :-1], streams[:, -1] + y)
        return np.concatenate([kept, last[:, None]], axis=1)


def n_begun(plan: ModelPlan) -> int:
    """How many streams the layers of a plan begin."""
    return sum(isinstance(each, AttentionResidual) and each.begins for each in plan.connections)


@frozen
class HyperConnection(Connection):
    """X is the sum of pre[i] * stream[i]; then stream[j] = post[j] * y + the sum over i of comb[i, j] * stream[i].

    With c = coefficients(norm(all streams, one after the other)), scaled part by part, plus base: pre is eps plus the sigmoid
    of the first S, post is post_eps plus post_scale times that of the next S. The other S * S, where there are such, become
    comb: softmax over j, plus eps, and then columns and rows in turn, columns first and last, are divided by eps plus their
    sums, columns `n_rounds` times. Otherwise streams stay as they are, except for the addition. Without a post part nothing is
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

    kernels: ClassVar = emitters("HyperConnectionEmitter")

    @property
    def parts(self) -> tuple[int, ...]:
        """How many coefficients belong to pre, post and comb."""
        n = self.n_streams
        return (n, n, n * n)[: self.scales.size]

    def read(self, given: Given, streams: np.ndarray) -> np.ndarray:
        return _weighed(self._weights(given, streams)[0], streams)

    def write(self, given: Given, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
        _, post, *comb = self._weights(given, streams)
        kept = (comb[0][:, :, :, None] * streams[:, :, None]).sum(axis=1) if comb else streams
        return kept + post[:, :, None] * y[:, None]

    def _weights(self, given: Given, streams: np.ndarray) -> list[np.ndarray]:
        """Pre and post (n, S), and comb (n, S, S) by stream that is read and stream that is written, where there are such."""
        n, normed = self.n_streams, given(self.norm)(streams.reshape(len(streams), -1))
        made = given(self.coefficients)(normed) * np.repeat(given(self.scales), self.parts)
        pre, post, comb = np.split(made + given(self.base), [n, 2 * n], axis=1)
        weights = [_sigmoid(pre) + self.eps, self.post_scale * _sigmoid(post) + self.post_eps]
        return weights if not comb.size else [*weights, self._balanced(comb.reshape(-1, n, n))]

    def _balanced(self, scores: np.ndarray) -> np.ndarray:
        """Scores (n, S, S) → numbers whose rows and columns have sums near 1."""
        comb = np.exp(scores - scores.max(axis=2, keepdims=True))
        comb = comb / comb.sum(axis=2, keepdims=True) + self.eps
        for i in range(max(self.n_rounds, 1)):
            comb = comb / (comb.sum(axis=2, keepdims=True) + self.eps) if i else comb
            comb = comb / (comb.sum(axis=1, keepdims=True) + self.eps)
        return comb


@frozen
class GatedHyperConnection(Connection):
    """X is the mean of sigmoid(up(silu(down(n)))) * n over streams; then stream[j] += 2 * sigmoid(inject(n)[j]) * y.

    n are the norms of all streams, one after the other.

    Source: Qwen4, as llama.cpp computes it.
    """

    norm: Norm  # of E values, with weights for each stream
    down: Linear  # S * E → R
    up: Linear  # R → S * E
    inject: Linear | None = None  # S * E → S; None: nothing is written

    kernels: ClassVar = emitters("GatedHyperConnectionEmitter")

    def read(self, given: Given, streams: np.ndarray) -> np.ndarray:
        normed = given(self.norm)(streams).reshape(len(streams), -1)
        low = given(self.down)(normed)
        gates = _sigmoid(given(self.up)(low * _sigmoid(low)))
        seen: np.ndarray = (normed * gates).reshape(streams.shape).mean(axis=1)
        return seen

    def write(self, given: Given, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self.inject is None:
            return streams
        gates = _sigmoid(given(self.inject)(given(self.norm)(streams).reshape(len(streams), -1)))
        return streams + 2.0 * gates[:, :, None] * y[:, None]


@frozen
class StreamMean(Connection):
    """X is the mean of all streams; nothing is written."""

    kernels: ClassVar = emitters("StreamMeanEmitter")

    def read(self, given: Given, streams: np.ndarray) -> np.ndarray:  # noqa: ARG002 - as its parent's
        seen: np.ndarray = streams.mean(axis=1)
        return seen


def _weighed(weights: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """The weighted sums (n, E) of streams, by weights (n, S)."""
    total: np.ndarray = (weights[:, :, None] * streams).sum(axis=1)
    return total


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # e^-x may become infinite
        powers: np.ndarray = np.exp(-x)
    return 1.0 / (1.0 + powers)
