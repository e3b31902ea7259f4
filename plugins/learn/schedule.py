"""How a training fits into the hours that it is given: how much it learns from, and how often.

The engine answers, or computes hidden states, until to learn from them `_N_EPOCHS` times takes the time that is left. What a
head depends on is decided before its training, from speeds measured on this machine, and kept: a run that takes the training up
goes by it, to the same head. A training that turns out slower than that ends with its best head when the time is over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from augury.errors import OptionError
from augury.plugins.learn.head import N_BATCH, N_ROW, HeadSizes, Sample, TargetTensors

if TYPE_CHECKING:
    from augury.plugins.learn.recorded import Recorded

_N_EPOCHS = 3  # at least: an EAGLE-3 head learns in each to draft a token more
_REPORT_S = 60.0  # for the comparison at the end, but no more than a share of all
_REPORT = 0.05
_SAVE_EVERY_S = 60.0
_EXPECT_AFTER = 0.02  # of the time, when the speed of answers is known
_HELD_OUT = 1 / 19  # batches held out for each that is learnt from


class Schedule:
    """The time of one training, of all its runs together. It learns from `n_pieces` of text; None while that is not decided."""

    def __init__(
        self,
        recorded: Recorded,
        hours: float | None,
        n_epochs: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Go on with the schedule of an earlier run, if there was one. `hours` are for all of them; None: no limit."""
        kept = (recorded.load("schedule") or {}) if hours is not None else {}
        self._recorded, self._n_epochs, self._say, self._clock = recorded, n_epochs, say, clock
        self._limit_s = np.inf if hours is None else hours * 3600
        self._end_s = self._limit_s - min(_REPORT_S, _REPORT * self._limit_s)
        self._n_batches = int(kept["n_batches"]) if "n_batches" in kept else None
        self.n_pieces = int(kept["n_pieces"]) if "n_pieces" in kept else None
        self._started, self._saved = clock() - float(kept.get("seconds", 0.0)), clock()
        self._first: tuple[int, float] | None = None  # tokens and time when the engine began to make more
        self._is_told = False
        self._of_steps, self._of_judging, self._of_compiling = [0.0], 0.0, 0.0  # seconds, by how many tokens are drafted

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._started

    @property
    def is_planned(self) -> bool:
        """Whether there is nothing to be measured."""
        return self._limit_s == np.inf or self._n_batches is not None

    def told(self) -> str:
        """How much of the time is over; nothing without a limit."""
        return "" if self._limit_s == np.inf else f"; {_shown(self._elapsed)} of {_shown(self._limit_s)}"

    def measure(self, sizes: HeadSizes, target: TargetTensors, *, is_head: bool) -> None:
        """Time the steps of a training, which drafts all tokens from the beginning where it goes on from a head.

        Raises:
            OptionError: This takes the time that there is.
        """
        from augury.plugins.learn.losses import TrainingBatch
        from augury.plugins.learn.training import Trainer, quicker_product

        rng, shape = np.random.default_rng(0), (N_BATCH, N_ROW)
        sample = Sample(np.ones((1, 3 * sizes.n_embd), np.float32), np.zeros(1, np.int32))
        weights = sizes.first_weights(target, sample, 0)
        output = target.output(np.arange(sizes.n_drafted))
        trainer = Trainer(sizes, weights, output, target, 0.0, 1, quicker_product(self._recorded))
        features, embedded, outputs = (rng.standard_normal((*shape, n * sizes.n_embd), np.float32) for n in (3, 1, 1))
        batch = TrainingBatch(features, embedded, outputs, np.ones(shape, np.int32), *(np.ones(shape, bool) for _ in range(2)))
        timed = []
        for n in range(sizes.n_stages + 1):
            times = [self._clock()]
            for _ in range(2):  # the first of which compiles
                if n:
                    trainer.step(batch, n)
                else:
                    trainer.accepted(batch)
                times.append(self._clock())
            timed.append(np.diff(times))
        self._of_compiling = float(sum(first - second for first, second in timed))
        self._of_judging, *self._of_steps = (float(second) for _, second in timed)
        if is_head:
            del self._of_steps[:-1]
        if (needed := self._elapsed + self._of_compiling) >= self._end_s:
            raise OptionError(f"--hours: {_shown(self._limit_s)} are too short, to begin and to end takes {_shown(needed)}")

    def is_enough(self, n_tokens: int) -> bool:
        """Whether to learn from so many tokens takes the time that is left; asked again and again while they become more."""
        if self.is_planned:
            return self._n_batches is not None
        self._keep_now_and_then()
        n_of_epoch = 1000  # as if it were so many batches
        of_token = self._cost(min(_N_EPOCHS, self._n_epochs) * n_of_epoch, n_of_epoch, _HELD_OUT * n_of_epoch)
        of_token /= n_of_epoch * (1 + _HELD_OUT) * N_BATCH * N_ROW
        left, (n_first, first) = self._end_s - self._of_compiling - self._elapsed, (self._first or (n_tokens, self._elapsed))
        self._first = n_first, first
        if not self._is_told and n_tokens > n_first and self._elapsed - first > _EXPECT_AFTER * self._limit_s:
            rate = (self._elapsed - first) / (n_tokens - n_first)
            n = int((left + rate * n_tokens) / (rate + of_token))
            self._say(f"there is time for {n} tokens: {_shown(rate * n)} until they are there, {_shown(of_token * n)} to learn")
            self._is_told = True
        return of_token * n_tokens >= left

    def plan(self, n_pieces: int, n_of_epoch: int, n_held_out: int) -> int:
        """Decide how many batches are learnt from, of epochs of `n_of_epoch`, each judged by `n_held_out` batches."""
        if self._n_batches is None:
            left, most = self._end_s - self._of_compiling - self._elapsed, self._n_epochs * n_of_epoch
            costs = partial(self._cost, n_of_epoch=n_of_epoch, n_held_out=n_held_out)
            self._n_batches = max(bisect_right(range(1, most + 1), left, key=costs), 1)
            self.n_pieces = n_pieces
            if self._limit_s < np.inf:
                self._keep()
                seconds = self._of_compiling + self._cost(self._n_batches, n_of_epoch, n_held_out)
                self._say(f"{self._n_batches / n_of_epoch:.1f} epochs take {_shown(seconds)}{self.told()}")
        return self._n_batches

    def is_over(self) -> bool:
        """Whether the time is over."""
        if self._limit_s < np.inf:
            self._keep_now_and_then()
        return self._elapsed >= self._end_s

    def _cost(self, n_batches: int, n_of_epoch: int, n_held_out: float) -> float:
        """The seconds to learn from batches and to judge after each epoch."""
        n_epochs = -(-n_batches // n_of_epoch)
        sizes = [min(n_of_epoch, n_batches - i * n_of_epoch) for i in range(n_epochs)]
        steps = (size * self._of_steps[len(self._of_steps) * i // n_epochs] for i, size in enumerate(sizes))
        return sum(steps) + n_epochs * n_held_out * self._of_judging

    def _keep_now_and_then(self) -> None:
        if self._clock() - self._saved > _SAVE_EVERY_S:
            self._keep()

    def _keep(self) -> None:
        numbers = {"seconds": self._elapsed, "n_batches": self._n_batches, "n_pieces": self.n_pieces}
        self._recorded.save("schedule", {name: np.array(number) for name, number in numbers.items() if number is not None})
        self._saved = self._clock()


def _shown(seconds: float) -> str:
    """A time as people say it.

    >>> _shown(5400)
    '1.5 h'
    >>> _shown(90)
    '1.5 min'
    """
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
