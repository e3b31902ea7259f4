"""`LowRank`: what adapters (LoRA) add to the products of a matrix."""

from __future__ import annotations

import numpy as np
from attrs import field, frozen


@frozen(eq=False)
class LowRank:
    """y += up.T (s * (down x)): s has for each of R rows the scale that its adapter has in the token's slot.

    A row whose scale is 0 adds nothing, so that y keeps its bits. Several adapters' rows follow one another.
    """

    down: np.ndarray = field(repr=False)  # (R, n_in) float32
    up: np.ndarray = field(repr=False)  # (R, n_out) float32
    adapters: np.ndarray = field(repr=False)  # (R,) int32, of each row the column in `Batch.scales`
    n_adapters: int  # of these columns
