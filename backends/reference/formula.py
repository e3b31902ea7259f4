"""The formulas of a layer's parts, in float64: for one token, or for rows of several, each as if it were alone.

A token's result cannot depend on the rest of its pass: numpy and BLAS may round sums differently for arrays of other shapes,
and here the summed arrays have the same shape in every batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from augury.blocks import Activation, Gating, NormKind, Rope, Router
from augury.lowering import Attend

_OAI_LIMIT, _OAI_FACTOR = 7.0, 1.702


def products(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """W x for every row of x: W (..., m, k), or one of them for all, and x (..., k) → (..., m).

    Numerics: One matrix-vector product per row: a matrix-matrix product would add in an order that depends on how many rows
    there are.
    """
    made: np.ndarray = np.matmul(matrices, x[..., None])[..., 0]
    return made


def norm(x: np.ndarray, eps: float, kind: NormKind = NormKind.RMS) -> np.ndarray:
    """Divide by the root mean square: x / sqrt(mean(x^2) + eps); a layer norm subtracts the mean before.

    Args:
        x: (..., n); the last axis is normed, each of the others on its own.
        eps: Keeps a row of zeros from being divided by zero.
        kind: Which of the two.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; Ba et al. 2016, "Layer Normalization".
    """
    n = x.shape[-1]
    centred = x - np.add.reduce(x, axis=-1, keepdims=True) / n if kind is NormKind.LAYER else x
    mean_square = np.add.reduce(centred * centred, axis=-1, keepdims=True) / n
    normed: np.ndarray = centred / np.sqrt(mean_square + eps)
    return normed


def rotate(heads: np.ndarray, positions: np.ndarray | int, rope: Rope) -> np.ndarray:
    """Turn the pairs of every head by angles that grow with its token's position.

    With the angle t = (position + ahead) * frequencies[i], pair i (a, b) becomes magnitude * (a cos t - b sin t,
    a sin t + b cos t), so that a product of a query and a key depends on how far apart they are. Values beside the pairs stay
    as they are.

    Args:
        heads: (..., heads, D).
        positions: The positions of the tokens (...), from 0.
        rope: Frequencies (D_rot / 2,), magnitude, how far ahead, and how pairs lie.

    Returns:
        (..., heads, D).
    """
    n_pairs, start = len(rope.frequencies), rope.offset
    if rope.is_interleaved:
        first, second = slice(start, start + 2 * n_pairs, 2), slice(start + 1, start + 2 * n_pairs, 2)
    else:
        first, second = slice(start, start + n_pairs), slice(start + n_pairs, start + 2 * n_pairs)
    angles = np.multiply.outer(positions + rope.ahead, rope.frequencies)[..., None, :]
    cos, sin = rope.magnitude * np.cos(angles), rope.magnitude * np.sin(angles)
    turned = heads.copy()
    turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
    turned[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return turned


def attend(
    operation: Attend,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    sinks: np.ndarray | None = None,
    chosen: np.ndarray | None = None,
) -> np.ndarray:
    """Mix the values that the queries ask for: softmax(scale * K q)^T V, head by head.

    Args:
        operation: Says how scores are scaled, capped and biased.
        queries: (H, D).
        keys: (G, T, D), of the positions that the token sees, its own the last.
        values: (G, T, D_v).
        sinks: (H,) scores that take part of the softmax with nothing to mix.
        chosen: (G, T) or (1, T) bool, the positions that take part; None: all.

    Returns:
        (H, D_v). Query head h reads KV head h // (H / G).

    Source: Press et al. 2021, "Train Short, Test Long", for slopes; Xiao et al. 2023, "Efficient Streaming Language Models with
    Attention Sinks", for sinks.
    """
    n_kv_heads, n_seen, _ = keys.shape
    by_group = queries.reshape(n_kv_heads, -1, queries.shape[1])
    scores = softcap(operation.scale * products(keys[:, None], by_group), operation.softcap)
    if operation.slopes is not None:
        scores -= np.reshape(operation.slopes, (n_kv_heads, -1, 1)) * np.arange(n_seen - 1, -1, -1)
    if chosen is not None:
        scores = np.where(chosen[:, None], scores, -np.inf)
    shares = softmax(scores, None if sinks is None else sinks.reshape(n_kv_heads, -1))
    return products(values.swapaxes(1, 2)[:, None], shares).reshape(len(queries), -1)


def softcap(x: np.ndarray, limit: float | None) -> np.ndarray:
    """Bend x smoothly into (-limit, limit)."""
    return x if limit is None else limit * np.tanh(x / limit)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):  # e^-x may become infinite, which gives the 0 that is meant
        result: np.ndarray = 1.0 / (1.0 + np.exp(-x))
    return result


def activate(x: np.ndarray, activation: Activation, constants: Sequence[float] = ()) -> np.ndarray:
    """Bend the gate (..., F) of a feed-forward: SiLU g / (1 + e^-g), GELU in its tanh approximation, or ReLU, squared or not.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)", section 2; So et al. 2021, "Primer", for squares;
    Huang and Schlag 2025, "Deriving Activation Functions Using Integration", for xIELU.
    """
    if activation is Activation.SILU:
        with np.errstate(over="ignore"):  # as in `sigmoid`
            activated: np.ndarray = x / (1.0 + np.exp(-x))
    elif activation is Activation.GELU:
        activated = _gelu(x)
    elif activation is Activation.GELU_HALF:
        inner = _gelu(np.clip(x, -10.0, 10.0).astype(np.float16).astype(np.float64)).astype(np.float16)
        activated = np.where(np.abs(x) < 10.0, inner, np.maximum(x, 0.0))
    elif activation is Activation.SITU:
        activated = softcap(x, constants[0] or None) * sigmoid(x)
    elif activation is Activation.XIELU:
        below, above, slope, eps = constants
        activated = slope * x + np.where(x > 0.0, above * x * x, below * (np.expm1(np.minimum(x, eps)) - x))
    elif activation is Activation.SWIGLU_OAI:
        limited = np.minimum(x, _OAI_LIMIT)
        activated = limited * sigmoid(_OAI_FACTOR * limited)
    else:
        activated = np.maximum(x, 0.0)
        if activation is Activation.RELU_SQUARED:
            activated *= activated
    return activated


def gated(
    gate: np.ndarray, up: np.ndarray, activation: Activation, limit: float = math.inf, constants: Sequence[float] = ()
) -> np.ndarray:
    """The hidden values (..., F) of a feed-forward with a gate: activation(gate) * up.

    The activated gate is at most `limit`, and `up` between it and its negative.

    Source: gpt-oss's model card (arXiv 2508.10925) for its SwiGLU, which clamps both and adds 1 to `up`.
    """
    activated = activate(gate, activation, constants)
    if activation is Activation.SITU:
        up = softcap(up, constants[1] or None)
    elif activation is Activation.SWIGLU_OAI:
        up = up.clip(-_OAI_LIMIT, _OAI_LIMIT) + 1.0
    return np.minimum(activated, limit) * up.clip(-limit, limit)


def choose_experts(
    router: Router, logits: np.ndarray, bias: np.ndarray | float, given: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers (k,) of a token's experts and their weights (k,); see `Router`.

    Args:
        router: Says how.
        logits: (n_experts,).
        bias: (n_experts,), added to scores; 0 where there is none.
        given: (k,) the choice, instead of one by scores.

    Source: Fedus et al. 2022, "Switch Transformers"; for groups and the bias DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.
    """
    if router.gating is Gating.SOFTMAX:
        values = softmax(logits)
    elif router.gating is Gating.SIGMOID:
        values = sigmoid(logits)
    elif router.gating is Gating.SQRT_SOFTPLUS:
        values = np.sqrt(np.logaddexp(logits, 0.0))
    else:
        values = logits
    scores = values + bias
    if router.n_groups > 1:
        groups = scores.reshape(router.n_groups, -1)
        best = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
        is_out = np.ones(router.n_groups, bool)
        is_out[np.argsort(-best, kind="stable")[: router.n_groups_used]] = False
        scores = np.where(is_out[:, None], -np.inf, groups).reshape(-1)
    chosen = (np.argsort(-scores, kind="stable")[: router.n_used] if given is None else given) // router.n_alike
    shares = values[chosen] if router.gating is not Gating.SOFTMAX_OF_CHOSEN else softmax(values[chosen])
    if router.is_normalised:
        shares = shares / max(shares.sum(), router.LEAST_SUM)
    return chosen, router.scale * shares


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation."""
    activated: np.ndarray = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return activated


def softmax(x: np.ndarray, sinks: np.ndarray | float | None = None) -> np.ndarray:
    """e^x / sum(e^x) over (..., T), with e^sink of (...) in the sum; the largest is subtracted first, lest e^x overflow."""
    sinks = -np.inf if sinks is None else sinks
    largest = np.maximum(x.max(axis=-1), sinks)[..., None]
    powers: np.ndarray = np.exp(x - largest)
    powers /= np.add.reduce(powers, axis=-1, keepdims=True) + np.exp(np.asarray(sinks)[..., None] - largest)
    return powers
