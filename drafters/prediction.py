"""`prediction`: the text that a request expects its answer to resemble, as an edited file resembles the file before.

The answer is followed through the predicted text, and the next tokens there are the draft. Where the two differ nothing is
drafted until the last `n_match` tokens of the answer occur in the predicted text; of several places the draft goes on from the
first one after that at which they differed, or else from the last one before::

    predicted  a b c d e f g        answer  a b X d e        n_match 2
    draft      c (rejected), then nothing after X and after d, then f g

Source: OpenAI's predicted outputs, whose parameter `prediction` is; how the answer is found again is augury's own.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from augury.interfaces import Drafter, DrafterTraits, Session
from augury.options import option
from augury.types import Draft


@frozen
class PredictionOptions:
    """Options of `prediction`."""

    n_match: int = option(
        2, help="tokens of the answer that must occur in the predicted text to go on there", ge=1, le=1024, per_request=True
    )


class Prediction(Drafter):
    """Follows the answer through the predicted text."""

    name = "prediction"
    traits = DrafterTraits(scope="request", serves="prediction")
    options_class = PredictionOptions
    options: PredictionOptions

    def __init__(self, options: PredictionOptions, session: Session) -> None:
        super().__init__(options, session)
        self._text = np.empty(0, np.int32)
        self._at = 0  # the next place in it; if `_is_lost`, where the answer differed
        self._is_lost = False
        self._n_seen = 0  # of the history

    def begin(self, history: np.ndarray, n_reused: int) -> None:  # noqa: ARG002 - the interface's
        """Take the request's prediction; the last token is the answer's first."""
        if self.session.prediction is not None:
            self._text = self.session.prediction
        self._at, self._is_lost, self._n_seen = 0, False, len(history) - 1

    def draft(self, history: np.ndarray, limit: int) -> Draft:
        if len(self._text):
            self._follow(history)
        return Draft() if self._is_lost else Draft(self._text[self._at : self._at + limit])

    def end(self) -> None:
        self._text = np.empty(0, np.int32)

    def _follow(self, history: np.ndarray) -> None:
        """Go on by the answer's new tokens, or look for its ending."""
        new, self._n_seen = history[self._n_seen :], len(history)
        if not self._is_lost:
            differs = self._text[self._at : self._at + len(new)] != new[: len(self._text) - self._at]
            n_same = int(differs.argmax()) if differs.any() else len(differs)
            self._at += n_same
            self._is_lost = n_same < len(new)
        if self._is_lost:
            n = min(self.options.n_match, len(history))
            windows = np.lib.stride_tricks.sliding_window_view(self._text, n) if len(self._text) >= n else np.empty((0, n))
            ends = (windows == history[-n:]).all(axis=1).nonzero()[0] + n
            if len(ends):
                later = ends[ends > self._at]
                self._at = int(later[0] if len(later) else ends[-1])
                self._is_lost = False
