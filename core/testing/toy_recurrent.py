"""A model with a recurrent state, a few lines of numpy: a token that is taken in wrongly shows in its logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from augury.batch import Batch
from augury.errors import AuguryError
from augury.testing.toy_model import ToyModel
from augury.types import Allocation, StateSpec

_N_CONV = 3
_FACTOR = np.uint64(6364136223846793005)  # odd, so that nothing of a state is lost
_WEIGHTS = (3, 5, 7)
_TURNED = np.array([3, 0, 1, 2])


class ToyRecurrentModel(ToyModel):
    """Keeps of a slot's text one vector, updated in place token by token, and the last three tokens.

    The vector turns by one number, is multiplied and added to, in 64-bit integers: two tokens in another order, or one too
    many, leave another vector. Its logits are a hash of both, and with `is_hybrid` of the tokens in its cells, too.

    Attributes:
        state: (n_slots, 4) uint64.
        conv: (n_slots, 3) int64, the token before the last last.
        aside: By slot, the drafted tokens of its last pass by cell.
        saved: By slot, the copy of its state and convolution that was saved last.
    """

    def __init__(self, *, can_keep_aside: bool = True, is_hybrid: bool = False, **model: Any) -> None:
        """Make a model; see `ToyModel` for the rest. Its texts tend to repeat the token three tokens before.

        Its passes leave drafted tokens out of the state if it `can_keep_aside`; it has cells as well if it `is_hybrid`.
        """
        super().__init__(**model)
        n_slots, n_ctx = self.cells.shape
        self.state = np.zeros((n_slots, 4), np.uint64)
        self.conv = np.full((n_slots, _N_CONV), -1, np.int64)
        self.aside: dict[int, dict[int, int]] = {}
        self.saved: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._is_hybrid = is_hybrid
        n_bytes = self.state[0].nbytes + self.conv[0].nbytes
        self.state_spec = StateSpec(n_slots, n_ctx, 8 if is_hybrid else 0, n_bytes, can_keep_aside)

    def logits(self, tokens: np.ndarray, *, n_layers: int | None = None) -> np.ndarray:
        return self._of(self._follow(tokens), n_layers)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        views = super().slot_memory(slot, n, start)
        return views if start is not None else [*views, self.state[slot], self.conv[slot]]

    def memory_table(self) -> Sequence[Allocation]:
        return [*super().memory_table(), Allocation("states", self.state.nbytes + self.conv.nbytes)]

    def _check(self, batch: Batch) -> None:
        super()._check(batch)
        if batch.is_drafted is not None and not self.state_spec.can_keep_aside:
            raise AuguryError("a toy that cannot keep tokens aside is given drafted ones")

    def _begin(self, batch: Batch) -> None:
        """Restore states, take in the accepted tokens of the last pass, and drop the rest of it."""
        super()._begin(batch)
        for slot in batch.restores.tolist() if batch.restores is not None else ():
            self.state[slot], self.conv[slot] = self.saved[slot]
        for slot, cell, _ in batch.accepted.tolist() if batch.accepted is not None else ():
            self.state[slot], self.conv[slot], _ = self._after((self.state[slot], self.conv[slot], ()), self.aside[slot][cell])
        self.aside |= {slot: {} for slot in batch.slots.tolist()}
        self._n_taken = Counter[int]()

    def _before(self, batch: Batch, slot: int, position: int) -> Any:
        if position == 0:
            self.state[slot], self.conv[slot], _ = self._follow(np.empty(0))
        self._save(batch, slot)
        return self.state[slot].copy(), self.conv[slot].copy(), tuple(self.cells[slot, :position].tolist())

    def _take(self, batch: Batch, i: int, cell: int, held: Any) -> None:
        slot = int(batch.slots[i])
        if batch.is_drafted is not None and batch.is_drafted[i]:
            self.aside[slot][cell] = int(batch.tokens[i])
        else:
            self.state[slot], self.conv[slot] = held[0], held[1]
            self._n_taken[slot] += 1
            self._save(batch, slot)

    def _save(self, batch: Batch, slot: int) -> None:
        if batch.saves is not None and [slot, self._n_taken[slot]] in batch.saves.tolist():
            self.saved[slot] = self.state[slot].copy(), self.conv[slot].copy()

    def _follow(self, tokens: np.ndarray) -> Any:
        held: Any = np.zeros(4, np.uint64), np.full(_N_CONV, -1, np.int64), ()
        for token in tokens:
            held = self._after(held, int(token))
        return held

    def _after(self, held: Any, token: int) -> Any:
        """State, convolution and cells when a token is added to them."""
        state, conv, cells = held
        before = conv.tolist()
        new = token + 1 + sum(weight * (each + 1) for weight, each in zip(_WEIGHTS, before, strict=True))
        return state[_TURNED] * _FACTOR + np.uint64(new), np.array([*before[1:], token]), (*cells, token)

    def _of(self, held: Any, n_layers: int | None) -> np.ndarray:
        conv = held[1]
        return self._logits(self._seen(held), None if self._period is None or conv[0] < 0 else int(conv[0]), n_layers)

    def _seen(self, held: Any) -> bytes:
        state, conv, cells = held
        return state.tobytes() + conv.tobytes() + (np.int64(cells).tobytes() if self._is_hybrid else b"")
