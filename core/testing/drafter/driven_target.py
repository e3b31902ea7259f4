"""The target as drafters under test see it: its first layers, behind a guard that knows what its slots hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from augury.batch import Batch, checked_batch
from augury.interfaces import Target
from augury.testing.drafter import contract

if TYPE_CHECKING:
    from augury.interfaces import Model
    from augury.passes import Pass

__all__ = ["DrivenTarget"]


class DrivenTarget(Target):
    """Feeds the slots of a model, and lets drafters use its first layers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.n_layers = model.info.n_layers
        self._n_held = dict.fromkeys(range(model.state_spec.n_slots), 0)

    def feed(self, slot: int, start: int, tokens: np.ndarray) -> None:
        """Store tokens (n,) int32 at positions from `start` on; what the slot held from there on is forgotten."""
        n = len(tokens)
        positions = np.arange(start, start + n, dtype=np.int32)
        self.model.forward(Batch(tokens, np.full(n, slot, np.int32), positions, np.empty(0, np.int32)))
        self._n_held[slot] = start + n

    def forward(self, batch: Batch) -> Pass:
        """See `Target.forward`.

        Raises:
            ContractError: The pass takes all layers, or would write over what a slot holds.
        """
        batch = checked_batch(batch, self.model.state_spec, self.model.info)
        if batch.n_layers is None:
            raise contract.LAYERS.broken("Session.target.forward", "a pass without n_layers")
        for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True):
            if position < self._n_held[slot]:
                seen = f"position {position} of slot {slot}, which holds {self._n_held[slot]} tokens"
                raise contract.LAYERS.broken("Session.target.forward", seen)
        return self.model.forward(batch)
