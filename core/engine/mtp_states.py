"""How far layers that predict further tokens have come with the text of each slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from augury.interfaces import Model
from augury.slot_states import SlotStates

_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse; the bits of the golden ratio are well mixed


class MtpStates(SlotStates):
    """The states of a model's slots, with a mark for each position of such a part: the digest of the text up to it.

    Marks are copied, saved and restored with the rest. So a part's states are known by the text of which they were computed,
    however they came into a slot. States that were written over have other marks, or none.
    """

    def __init__(self, model: Model) -> None:
        self.info, self.options, self.state_spec, self._model = model.info, model.options, model.state_spec, model
        self._given = 0, 0  # the slot and positions of the last `slot_memory`
        spec = model.state_spec
        self._marks = {part: np.zeros((spec.n_slots, spec.n_ctx), np.uint64) for part in model.info.heads}
        factors = np.full(spec.n_ctx, _FACTOR, np.uint64)
        self._powers = np.multiply.accumulate(factors)
        self._inverses = np.multiply.accumulate(np.full(spec.n_ctx, pow(_FACTOR, -1, 1 << 64), np.uint64))

    @property
    def identity(self) -> str:
        return f"{self._model.identity}, {len(self._marks)} layers that predict further tokens"

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        self._given = slot, n
        return [*self._model.slot_memory(slot, n, start), *(marks[slot, start:n] for marks in self._marks.values())]

    def slot_written(self) -> None:
        """See `SlotStates.slot_written`; positions beyond the requested ones, which backends may add, become unknown."""
        self._model.slot_written()
        slot, n = self._given
        for marks in self._marks.values() if n else ():
            marks[slot, n:] = 0

    def copy(self, source: int, target: int, n: int) -> None:
        self._model.copy(source, target, n)
        for marks in self._marks.values():
            marks[target, :n], marks[target, n:] = marks[source, :n], 0

    def forget(self, part: str, slot: int, start: int) -> None:
        """A pass is to write over the positions of a part from one on."""
        self._marks[part][slot, start:] = 0

    def keep(self, part: str, slot: int, start: int, tokens: np.ndarray) -> None:
        """A part has computed the tokens (m,) int32 of a slot's text from a position on."""
        marks = self._marks[part][slot]
        before = marks[start - 1] if start else np.uint64(0)
        if len(tokens) and (before or not start):
            marks[start : start + len(tokens)] = self._digests(tokens, before)

    def n_held(self, part: str, slot: int, text: np.ndarray) -> int:
        """How many of the first tokens of a text (t,) int32 a part has computed in a slot."""
        differs = self._digests(text, np.uint64(0)) != self._marks[part][slot, : len(text)]
        return int(differs.argmax()) if differs.any() else len(text)

    def _digests(self, tokens: np.ndarray, before: np.uint64) -> np.ndarray:
        """(m,) uint64: each is that before, times the factor, plus the token and 1."""
        n = len(tokens)
        sums: np.ndarray = np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * self._inverses[:n], dtype=np.uint64)
        return (sums + before) * self._powers[:n]
