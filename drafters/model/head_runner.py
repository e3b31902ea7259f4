"""Runs a head for all slots: a draft model that is given hidden states of its target beside tokens.

The head's slots are the target's, of the same numbers. Position p of one holds the head's keys and values of token p + 1
and of the target's hidden state of token p; the head's output there predicts token p + 2::

    text                  the   cat   sat   on          "on" was sampled last, and is not in the target's memory
    hidden states of       0     1     2
    the head is given   (cat,0)(sat,1)(on,2)            predicts token 4, the draft's first

Further tokens of a draft come with the output of the head's own layer for the token before. They are cut off again, because
the target will compute hidden states of the accepted ones.

Source: EAGLE-3 (see `augury.plugins.architectures.eagle`), as llama.cpp's driver feeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve

from augury.drafters.model.hidden_runner import FedText, HiddenRunner
from augury.passes import Context, Pass
from augury.types import Draft

if TYPE_CHECKING:
    from augury.drafters.model.cached_text import CachedText
    from augury.drafters.model.draft_runner import DraftRequest, WrittenDraft
    from augury.drafters.model.row_model import Encoder


class HeadRunner(HiddenRunner):
    """A head that the drafters of all slots share."""

    lag = 1

    def __init__(self, context: Context, encoder: Encoder, *, n_vocab: int) -> None:
        super().__init__(context, encoder, n_vocab=n_vocab)
        self._made = context.info.parts["main"].output
        self._features = (self._made,)
        self._last: Pass | None = None  # with logits, until its hidden states are in `_own`
        self._own = np.empty((0, 0), np.float32)

    def draft(self, requests: Sequence[DraftRequest]) -> list[WrittenDraft]:
        """See `DraftRunner.draft`; nothing of a draft stays."""
        written = super().draft(
            [
                evolve(request, history=request.history[1:], limit=request.limit if self.is_fed(request) else 0)
                for request in requests
            ]
        )
        for text in (self._text(request.slot) for request in requests):
            self._cut(text, text.n_fed)
            self._forget(text)
        return written

    def teacher_forced(self, slot: int, history: np.ndarray, n: int) -> np.ndarray:
        """See `DraftRunner.teacher_forced`; -1 where the tokens before were not fed, or too long ago."""
        text = self._text(slot)
        end = len(history) - 2  # the last but one token is given last
        start = max(end - n, text.fed.first)
        if text.is_parked or text.n_fed < end or start >= end:
            return np.full(n, -1, np.int32)
        while text.n < start:
            self._go_on(text, start - text.n)
        self._cut(text, start)
        best = self._forward([(text, history[start + 1 : end + 1], None)], n_rows=end - start).argmax()
        return np.concatenate([np.full(n - len(best), -1, np.int32), best])

    def _forward(
        self,
        shares: Sequence[tuple[CachedText, np.ndarray, Draft | None]],
        *,
        n_rows: int = 1,
        n_more: int = 0,
        vocabulary: np.ndarray | None = None,
    ) -> Pass:
        """See `DraftRunner._forward`; the layer's output for each share's last token is there until the next pass."""
        logits = super()._forward(shares, n_rows=n_rows, n_more=n_more, vocabulary=vocabulary)
        if n_rows:
            self._last, last = logits, -1
            for text, tokens, _ in shares:
                last += 1 if n_more else len(tokens)
                assert isinstance(text, FedText)
                text.made_at = last
        return logits

    def _own_hidden(self, text: FedText) -> np.ndarray | None:
        if self._last is not None:
            self._own, self._last = self._last.features(self._made).copy(), None
        return self._own[text.made_at : text.made_at + 1]
