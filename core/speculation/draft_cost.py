"""What asking a drafter takes, learnt from every time that it was asked."""

from __future__ import annotations

from attrs import define

__all__ = ["DraftCost"]

_LEARN = 0.2  # weight of a new measurement of a drafter's time
_MUCH_MISSED = 4  # times the draft's length: tokens to catch up with, beyond which it is they that took the time


@define
class DraftCost:
    """Seconds that one drafter takes for a slot."""

    per_ask: float = 0.0  # on average
    per_token: float = 0.0  # that it drafts
    per_missed: float = 0.0  # that was emitted while it was not asked
    n_asks: int = 0

    def seconds(self, k: int, n_missed: int) -> float:
        """Of a draft of k tokens."""
        return self.per_token * k + self.per_missed * n_missed

    def observe(self, k: int, n_missed: int, seconds: float) -> None:
        """A draft of k tokens took so long. Where much was missed, it is that which took the time."""
        self.n_asks += 1
        self.per_ask += (seconds - self.per_ask) * max(_LEARN, 1 / self.n_asks)
        if n_missed > _MUCH_MISSED * max(k, 1):
            self.per_missed += _LEARN * (max(seconds - self.per_token * k, 0.0) / n_missed - self.per_missed)
            return
        measured = max(seconds - self.per_missed * n_missed, 0.0) / max(k, 1)
        self.per_token += (measured - self.per_token) * (_LEARN if self.per_token else 1.0)

    def observe_prompt(self, n_tokens: int, seconds: float) -> None:
        """A prompt took so long: that is what it takes to catch up.

        It says little where the drafter held the prompt from before, in which case it is far quicker than it was.
        """
        per_token = seconds / n_tokens
        if self.per_missed == 0.0:
            self.per_missed = per_token
        elif per_token > self.per_missed / 2:
            self.per_missed += _LEARN * (per_token - self.per_missed)
