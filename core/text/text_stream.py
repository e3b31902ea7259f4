"""Tokens → text of one request as it streams: whole characters only, nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from augury.text.tokenizer import StreamDecoder, Tokenizer


class TextStream:
    """Holds back text that may still become a stop string or is half a character."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str]) -> None:
        self._decoder = StreamDecoder(tokenizer) if tokenizer is not None else None
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """The text that can be shown after `token`; sets `is_stopped` once a stop string is complete.

        One that is complete where it may not stop, or before, is text like any other.
        """
        text = self._decoder.push(token) if self._decoder is not None else ""
        return self._release(text, may_stop=may_stop) if self._stops else text

    def flush(self, *, may_stop: bool = True) -> str:
        """The rest, after the last token."""
        if self._decoder is None or self.is_stopped:
            return ""
        shown = self._release(self._decoder.flush(), may_stop=may_stop)
        if not self.is_stopped:
            shown, self._held = shown + self._held, ""
        return shown

    def _release(self, text: str, *, may_stop: bool) -> str:
        n_seen = len(self._held)
        self._held += text
        if may_stop:
            found = [self._held.find(stop, max(n_seen - len(stop) + 1, 0)) for stop in self._stops]
            ends = [at for at in found if at >= 0]
        else:
            ends = []
        if ends:
            self.is_stopped = True
            return self._held[: min(ends)]
        n_kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - n_kept
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
