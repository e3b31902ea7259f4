"""Goes through the recorded texts again and again until those held out are predicted no better; can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np

from augury.interfaces import Progress
from augury.plugins.learn.head import TargetTensors, Weights
from augury.plugins.learn.recorded import Recorded
from augury.plugins.learn.training import Batch, Trainer

__all__ = ["N_BATCH", "N_WINDOW", "Corpus", "fit", "percent"]

N_BATCH = 4  # windows
N_WINDOW = 256  # tokens that a head looks back at while it is trained, at most
_SAVE_EVERY_S = 120.0
_PATIENCE = 2  # epochs without a better one, after which it ends


class Corpus:
    """Recorded texts as batches of windows.

    Attributes:
        windows: Number of a piece and the window's start in it, of those to learn from.
        held_out: The same of those that are not learnt from.
    """

    def __init__(
        self, recorded: Recorded, target: TargetTensors, pieces: Sequence[np.ndarray], n_held_out: int, drafted: np.ndarray
    ) -> None:
        """The first `n_held_out` of the pieces (T,) int32 are held out; the head drafts the tokens `drafted` (V_d,)."""
        self._recorded, self._target, self._pieces, self._drafted = recorded, target, pieces, drafted
        self._n = min(N_WINDOW, max(map(len, pieces)) - 1)
        self.windows = self._windows(range(n_held_out, len(pieces)))
        self.held_out = self._windows(range(n_held_out))

    def batch(self, windows: Sequence[tuple[int, int]], *, is_learnt: bool = True) -> Batch:
        """Up to `N_BATCH` windows; the others of the batch are empty. Of pieces held out the second half counts alone.

        The engine goes on from there, too. The first half may be a prompt, which nobody drafts, and many begin alike.
        """
        n_embd, n = self._recorded.sizes.n_embd, self._n
        features = np.zeros((N_BATCH, n + 1, 4 * n_embd), np.float32)
        tokens, is_there = np.zeros((N_BATCH, n + 2), np.int32), np.zeros((N_BATCH, n + 1), bool)
        for i, (number, start) in enumerate(windows):
            kept = self._recorded.window(number, start, n + 1)
            features[i, : len(kept)] = kept
            following = self._pieces[number][start : start + n + 2]
            tokens[i, : len(following)] = following
            places, n_piece = start + np.arange(len(kept)), len(self._pieces[number])
            is_there[i, : len(kept)] = is_learnt | ((places >= n_piece // 2) & (places < n_piece - 1))
        return Batch(
            features[:, :-1, : 3 * n_embd],
            self._target.embedding(tokens[:, 1:-1]),
            features[:, 1:, 3 * n_embd :],
            is_there[:, 1:],
            np.isin(tokens[:, 2:], self._drafted),
        )

    def accepted(self, trainer: Trainer) -> list[float]:
        """The shares of drafts in the texts held out whose first 1, 2, ... tokens are right."""
        groups = [self.held_out[i : i + N_BATCH] for i in range(0, len(self.held_out), N_BATCH)]
        n, *right = np.sum([trainer.accepted(self.batch(group, is_learnt=False)) for group in groups], axis=0).tolist()
        return [each / max(n, 1) for each in right]

    def _windows(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Of pieces: windows share a token, which is the last of one and the first of the next."""
        return [(number, start) for number in numbers for start in range(0, len(self._pieces[number]) - 1, self._n)]


def fit(
    trainer: Trainer,
    recorded: Recorded,
    corpus: Corpus,
    n_epochs: int,
    seed: int,
    progress: Progress,
    say: Callable[[str], None],
) -> Weights:
    """Train until the texts held out are predicted no better, or `n_epochs` are over.

    Args:
        trainer: With first weights; it goes on from the checkpoint where there is one.
        recorded: Keeps checkpoints.
        corpus: To learn from.
        n_epochs: At most.
        seed: Of the order of windows.
        progress: Told how many batches are over.
        say: Told what each epoch came to.

    Returns:
        The weights of the best epoch.
    """
    n_of_epoch, lengths = -(-len(corpus.windows) // N_BATCH), list[float]()
    if (saved := recorded.load("checkpoint")) is not None:
        lengths = saved.pop("lengths").tolist()
        trainer.restore(saved)
    saved_at = monotonic()
    while len(lengths) < n_epochs and max(lengths[-_PATIENCE:], default=0) >= max(lengths, default=0):
        order = np.random.default_rng([seed, len(lengths)]).permutation(len(corpus.windows))
        for i in range(trainer.n_steps - len(lengths) * n_of_epoch, n_of_epoch):
            progress("training", trainer.n_steps, n_epochs * n_of_epoch)
            trainer.step(corpus.batch([corpus.windows[j] for j in order[i * N_BATCH : (i + 1) * N_BATCH]]))
            if monotonic() - saved_at > _SAVE_EVERY_S:
                recorded.save("checkpoint", {**trainer.saved(), "lengths": np.array(lengths)})
                saved_at = monotonic()
        shares = corpus.accepted(trainer)
        lengths.append(1 + sum(shares))
        say(f"epoch {len(lengths)}: {percent(shares)} of drafts are right up to token 1, 2, ... in the texts held out")
        if lengths[-1] == max(lengths):
            recorded.save("best", trainer.weights)
        recorded.save("checkpoint", {**trainer.saved(), "lengths": np.array(lengths)})
    best = recorded.load("best")
    assert best is not None
    return best


def percent(shares: Sequence[float]) -> str:
    """Shares as a text.

    >>> percent([0.5, 0.257])
    '50 %, 26 %'
    """
    return ", ".join(f"{share:.0%}".replace("%", " %") for share in shares)
