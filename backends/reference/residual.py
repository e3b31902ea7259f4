"""How blocks read and write residual streams (n, S, E): see `augury.blocks.Connection`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from augury.backends.reference.weights import Weights, each_normed
from augury.blocks import Connection, Linear, Norm, Vector


def read(connection: Connection | None, weights: Weights, streams: np.ndarray) -> np.ndarray:
    """The input of a block, (n, E)."""
    return streams[:, -1] if connection is None else connection.read(partial(_given, weights), streams)


def write(connection: Connection | None, weights: Weights, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The streams once a block has given y (n, E)."""
    if connection is None:
        return np.concatenate([streams[:, :-1], streams[:, -1:] + y[:, None]], axis=1)
    return connection.write(partial(_given, weights), streams, y)


def _given(weights: Weights, part: Any) -> Any:
    """See `Connection.read`."""
    match part:
        case Vector():
            return weights.vector(part.weight).reshape(-1)
        case Linear():
            return partial(weights.product, part)
        case Norm():
            return partial(each_normed, block=part, weights=weights)
    return part
