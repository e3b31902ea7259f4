"""The losses of heads, and what they compute alike: products, norms, and batches of texts.

Products may round to bfloat16, which some processors multiply twice as fast, and sum in float32; products for gradients of
weights never round.

Source: Li et al. 2025 (EAGLE-3), section 3.1, "training-time test"; deepseek-ai/DeepSpec (DSpark: anchors, weights of places,
confidence); hao-ai-lab/JetSpec (causal blocks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from augury.files.gguf_writer import EPSILON
from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.head import HeadSizes

Arrays = dict[str, Any]
Product = Callable[[Any, Any], Any]
_STEP_WEIGHT = 0.8  # of each step's loss beside that of the step before
_DECAY = 4.0  # places after which one counts a third as much


class TrainingBatch(NamedTuple):
    """Rows of texts: B of T tokens, each row of one text or several. JAX knows the arrays of a tuple."""

    features: np.ndarray  # (B, T, 3 E) float32, the target's
    embedded: np.ndarray  # (B, T, E) float32, the target's embedding of each next token
    outputs: np.ndarray  # (B, T, E) float32, the input of the target's output at each next token
    texts: np.ndarray  # (B, T) int32, the text of each token, by its number in the row from 1 on; 0: none
    is_there: np.ndarray  # (B, T) bool: whether the prediction counts
    is_drafted: np.ndarray  # (B, T) bool: whether the text's token to predict is one that the head drafts


def exact_product(x: Any, rows: Any) -> Any:
    """The product of x (..., n_in) and rows (n_out, n_in), which rounds nothing."""
    return x @ rows.T


@jax.custom_vjp
def rounded_product(x: Any, rows: Any) -> Any:
    """The same of rounded values."""
    return _rounded(x, rows, 1)


def _rounded(x: Any, weight: Any, axis: int) -> Any:
    """The product over the last axis of x and an axis of a matrix, of rounded values."""
    axes = (((x.ndim - 1,), (axis,)), ((), ()))
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return jax.lax.dot_general(x, weight, axes, preferred_element_type=jnp.float32)


def _gradients(given: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    x, rows = given
    of_rows = gradient.reshape(-1, gradient.shape[-1]).T @ x.reshape(-1, x.shape[-1])
    return _rounded(gradient, rows, 0), of_rows


rounded_product.defvjp(lambda x, rows: (rounded_product(x, rows), (x, rows)), _gradients)


def norm(x: Any, weight: Any) -> Any:
    """Values (..., n) of a root mean square of 1, times weights (n,)."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def target_logits(outputs: Any, rows: Any, softcap: float | None, product: Product) -> Any:
    """The target's logits (..., V_d) from inputs of its output, and rows of that (V_d, E)."""
    wanted = product(outputs, rows)
    return wanted if softcap is None else softcap * jnp.tanh(wanted / softcap)


def _fed_forward(x: Any, of_layer: Arrays, product: Product) -> Any:
    """Values (..., E) with what a layer's feed-forward adds to them."""
    inner = norm(x, of_layer["ffn_norm.weight"])
    gate = jax.nn.silu(product(inner, of_layer["ffn_gate.weight"])) * product(inner, of_layer["ffn_up.weight"])
    return x + product(gate, of_layer["ffn_down.weight"])


def _layer_of(weights: Arrays, number: int) -> Arrays:
    """The weights of a layer, by the ends of their names."""
    start = f"blk.{number}."
    return {name.removeprefix(start): each for name, each in weights.items() if name.startswith(start)}


def _turned_pairs(x: Any, base: float) -> Any:
    """Turn neighbouring pairs of (B, T, H, D) by their positions."""
    n, dim = x.shape[1], x.shape[-1]
    angles = np.arange(n)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[None, :, None] for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def _later(x: Any, n: int) -> Any:
    """Position p gets the value at p - n; zeros before the beginning."""
    return jnp.pad(x, [(0, 0), (n, 0), *[(0, 0)] * (x.ndim - 2)])[:, : x.shape[1]] if n else x


def _attention_of_steps(query: Any, keys: list[Any], values: list[Any], step: int, texts: Any) -> Any:
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


def eagle_losses(
    weights: Arrays,
    rows: Any,
    batch: TrainingBatch,
    *,
    sizes: HeadSizes,
    softcap: float | None,
    n_unrolled: int,
    product: Product,
) -> tuple[Any, Any]:
    """The loss of an EAGLE-3 head, and the counts of `Trainer.accepted`: several steps of drafting unrolled.

    Position p of a text is given the target's features of token p and token p + 1, and predicts token p + 2, as when it drafts.
    In step j > 0 it is given, in place of these features, its own output of step j - 1 at p - 1. Then it sees the keys of step
    0 up to p - j, and after them those of its own steps, at p - j + 1 to p: the texts of all drafts that could begin, at once.
    """
    features, embedded, outputs, texts, is_there, is_drafted = batch
    n_batch, n = is_there.shape
    wanted = target_logits(outputs, rows, softcap, product)
    chances, best = jax.nn.softmax(wanted, axis=-1), wanted.argmax(axis=-1)
    hidden = product(norm(features, weights["enc.output_norm.weight"]), weights["fc.weight"])
    of_layer, n_embd = _layer_of(weights, 0), sizes.n_embd
    token = norm(embedded, of_layer["attn_norm.weight"])
    of_tokens = {name: product(token, of_layer[f"attn_{name}.weight"][:, :n_embd]) for name in "qkv"}  # alike in all steps
    keys, values = list[Any](), list[Any]()
    loss, is_right, right = jnp.float32(0), is_there, []
    for step in range(n_unrolled):
        is_there = is_there & (_later(texts, step) == texts)
        seen = norm(hidden, of_layer["attn_norm_2.weight"])
        query, key, value = (
            (of_token + product(seen, of_layer[f"attn_{name}.weight"][:, n_embd:])).reshape(n_batch, n, -1, sizes.head_dim)
            for name, of_token in of_tokens.items()
        )
        keys.append(_turned_pairs(key, sizes.rope_base))
        values.append(value)
        mixed = _attention_of_steps(_turned_pairs(query, sizes.rope_base), keys, values, step, texts)
        x = _fed_forward(seen + product(mixed, of_layer["attn_output.weight"]), of_layer, product)
        logits = product(norm(x, weights["output_norm.weight"]), rows)
        each = jax.nn.logsumexp(logits, axis=-1) - (chances * logits).sum(axis=-1)  # the cross entropy: chances sum to 1
        loss += _STEP_WEIGHT**step * (each * is_there).sum() / jnp.maximum(is_there.sum(), 1)
        is_right = _later(is_right, 1 if step else 0) & is_there & is_drafted & (logits.argmax(axis=-1) == best)
        right.append(is_right)
        hidden = _later(x, 1)
    # of drafts that all is there of
    whole = [_later(each, n_unrolled - 1 - step) & is_there for step, each in enumerate(right)]
    return loss, jnp.stack([each.sum() for each in (is_there, *whole)])


def block_losses(
    weights: Arrays,
    rows: Any,
    batch: TrainingBatch,
    *,
    mask: Any,
    sizes: BlockSizes,
    softcap: float | None,
    product: Product,
    anchors: Any,
) -> tuple[Any, Any]:
    """The loss of a block head, and the counts of `Trainer.accepted`; `softcap` is that of the target's logits.

    At some positions of a text a block begins, all of whose tokens are drafted at once. One that begins after position p has
    token p + 1 and masks; in place j it predicts token p + 2 + j, as when it drafts. Each place sees the hidden states of the
    target up to p, and the places of its block up to its own. The logits that depend on the token before are added as that of
    the text has them. A place counts the less the later it is, by exp(-j / 4). Arguments: see `drafted`.
    """
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
    product: Product,
    anchors: Any,
) -> tuple[Any, Any, Any]:
    """What blocks draft: hidden states (B, A, N, E), those of the tokens before (B, A, N, R), and logits (B, A, N, V_d).

    Blocks begin after the positions `anchors` (A,) int32. The target's output of the tokens that are drafted is `rows` (V_d,
    E), the embedding of the mask `mask` (E,); for weights see `BlockSizes.shapes`.
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


def _hidden(weights: Arrays, batch: TrainingBatch, mask: Any, anchors: Any, sizes: BlockSizes, product: Product) -> Any:
    """What the output is given in each place, (B, A, N, E)."""
    given = norm(product(batch.features * weights["features.weight"], weights["fc.weight"]), weights["enc.output_norm.weight"])
    is_seen = np.arange(given.shape[1]) <= anchors[:, None]
    is_seen = is_seen & (batch.texts[:, anchors, None] == batch.texts[:, None])  # (B, A, T)
    x = [batch.embedded[:, anchors, None], mask[None, None, None]]  # a block's first place, and the others, which are alike
    for i in range(sizes.n_layers):
        of_layer = _layer_of(weights, i)
        mixed = _attention(
            of_layer, given, [norm(each, of_layer["attn_norm.weight"]) for each in x], is_seen, anchors, sizes, product
        )
        x = [_fed_forward(_joined(x, sizes.n_block) + product(mixed, of_layer["attn_output.weight"]), of_layer, product)]
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
    product: Product,
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
