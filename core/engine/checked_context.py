"""A model and its memory as plugins may use them: all that they feed is checked, because kernels do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from augury.batch import PartInput, SlotInput
from augury.engine.context import EngineContext
from augury.errors import LostDeviceError, OptionError
from augury.passes import Context, Pass, Target
from augury.types import Draft, tokens_array


class CheckedContext(EngineContext):
    """A context that plugins feed: it checks all inputs, because kernels do not."""

    def prepare(
        self, slot: int, tokens: np.ndarray, rows: int | np.ndarray = 0, draft: Draft | None = None, n_more: int = 0
    ) -> SlotInput:
        tokens = _checked(self, slot, tokens)
        if draft is not None:
            _checked(self, slot, draft.tokens)
        n = len(tokens) + (0 if draft is None else len(draft))
        if not (n and isinstance(rows, int) and 0 <= rows <= n):
            raise OptionError(f"a feed of {n} tokens with logits of {rows!r}, expected some, and at most as many")
        if n_more and (rows != 1 or draft is not None or self._has_sequence_state):
            raise OptionError(
                f"{n_more} more passes after a feed, expected one row, no draft, and a model without recurrent state"
            )
        return super().prepare(slot, tokens, rows, draft, n_more)

    def forward(self, feeds: Sequence[SlotInput], features: tuple[str, ...] = (), vocabulary: np.ndarray | None = None) -> Pass:
        if self.is_lost:  # once it is back its slots are empty, so this pass fails in any case, and the next ones may go on
            self.regain(0.0)
            raise LostDeviceError(f"a device of {self.info.name} is gone, or back with empty slots")
        n_features = len(features) - any(feed.hidden is not None for feed in feeds)
        if len(n_more := {feed.n_more for feed in feeds}) > 1 or (n_features and n_more != {0}):
            raise OptionError(
                f"{sorted(n_more)} more passes, {len(features)} features; expected one number, and if it is not 0 no features, "
                "or beside hidden states the one that takes their place"
            )
        return super().forward(feeds, features, vocabulary)


class EngineTarget(Target):
    """The loaded model as its drafters see it: nothing that a slot holds is written over."""

    def __init__(self, context: EngineContext) -> None:
        self.n_layers = context.info.n_layers
        self.heads, self.lack_of_heads = context.info.heads, context.lack_of_heads
        self.features = context.model.features
        self.chain_rows = context.chain_rows if all(part.caches for part in self.heads.values()) else 0
        self._context = context

    def forward(self, written: Mapping[int, np.ndarray], n_layers: int, vocabulary: np.ndarray | None = None) -> Pass:
        if not (isinstance(n_layers, int | np.integer) and 1 <= n_layers <= self.n_layers):
            raise OptionError(f"a pass through {n_layers!r} layers, expected 1 to {self.n_layers}")
        self._check_idle()
        written = {slot: _checked(self._context, slot, tokens) for slot, tokens in written.items()}
        if not written or not all(map(len, written.values())):
            raise OptionError("a pass over no tokens, expected some of each slot")
        return self._context.forward_drafts(written, int(n_layers), vocabulary)

    def forward_part(
        self, part: str, feeds: Sequence[PartInput], vocabulary: np.ndarray | None = None, n_more: int = 0
    ) -> Pass:
        """See `Target.forward_part`; `check_batch` sees that positions and hidden states fit."""
        if part not in self.heads:
            return super().forward_part(part, feeds, vocabulary)
        if n_more and not (self.heads[part].caches and all(feed.n_rows == 1 for feed in feeds)):
            raise OptionError(f"{n_more} more passes, expected one row of each slot, and a part that keeps something of tokens")
        self._check_idle()
        feeds = [attrs.evolve(feed, tokens=_checked(self._context, feed.slot, feed.tokens)) for feed in feeds]
        slots = {feed.slot for feed in feeds if len(feed.tokens)}
        if not feeds or len(slots) < len(feeds):
            raise OptionError(
                f"shares of {len(feeds)} slots, {len(slots)} with tokens; expected some tokens of each slot, once"
            )
        return self._context.forward_part(part, feeds, vocabulary, n_more)

    def n_held(self, part: str, slot: int, text: np.ndarray) -> int:
        mtp = self._context.mtp
        return len(text) if mtp is None else mtp.n_held(part, slot, text)

    def _check_idle(self) -> None:
        if self._context.is_busy:
            raise OptionError(
                "a pass through the target's layers while the target verifies a draft; a drafter that makes such "
                "passes does not draft ahead"
            )


def _checked(context: Context, slot: Any, tokens: Any) -> np.ndarray:
    """A copy of a plugin's tokens, which kernels can read without a look at them."""
    n_slots, n_vocab = context.spec.n_slots, context.info.n_vocab
    if not (isinstance(slot, int) and 0 <= slot < n_slots):
        raise OptionError(f"a feed of slot {slot!r}, expected 0 to {n_slots - 1}")
    try:
        copy = tokens_array(tokens)
    except (TypeError, ValueError) as error:
        raise OptionError(f"a feed of slot {slot} whose {error}") from None
    if len(copy) and not 0 <= copy.min() <= copy.max() < n_vocab:
        raise OptionError(f"a feed of tokens from {copy.min()} to {copy.max()}, expected 0 to {n_vocab - 1}")
    return copy
