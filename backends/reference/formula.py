"""What the parts of a layer compute, for one token, in float64.

Each function sees a single token, so a token's result cannot depend on what else is in a pass: numpy and BLAS may round
differently for arrays of other shapes, and here the shapes are the same however tokens are batched.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from augury.blocks import Activation

if TYPE_CHECKING:
    from augury.blocks import Rope

__all__ = ["activate", "attend", "norm", "rotate"]


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Divide by the root mean square: x / sqrt(mean(x^2) + eps) * weight.

    Args:
        x: (..., n); the last axis is normed, each of the others on its own.
        weight: (n,).
        eps: Keeps a row of zeros from being divided by zero.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: np.ndarray = x / np.sqrt(mean_square + eps) * weight
    return normed


def rotate(heads: np.ndarray, position: int, rope: Rope) -> np.ndarray:
    """Turn the pairs of every head by angles that grow with the position.

    With the angle t = position * frequencies[i], pair i (a, b) becomes magnitude * (a cos t - b sin t, a sin t + b cos t), so
    that a product of a query and a key depends on how far apart they are. Values after the pairs stay as they are.

    Args:
        heads: (heads, D).
        position: Of the token, from 0.
        rope: Frequencies (D_rot / 2,), magnitude and how pairs lie.

    Returns:
        (heads, D).
    """
    n_pairs = len(rope.frequencies)
    if rope.is_interleaved:
        first, second = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
    else:
        first, second = slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
    angles = position * rope.frequencies
    cos, sin = rope.magnitude * np.cos(angles), rope.magnitude * np.sin(angles)
    turned = heads.copy()
    turned[:, first] = heads[:, first] * cos - heads[:, second] * sin
    turned[:, second] = heads[:, first] * sin + heads[:, second] * cos
    return turned


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """Mix the values that the queries ask for: softmax(scale * K q)^T V, head by head.

    Args:
        queries: (H, D).
        keys: (G, T, D), of the positions that the token sees, its own the last.
        values: (G, T, D_v).
        scale: Of the products.

    Returns:
        (H, D_v). Query head h reads KV head h // (H / G).
    """
    n_heads, n_kv_heads = len(queries), len(keys)
    mixed = np.empty((n_heads, values.shape[2]))
    for head in range(n_heads):
        group = head // (n_heads // n_kv_heads)
        mixed[head] = _softmax(scale * (keys[group] @ queries[head])) @ values[group]
    return mixed


def activate(gate: np.ndarray, activation: Activation) -> np.ndarray:
    """Bend the gate (F,) of a feed-forward: SiLU g / (1 + e^-g), or GELU in its tanh approximation.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)", section 2.
    """
    if activation is Activation.SILU:
        with np.errstate(over="ignore"):  # e^-g may become infinite, which gives the 0 that is meant
            bent: np.ndarray = gate / (1.0 + np.exp(-gate))
    else:
        bent = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)))
    return bent


def _softmax(x: np.ndarray) -> np.ndarray:
    """e^x / sum(e^x) over (T,); the largest is subtracted first, lest e^x overflow."""
    powers: np.ndarray = np.exp(x - x.max())
    powers /= powers.sum()
    return powers
