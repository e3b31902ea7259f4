"""DeltaNet in float64, from its definition, one token and one head at a time.

Sources: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484),
sections 2.2 and 4.1; the norms' and lengths' epsilons, and the scale of queries, as in flash-linear-attention.
"""

from __future__ import annotations

import numpy as np


def logits(tensors: dict[str, np.ndarray], tokens: np.ndarray, *, n_layers: int, n_heads: int, eps: float) -> np.ndarray:
    """The logits (T, V) after each token, by tensors of a GGUF file in float64."""
    x = tensors["token_embd.weight"][tokens]
    for layer in range(n_layers):
        of_layer = {name.removeprefix(f"blk.{layer}."): values for name, values in tensors.items()}
        x = x + mixer(of_layer, rms(x, of_layer["attn_norm.weight"], eps), n_heads, eps)
        n = rms(x, of_layer["ffn_norm.weight"], eps)
        gate, up = n @ of_layer["ffn_gate.weight"].T, n @ of_layer["ffn_up.weight"].T
        x = x + (silu(gate) * up) @ of_layer["ffn_down.weight"].T
    return rms(x, tensors["output_norm.weight"], eps) @ tensors["output.weight"].T


def mixer(of_layer: dict[str, np.ndarray], n: np.ndarray, n_heads: int, eps: float) -> np.ndarray:
    """What a layer's delta rule makes of normed rows (T, E)."""
    q, k, v = (silu(convolved(n @ of_layer[f"attn_{part}.weight"].T, of_layer[f"ssm_conv1d_{part}.weight"])) for part in "qkv")
    betas = 1.0 / (1.0 + np.exp(-(n @ of_layer["ssm_beta.weight"].T)))
    heads = [np.split(rows, n_heads, axis=1) for rows in (q, k, v)]
    made = [one_head(*(rows[h] for rows in heads), betas[:, h]) for h in range(n_heads)]
    return np.hstack([rms(y, of_layer["ssm_norm.weight"], eps) for y in made]) @ of_layer["attn_output.weight"].T


def one_head(q: np.ndarray, k: np.ndarray, v: np.ndarray, betas: np.ndarray) -> np.ndarray:
    """What one head yields (T, V): S += beta k (v - S^T k)^T, y = S^T q."""
    state, made = np.zeros((k.shape[1], v.shape[1])), np.empty_like(v)
    for t, beta in enumerate(betas):
        query, key = (row / np.sqrt(row @ row + 1e-6) for row in (q[t], k[t]))
        state += beta * np.outer(key, v[t] - state.T @ key)
        made[t] = state.T @ (query / np.sqrt(len(query)))
    return made


def convolved(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Each channel of x (T, C) convolved with its own taps (C, n), the last of which counts the token itself."""
    n = taps.shape[1]
    past = np.vstack([np.zeros((n - 1, x.shape[1])), x])
    return np.stack([(past[t : t + n] * taps.T).sum(0) for t in range(len(x))])


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Rows divided by the root of their mean square."""
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))
