"""The training of an EAGLE-3 head by JAX: several steps of drafting unrolled, each over the previous step's output.

Position p of a text is given the target's features of token p and token p + 1, and predicts token p + 2, as when it drafts.
In step j > 0 it is given, in place of these features, its own output of step j - 1 at p - 1. Then it sees the keys of step 0 up
to p - j, and after them those of its own steps, at p - j + 1 to p: the texts of all drafts that could begin, at once.

The output stays the target's own. Products round to bfloat16, which many processors multiply twice as fast, and sum in float32;
products for gradients of weights do not round.

Source: Li et al. 2025 (EAGLE-3), section 3.1, "training-time test"; Kingma and Ba 2015 (Adam).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from augury.files.gguf_writer import EPSILON
from augury.plugins.learn.head import HeadSizes, Weights

N_STEPS = 3  # tokens that a draft is trained for
_STEP_WEIGHT = 0.8  # of each step's loss beside that of the step before
_BETAS = (0.9, 0.95)
_WARMUP = 0.1  # of all steps: until then the learning rate rises
_MAX_NORM = 1.0  # of the gradient
_Arrays = dict[str, Any]


class TrainingBatch(NamedTuple):
    """Rows of texts: B of T tokens, each row of one text or several. JAX knows the arrays of a tuple."""

    features: np.ndarray  # (B, T, 3 E) float32, the target's
    embedded: np.ndarray  # (B, T, E) float32, the target's embedding of each next token
    outputs: np.ndarray  # (B, T, E) float32, the input of the target's output at each next token
    texts: np.ndarray  # (B, T) int32, the text of each token, by its number in the row from 1 on; 0: none
    is_there: np.ndarray  # (B, T) bool: whether the prediction counts
    is_drafted: np.ndarray  # (B, T) bool: whether the text's token to predict is one that the head drafts


class Trainer:
    """A head's weights, with the optimizer's state."""

    def __init__(
        self, sizes: HeadSizes, weights: Weights, rows: np.ndarray, softcap: float | None, rate: float, n_total: int
    ) -> None:
        """Take over first weights.

        Args:
            sizes: The sizes of the head.
            weights: All but the output's; not mutated.
            rows: (V_d, E) float32, the target's output of the tokens that are drafted.
            softcap: The soft cap of the target's logits.
            rate: Learning rate at its highest; it falls to a tenth of that.
            n_total: Steps in all.
        """
        self._state: dict[str, Any] = {
            "weights": weights,
            "optimizer": (optimizer := _optimizer(rate, n_total)).init(weights),
            "n_steps": np.int32(0),
        }
        self._rows = jnp.asarray(rows)
        self._losses = jax.jit(partial(_losses, sizes=sizes, softcap=softcap, n_unrolled=N_STEPS, product=_exact_product))
        update = partial(_update, sizes=sizes, softcap=softcap, optimizer=optimizer)
        self._update = jax.jit(update, static_argnames="n_unrolled")

    @property
    def n_steps(self) -> int:
        """How many batches it has learnt of."""
        return int(self._state["n_steps"])

    @property
    def weights(self) -> Weights:
        """The weights of the present head."""
        return {name: np.asarray(values) for name, values in self._state["weights"].items()}

    def step(self, batch: TrainingBatch, n_unrolled: int = N_STEPS) -> float:
        """Learn of a batch to draft so many tokens; returns its loss before that."""
        made = self._update(self._state, self._rows, batch, n_unrolled=n_unrolled)
        self._state, loss = made  # at once: Ctrl-C may come any time
        return float(loss)

    def accepted(self, batch: TrainingBatch) -> np.ndarray:
        """(N_STEPS + 1,): tokens drafted, and how many of them at least 1, 2, ... tokens of a draft were right."""
        _, right = self._losses(self._state["weights"], self._rows, batch)
        return np.asarray(right)

    def saved(self) -> dict[str, np.ndarray]:
        """All that `restore` needs, by name."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self._state)
        return {jax.tree_util.keystr(path): np.asarray(values) for path, values in leaves}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from a checkpoint."""
        self._state = jax.tree_util.tree_map_with_path(lambda path, _: saved[jax.tree_util.keystr(path)], self._state)


def _exact_product(x: Any, rows: Any) -> Any:
    return x @ rows.T


@jax.custom_vjp
def _product(x: Any, rows: Any) -> Any:
    """The product of x (..., n_in) and rows (n_out, n_in)."""
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


_product.defvjp(lambda x, rows: (_product(x, rows), (x, rows)), _gradients)


def _norm(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


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


def _losses(
    weights: _Arrays,
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
    wanted = product(outputs, rows)
    wanted = wanted if softcap is None else softcap * jnp.tanh(wanted / softcap)
    chances, best = jax.nn.softmax(wanted, axis=-1), wanted.argmax(axis=-1)
    hidden = product(_norm(features, weights["enc.output_norm.weight"]), weights["fc.weight"])
    token, n_embd = _norm(embedded, weights["blk.0.attn_norm.weight"]), sizes.n_embd
    of_tokens = {name: product(token, weights[f"blk.0.attn_{name}.weight"][:, :n_embd]) for name in "qkv"}  # alike in all steps
    keys, values = list[Any](), list[Any]()
    loss, is_right, right = jnp.float32(0), is_there, []
    for step in range(n_unrolled):
        is_there = is_there & (_later(texts, step) == texts)
        seen = _norm(hidden, weights["blk.0.attn_norm_2.weight"])
        query, key, value = (
            (of_token + product(seen, weights[f"blk.0.attn_{name}.weight"][:, n_embd:])).reshape(n_batch, n, -1, sizes.head_dim)
            for name, of_token in of_tokens.items()
        )
        keys.append(_rope(key, sizes.rope_base))
        values.append(value)
        mixed = _attention(_rope(query, sizes.rope_base), keys, values, step, texts)
        x = seen + product(mixed, weights["blk.0.attn_output.weight"])
        inner = _norm(x, weights["blk.0.ffn_norm.weight"])
        gate = jax.nn.silu(product(inner, weights["blk.0.ffn_gate.weight"])) * product(inner, weights["blk.0.ffn_up.weight"])
        x = x + product(gate, weights["blk.0.ffn_down.weight"])
        logits = product(_norm(x, weights["output_norm.weight"]), rows)
        each = jax.nn.logsumexp(logits, axis=-1) - (chances * logits).sum(axis=-1)  # the cross entropy: chances sum to 1
        loss += _STEP_WEIGHT**step * (each * is_there).sum() / jnp.maximum(is_there.sum(), 1)
        is_right = _later(is_right, 1 if step else 0) & is_there & is_drafted & (logits.argmax(axis=-1) == best)
        right.append(is_right)
        hidden = _later(x, 1)
    whole = [
        _later(each, n_unrolled - 1 - step) & is_there for step, each in enumerate(right)
    ]  # of drafts that all is there of
    return loss, jnp.stack([each.sum() for each in (is_there, *whole)])


def _optimizer(rate: float, n_total: int) -> optax.GradientTransformation:
    """Adam, with a bounded gradient and a rate that rises first and falls then."""

    def rate_of(n_before: Any) -> Any:
        share = (n_before + 1.0) / n_total
        falling = 0.55 + 0.45 * jnp.cos(jnp.pi * jnp.minimum(share, 1.0))
        return rate * jnp.minimum(share / _WARMUP, 1.0) * falling

    return optax.chain(optax.clip_by_global_norm(_MAX_NORM), optax.adam(rate_of, *_BETAS))


def _update(
    state: dict[str, Any],
    rows: Any,
    batch: TrainingBatch,
    *,
    sizes: HeadSizes,
    softcap: float | None,
    optimizer: optax.GradientTransformation,
    n_unrolled: int,
) -> tuple[dict[str, Any], Any]:
    """One step of the optimizer."""
    loss_of = partial(_losses, rows=rows, batch=batch, sizes=sizes, softcap=softcap, n_unrolled=n_unrolled, product=_product)
    weights = state["weights"]
    (loss, _), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
    moves, of_optimizer = optimizer.update(gradients, state["optimizer"], weights)
    made = {"weights": optax.apply_updates(weights, moves), "optimizer": of_optimizer, "n_steps": state["n_steps"] + 1}
    return made, loss
