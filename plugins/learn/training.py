"""The training of a head by JAX, whose output stays the target's own.

Source: Kingma and Ba 2015 (Adam).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from augury.plugins.learn import block_losses, eagle_losses
from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.head import N_ROW, N_STEPS, HeadSizes, TargetTensors, Weights
from augury.plugins.learn.training_math import TrainingBatch, exact_product, product

_BETAS = (0.9, 0.95)
_WARMUP = 0.1  # of all steps: until then the learning rate rises
_MAX_NORM = 1.0  # of the gradient
_STRIDE = 2  # of the positions after which a block is learnt from; they change from batch to batch


class Trainer:
    """A head's weights, with the optimizer's state."""

    def __init__(
        self, sizes: HeadSizes, weights: Weights, rows: np.ndarray, target: TargetTensors, rate: float, n_total: int
    ) -> None:
        """Take over first weights.

        Args:
            sizes: The sizes of the head.
            weights: All but the output's; not mutated.
            rows: (V_d, E) float32, the target's output of the tokens that are drafted.
            target: Has the soft cap of the target's logits, and the embedding of a block head's mask.
            rate: Learning rate at its highest; it falls to a tenth of that.
            n_total: Steps in all.
        """
        self._state: dict[str, Any] = {
            "weights": weights,
            "optimizer": (optimizer := _optimizer(rate, n_total)).init(weights),
            "n_steps": np.int32(0),
        }
        self._rows = jnp.asarray(rows)
        losses, judged = _losses_of(sizes, target)
        self._losses = jax.jit(judged)
        self._update = jax.jit(partial(_update, losses=losses, optimizer=optimizer), static_argnames="stage")

    @property
    def n_steps(self) -> int:
        """How many batches it has learnt of."""
        return int(self._state["n_steps"])

    @property
    def weights(self) -> Weights:
        """The weights of the present head."""
        return {name: np.asarray(values) for name, values in self._state["weights"].items()}

    def step(self, batch: TrainingBatch, stage: int) -> float:
        """Learn of a batch, in a stage from 1 to `HeadSizes.n_stages`; returns its loss before that."""
        made = self._update(self._state, self._rows, batch, stage=stage)
        self._state, loss = made  # at once: Ctrl-C may come any time
        return float(loss)

    def accepted(self, batch: TrainingBatch) -> np.ndarray:
        """(N + 1,): drafts of N tokens, and in how many of them at least the first 1, 2, ... are right."""
        _, right = self._losses(self._state["weights"], self._rows, batch)
        return np.asarray(right)

    def saved(self) -> dict[str, np.ndarray]:
        """All that `restore` needs, by name."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self._state)
        return {jax.tree_util.keystr(path): np.asarray(values) for path, values in leaves}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from a checkpoint."""
        self._state = jax.tree_util.tree_map_with_path(lambda path, _: saved[jax.tree_util.keystr(path)], self._state)


def _optimizer(rate: float, n_total: int) -> optax.GradientTransformation:
    """Adam, with a bounded gradient and a rate that rises first and falls then."""

    def rate_of(n_before: Any) -> Any:
        share = (n_before + 1.0) / n_total
        falling = 0.55 + 0.45 * jnp.cos(jnp.pi * jnp.minimum(share, 1.0))
        return rate * jnp.minimum(share / _WARMUP, 1.0) * falling

    return optax.chain(optax.clip_by_global_norm(_MAX_NORM), optax.adam(rate_of, *_BETAS))


def _losses_of(sizes: HeadSizes, target: TargetTensors) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loss by weights, rows, batch, batches before and stage; and by the first three, of all drafts, without rounding."""
    if not isinstance(sizes, BlockSizes):
        losses = partial(eagle_losses.losses, sizes=sizes, softcap=target.softcap)
        return (
            lambda *given, n_before, stage: losses(*given, n_unrolled=stage, product=product),  # noqa: ARG005 - as below
            partial(losses, n_unrolled=N_STEPS, product=exact_product),
        )
    mask, every = target.embedding(np.array(sizes.mask, np.int32)), np.arange(N_ROW)
    of_block = partial(block_losses.losses, mask=mask, sizes=sizes, softcap=target.softcap)
    return (
        lambda *given, n_before, stage: of_block(*given, anchors=every[::_STRIDE] + n_before % _STRIDE, product=product),  # noqa: ARG005
        partial(of_block, anchors=every, product=exact_product),
    )


def _update(
    state: dict[str, Any],
    rows: Any,
    batch: TrainingBatch,
    *,
    losses: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    stage: int,
) -> tuple[dict[str, Any], Any]:
    """One step of the optimizer."""
    weights = state["weights"]
    of_weights = jax.value_and_grad(partial(losses, n_before=state["n_steps"], stage=stage), has_aux=True)
    (loss, _), gradients = of_weights(weights, rows, batch)
    moves, of_optimizer = optimizer.update(gradients, state["optimizer"], weights)
    made = {"weights": optax.apply_updates(weights, moves), "optimizer": of_optimizer, "n_steps": state["n_steps"] + 1}
    return made, loss
