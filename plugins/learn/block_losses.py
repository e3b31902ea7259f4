"""The loss of a block head: at some positions of a text a block begins, all of whose tokens are drafted at once.

A block that begins after position p has token p + 1 and masks; in place j it predicts token p + 2 + j, as when it drafts. Each
place sees the hidden states of the target up to p, and the places of its block up to its own. The logits that depend on the
token before are added as that of the text has them. A place counts the less the later it is, by exp(-j / 4).

Source: deepseek-ai/DeepSpec (DSpark: anchors, weights of places, confidence); hao-ai-lab/JetSpec (causal blocks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.training_math import Arrays, TrainingBatch, norm, target_logits

_DECAY = 4.0  # places after which one counts a third as much


def losses(
    weights: Arrays,
    rows: Any,
    batch: TrainingBatch,
    *,
    mask: Any,
    sizes: BlockSizes,
    softcap: float | None,
    product: Callable[[Any, Any], Any],
    anchors: Any,
) -> tuple[Any, Any]:
    """The loss, and the counts of `Trainer.accepted`; `softcap` is that of the target's logits. Others: see `drafted`."""
    places, counted = _places(anchors, sizes), jnp.exp(-np.arange(sizes.n_block) / _DECAY)
    is_there = (batch.texts[:, anchors, None] == _at(batch.texts, places)) & _at(batch.is_there, places)
    is_there &= places < batch.is_there.shape[1]
    hidden, previous, logits = drafted(weights, rows, batch, mask=mask, sizes=sizes, product=product, anchors=anchors)
    wanted = target_logits(batch.outputs, rows, softcap, product)
    chances, best = _at(jax.nn.softmax(wanted, axis=-1), places), _at(wanted.argmax(axis=-1), places)
    likely = jax.nn.log_softmax(logits, axis=-1)
    each = -(chances * likely).sum(axis=-1)  # the cross entropy
    overlap = jax.lax.stop_gradient(jnp.minimum(chances, jnp.exp(likely)).sum(axis=-1))
    seen = jax.lax.stop_gradient(jnp.concatenate([hidden, previous], axis=-1))
    sure = (seen * weights["conf_proj.weight"][0]).sum(axis=-1) + weights["conf_proj.bias"][0]
    each += jax.nn.softplus(sure) - overlap * sure  # that of the confidence with the overlap
    loss = (each * is_there * counted).sum() / jnp.maximum((is_there * counted).sum(), 1)
    is_right = is_there & _at(batch.is_drafted, places) & (logits.argmax(axis=-1) == best)
    is_whole = is_there[..., -1:]
    right = jnp.cumprod(is_right, axis=-1) * is_whole
    return loss, jnp.concatenate([is_whole.sum()[None], right.sum(axis=(0, 1))])


def drafted(
    weights: Arrays,
    rows: Any,
    batch: TrainingBatch,
    *,
    mask: Any,
    sizes: BlockSizes,
    product: Callable[[Any, Any], Any],
    anchors: Any,
) -> tuple[Any, Any, Any]:
    """What blocks draft: hidden states (B, A, N, E), those of the tokens before (B, A, N, R), and logits (B, A, N, V_d).

    Args:
        weights: By name, see `BlockSizes.shapes`.
        rows: (V_d, E), the target's output of the tokens that are drafted.
        batch: Of texts.
        mask: (E,), the embedding of the mask.
        sizes: Of the head.
        product: Of values and rows.
        anchors: (A,) int32, the positions p after which blocks begin.
    """
    hidden = _hidden(weights, batch, mask, anchors, sizes, product)
    previous = product(norm(batch.embedded, np.float32(1)), weights["markov_w1.weight"])
    previous = _at(previous, _places(anchors, sizes))
    return hidden, previous, product(hidden, rows) + product(previous, weights["markov_w2.weight"])


def _places(anchors: Any, sizes: BlockSizes) -> Any:
    """(A, N), where in a batch the predictions of blocks are."""
    return anchors[:, None] + np.arange(sizes.n_block)


def _at(values: Any, places: Any) -> Any:
    """Values (B, T, ...) at places (A, N), those beyond the end at the last."""
    return values[:, jnp.minimum(places, values.shape[1] - 1)]


def _hidden(
    weights: Arrays, batch: TrainingBatch, mask: Any, anchors: Any, sizes: BlockSizes, product: Callable[[Any, Any], Any]
) -> Any:
    """What the output is given in each place, (B, A, N, E)."""
    given = norm(product(batch.features * weights["features.weight"], weights["fc.weight"]), weights["enc.output_norm.weight"])
    is_seen = np.arange(given.shape[1]) <= anchors[:, None]
    is_seen = is_seen & (batch.texts[:, anchors, None] == batch.texts[:, None])  # (B, A, T)
    x = [batch.embedded[:, anchors, None], mask[None, None, None]]  # a block's first place, and the others, which are alike
    for i in range(sizes.n_layers):
        start = f"blk.{i}."
        of_layer = {name.removeprefix(start): each for name, each in weights.items() if name.startswith(start)}
        mixed = _attention(
            of_layer, given, [norm(each, of_layer["attn_norm.weight"]) for each in x], is_seen, anchors, sizes, product
        )
        made = _joined(x, sizes.n_block) + product(mixed, of_layer["attn_output.weight"])
        inner = norm(made, of_layer["ffn_norm.weight"])
        gate = jax.nn.silu(product(inner, of_layer["ffn_gate.weight"])) * product(inner, of_layer["ffn_up.weight"])
        x = [made + product(gate, of_layer["ffn_down.weight"])]
    return norm(x[0], weights["output_norm.weight"])


def _joined(x: list[Any], n: int) -> Any:
    """All n places (B, A, n, ...) of blocks; of two parts the second is that of all places but the first."""
    if len(x) == 1:
        return x[0]
    first, other = x
    return jnp.concatenate([first, jnp.broadcast_to(other, (*first.shape[:2], n - 1, *first.shape[3:]))], axis=2)


def _attention(
    of_layer: Arrays,
    given: Any,
    x: list[Any],
    is_seen: Any,
    anchors: Any,
    sizes: BlockSizes,
    product: Callable[[Any, Any], Any],
) -> Any:
    """(B, A, N, H D) from what a layer is given of the text, (B, T, E), and of blocks."""

    def heads(name: str, values: Any) -> Any:
        made = product(values, of_layer[f"attn_{name}.weight"])
        made = made.reshape(*made.shape[:-1], -1, sizes.head_dim)
        return made if name == "v" else norm(made, of_layer[f"attn_{name}_norm.weight"])

    n, at = given.shape[1], anchors[:, None] + 1 + np.arange(sizes.n_block)
    query, key, value = (_joined([heads(name, each) for each in x], sizes.n_block) for name in "qkv")
    query, key = (_rope(each, at, sizes.rope_base) for each in (query, key))
    scores = jnp.einsum("bajhd,bshd->bajhs", query, _rope(heads("k", given), np.arange(n), sizes.rope_base))
    scores = jnp.where(is_seen[:, :, None, None], scores, -1e30)
    of_block = jnp.where(np.tri(sizes.n_block, dtype=bool)[:, None], jnp.einsum("bajhd,bakhd->bajhk", query, key), -1e30)
    shares = jax.nn.softmax(jnp.concatenate([scores, of_block], axis=-1) * sizes.head_dim**-0.5, axis=-1)
    mixed = jnp.einsum("bajhs,bshd->bajhd", shares[..., :n], heads("v", given))
    mixed += jnp.einsum("bajhk,bakhd->bajhd", shares[..., n:], value)
    return mixed.reshape(*mixed.shape[:3], -1)


def _rope(x: Any, at: Any, base: float) -> Any:
    """Turn values (..., *P, H, D), those half a D apart together, by their positions (*P,)."""
    half = x.shape[-1] // 2
    angles = jnp.asarray(at, jnp.float32)[..., None] * np.float32(base) ** (-np.arange(half, dtype=np.float32) / half)
    cos, sin = jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
