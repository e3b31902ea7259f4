"""The loss of an EAGLE-3 head: several steps of drafting unrolled, each over the previous step's output.

Position p of a text is given the target's features of token p and token p + 1, and predicts token p + 2, as when it drafts.
In step j > 0 it is given, in place of these features, its own output of step j - 1 at p - 1. Then it sees the keys of step 0 up
to p - j, and after them those of its own steps, at p - j + 1 to p: the texts of all drafts that could begin, at once.

Source: Li et al. 2025 (EAGLE-3), section 3.1, "training-time test".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from augury.plugins.learn.head import HeadSizes
from augury.plugins.learn.training_math import Arrays, TrainingBatch, norm, target_logits

_STEP_WEIGHT = 0.8  # of each step's loss beside that of the step before


def _rope(x: Any, base: float) -> Any:
    """Turn neighbouring pairs of (B, T, H, D) by their positions."""
    n, dim = x.shape[1], x.shape[-1]
    angles = np.arange(n)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[None, :, None] for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def _later(x: Any, n: int) -> Any:
    """Position p gets the value at p - n; zeros before the beginning."""
    return jnp.pad(x, [(0, 0), (n, 0), *[(0, 0)] * (x.ndim - 2)])[:, : x.shape[1]] if n else x


def _attention(query: Any, keys: list[Any], values: list[Any], step: int, texts: Any) -> Any:
    """(B, T, H, D) of the keys and values (B, T, G, D) of this step and those before, each text by itself."""
    n, n_heads, dim = query.shape[1:]
    grouped = query.reshape(*query.shape[:2], keys[0].shape[2], -1, dim)  # (B, T, G, H / G, D)
    scores = [jnp.einsum("bpgrd,bsgd->bpgrs", grouped, keys[0])]
    is_seen = np.tri(n, k=-step, dtype=bool) & (texts[:, :, None] == texts[:, None])
    scores[0] = jnp.where(is_seen[:, :, None, None], scores[0], -1e30)
    shifted = [(_later(keys[i], step - i), _later(values[i], step - i)) for i in range(1, step + 1)]
    scores += [jnp.einsum("bpgrd,bpgd->bpgr", grouped, key)[..., None] for key, _ in shifted]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1) * dim**-0.5, axis=-1)
    made = jnp.einsum("bpgrs,bsgd->bpgrd", weights[..., :n], values[0])
    for i, (_, value) in enumerate(shifted):
        made += weights[..., n + i, None] * value[:, :, :, None]
    return made.reshape(*query.shape[:2], n_heads * dim)


def losses(
    weights: Arrays,
    rows: Any,
    batch: TrainingBatch,
    *,
    sizes: HeadSizes,
    softcap: float | None,
    n_unrolled: int,
    product: Callable[[Any, Any], Any],
) -> tuple[Any, Any]:
    """The loss, and the counts of `Trainer.accepted`."""
    features, embedded, outputs, texts, is_there, is_drafted = batch
    n_batch, n = is_there.shape
    wanted = target_logits(outputs, rows, softcap, product)
    chances, best = jax.nn.softmax(wanted, axis=-1), wanted.argmax(axis=-1)
    hidden = product(norm(features, weights["enc.output_norm.weight"]), weights["fc.weight"])
    token, n_embd = norm(embedded, weights["blk.0.attn_norm.weight"]), sizes.n_embd
    of_tokens = {name: product(token, weights[f"blk.0.attn_{name}.weight"][:, :n_embd]) for name in "qkv"}  # alike in all steps
    keys, values = list[Any](), list[Any]()
    loss, is_right, right = jnp.float32(0), is_there, []
    for step in range(n_unrolled):
        is_there = is_there & (_later(texts, step) == texts)
        seen = norm(hidden, weights["blk.0.attn_norm_2.weight"])
        query, key, value = (
            (of_token + product(seen, weights[f"blk.0.attn_{name}.weight"][:, n_embd:])).reshape(n_batch, n, -1, sizes.head_dim)
            for name, of_token in of_tokens.items()
        )
        keys.append(_rope(key, sizes.rope_base))
        values.append(value)
        mixed = _attention(_rope(query, sizes.rope_base), keys, values, step, texts)
        x = seen + product(mixed, weights["blk.0.attn_output.weight"])
        inner = norm(x, weights["blk.0.ffn_norm.weight"])
        gate = jax.nn.silu(product(inner, weights["blk.0.ffn_gate.weight"])) * product(inner, weights["blk.0.ffn_up.weight"])
        x = x + product(gate, weights["blk.0.ffn_down.weight"])
        logits = product(norm(x, weights["output_norm.weight"]), rows)
        each = jax.nn.logsumexp(logits, axis=-1) - (chances * logits).sum(axis=-1)  # the cross entropy: chances sum to 1
        loss += _STEP_WEIGHT**step * (each * is_there).sum() / jnp.maximum(is_there.sum(), 1)
        is_right = _later(is_right, 1 if step else 0) & is_there & is_drafted & (logits.argmax(axis=-1) == best)
        right.append(is_right)
        hidden = _later(x, 1)
    # of drafts that all is there of
    whole = [_later(each, n_unrolled - 1 - step) & is_there for step, each in enumerate(right)]
    return loss, jnp.stack([each.sum() for each in (is_there, *whole)])
