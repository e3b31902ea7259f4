"""What trainings of heads compute alike: products, norms, and batches of texts.

Products round to bfloat16, which many processors multiply twice as fast, and sum in float32; products for gradients of weights
do not round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from augury.files.gguf_writer import EPSILON

Arrays = dict[str, Any]


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
def product(x: Any, rows: Any) -> Any:
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


product.defvjp(lambda x, rows: (product(x, rows), (x, rows)), _gradients)


def norm(x: Any, weight: Any) -> Any:
    """Values (..., n) of a root mean square of 1, times weights (n,)."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def target_logits(outputs: Any, rows: Any, softcap: float | None, product: Callable[[Any, Any], Any]) -> Any:
    """The target's logits (..., V_d) from inputs of its output, and rows of that (V_d, E)."""
    wanted = product(outputs, rows)
    return wanted if softcap is None else softcap * jnp.tanh(wanted / softcap)
