"""How blocks read and write residual streams (n, S, E): see `augury.blocks.Residual`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.backends.reference.formula import sigmoid, softmax
from augury.backends.reference.weights import each_normed
from augury.blocks import AllStreams, AttentionResidual, GatedHyperConnection, HyperConnection, StreamMean

if TYPE_CHECKING:
    from augury.backends.reference.weights import Weights
    from augury.blocks import Block

__all__ = ["read", "write"]


def read(connection: Block | None, weights: Weights, streams: np.ndarray) -> np.ndarray:
    """What a block sees, (n, E)."""
    match connection:
        case AttentionResidual(norm=norm) if norm is not None:
            scores = each_normed(streams, norm, weights).sum(axis=2)
            return _weighted(softmax(scores), streams)
        case HyperConnection():
            return _weighted(_coefficients(connection, weights, streams)[0], streams)
        case GatedHyperConnection(norm=norm, down=down, up=up):
            normed = each_normed(streams, norm, weights).reshape(len(streams), -1)
            low = weights.product(down, normed)
            gates = sigmoid(weights.product(up, low * sigmoid(low)))
            seen: np.ndarray = (normed * gates).reshape(streams.shape).mean(axis=1)
            return seen
        case StreamMean():
            return streams.mean(axis=1)
        case AllStreams():
            return streams.reshape(len(streams), -1)
    return streams[:, -1]


def write(connection: Block | None, weights: Weights, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The streams once a block has given y (n, E)."""
    match connection:
        case AttentionResidual(begins=True):
            return np.concatenate([streams, y[:, None]], axis=1)
        case HyperConnection():
            _, post, *comb = _coefficients(connection, weights, streams)
            kept = (comb[0][:, :, :, None] * streams[:, :, None]).sum(axis=1) if comb else streams
            return kept + post[:, :, None] * y[:, None]
        case GatedHyperConnection(norm=norm, inject=inject) if inject is not None:
            normed = each_normed(streams, norm, weights).reshape(len(streams), -1)
            return streams + 2.0 * sigmoid(weights.product(inject, normed))[:, :, None] * y[:, None]
        case AllStreams():
            return streams + y.reshape(streams.shape)
    return np.concatenate([streams[:, :-1], streams[:, -1:] + y[:, None]], axis=1)


def _weighted(shares: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """The weighted sums (n, E) of streams, by shares (n, S)."""
    total: np.ndarray = (shares[:, :, None] * streams).sum(axis=1)
    return total


def _coefficients(connection: HyperConnection, weights: Weights, streams: np.ndarray) -> list[np.ndarray]:
    """Pre and post (n, S), and comb (n, S, S) by stream that is read and stream that is written, as far as there are such."""
    n, flat = connection.n_streams, streams.reshape(len(streams), -1)
    made = weights.product(connection.coefficients, each_normed(flat, connection.norm, weights))
    scaled = made * np.repeat(weights.vector(connection.scales.weight), connection.parts)
    pre, post, comb = np.split(scaled + weights.vector(connection.base.weight), [n, 2 * n], axis=1)
    parts = [sigmoid(pre) + connection.eps, connection.post_scale * sigmoid(post) + connection.post_eps]
    return parts if not comb.size else [*parts, _balanced(connection, comb.reshape(-1, n, n))]


def _balanced(connection: HyperConnection, scores: np.ndarray) -> np.ndarray:
    """Scores (n, S, S) → numbers whose rows and columns have sums near 1."""
    eps = connection.eps
    comb = np.exp(scores - scores.max(axis=2, keepdims=True))
    comb = comb / comb.sum(axis=2, keepdims=True) + eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    for _ in range(connection.n_rounds - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    return comb
