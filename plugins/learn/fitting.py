"""Goes through the recorded texts again and again until those held out are predicted no better; can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np

from augury.files.gguf_writer import EPSILON
from augury.interfaces import Progress
from augury.plugins.learn.head import N_BATCH, N_ROW, Sample, TargetTensors, Weights
from augury.plugins.learn.hidden_states import Piece
from augury.plugins.learn.recorded import Recorded
from augury.plugins.learn.training import Trainer
from augury.plugins.learn.training_math import TrainingBatch

_SAVE_EVERY_S = 120.0
_PATIENCE = 2  # epochs without a better one, after which it ends
_N_SAMPLED = 64  # texts that tell how large features are
_N_FIRST = 8  # tokens that do not


_Window = tuple[int, int, int]


class Corpus:
    """Recorded texts as batches of rows, which are full: a row holds windows of several texts, where one does not fill it.

    Attributes:
        rows: Windows of the pieces to learn from: number of a piece, start in it, and length.
        held_out: The same of the pieces that are held out.
    """

    def __init__(
        self, recorded: Recorded, target: TargetTensors, pieces: Sequence[Piece], n_held_out: int, drafted: np.ndarray
    ) -> None:
        """The first `n_held_out` of the pieces are held out; the head drafts the tokens `drafted` (V_d,)."""
        self._recorded, self._target, self._pieces, self._drafted = recorded, target, pieces, drafted
        self.rows = self._rows(range(n_held_out, len(pieces)))
        self.held_out = self._rows(range(n_held_out))

    def batch(self, rows: Sequence[Sequence[_Window]], *, is_learnt: bool = True) -> TrainingBatch:
        """Up to `N_BATCH` rows; the others of the batch are empty. Only the second half of held-out pieces counts.

        The engine goes on from there, too. The first half may be a prompt, which nobody drafts, and many begin alike.
        """
        n_embd, shape = self._recorded.sizes.n_embd, (N_BATCH, N_ROW)
        features, outputs = np.zeros((*shape, 3 * n_embd), np.float32), np.zeros((*shape, n_embd), np.float32)
        tokens, texts, is_there, is_drafted = (np.zeros(shape, kind) for kind in (np.int32, np.int32, bool, bool))
        for i, row in enumerate(rows):
            at = 0
            for text, (number, start, n) in enumerate(row, start=1):
                here, piece = (i, slice(at, at + n)), self._pieces[number].tokens
                kept = self._recorded.window(self._pieces[number], start, n + 1)
                features[here], outputs[here] = kept[:-1, : 3 * n_embd], kept[1:, 3 * n_embd :]
                places = np.arange(start + 1, start + n + 1)
                tokens[here], texts[here] = piece[places], text
                is_there[here] = is_learnt | (places >= len(piece) // 2)
                is_drafted[here] = np.isin(piece[places + 1], self._drafted)
                at += n
        return TrainingBatch(features, self._target.embedding(tokens), outputs, texts, is_there, is_drafted)

    def sample(self) -> Sample:
        """What a head reads of some texts to learn from.

        The first tokens of a text are left out, because their features are often a hundred times as large.
        """
        numbers = list(dict.fromkeys(number for row in self.rows for number, _, _ in row))[:_N_SAMPLED]
        n, features, tokens = 3 * self._recorded.sizes.n_embd, list[np.ndarray](), list[np.ndarray]()
        for piece in (self._pieces[number] for number in numbers):
            start = min(_N_FIRST, len(piece.tokens) // 2)
            features.append(self._recorded.window(piece, start, N_ROW)[:, :n].astype(np.float32))
            tokens.append(piece.tokens[start : start + len(features[-1])])
        read = np.concatenate(features)
        return Sample(read / np.sqrt((read**2).mean(axis=1, keepdims=True) + EPSILON), np.concatenate(tokens))

    def accepted(self, trainer: Trainer) -> list[float]:
        """The shares of drafts in the texts held out whose first 1, 2, ... tokens are right."""
        groups = [self.held_out[i : i + N_BATCH] for i in range(0, len(self.held_out), N_BATCH)]
        n, *right = np.sum([trainer.accepted(self.batch(group, is_learnt=False)) for group in groups], axis=0).tolist()
        return [each / max(n, 1) for each in right]

    def _rows(self, numbers: Sequence[int]) -> list[list[_Window]]:
        """The windows of pieces: those of one piece share a token, which is the last of one and the first of the next.

        They leave out a piece's last two tokens: there is none to predict after them.
        """
        rows, n_free = list[list[_Window]](), 0
        for number in numbers:
            start, end = 0, len(self._pieces[number].tokens) - 2
            while start < end:
                if not n_free:
                    rows.append([])
                    n_free = N_ROW
                n = min(n_free, end - start)
                rows[-1].append((number, start, n))
                start, n_free = start + n, n_free - n
        return rows


def fit(
    trainer: Trainer,
    recorded: Recorded,
    corpus: Corpus,
    seed: int,
    progress: Progress,
    say: Callable[[str], None],
    keep: Callable[[Weights], None],
    *,
    n_batches: int,
    is_over: Callable[[], bool] = lambda: False,
    n_stages: int,
    is_head: bool = False,
) -> None:
    """Train until the texts held out are predicted no better, `n_batches` are learnt from, or the time is over.

    The epochs go through all stages, each as long. What is a head already is in the last one from the beginning.

    Args:
        trainer: With first weights; it goes on from the checkpoint where there is one.
        recorded: Keeps checkpoints.
        corpus: To learn from.
        seed: Of the order of rows.
        progress: Told how many batches are over.
        say: Called with the result of each epoch.
        keep: Called with the weights that are the best so far, those of most tokens accepted.
        n_batches: At most; the last epoch may be a part of one.
        is_over: Whether the time is; an epoch that it ends is judged, too.
        n_stages: `HeadSizes.n_stages`.
        is_head: Whether the first weights are a head's.
    """
    n_of_epoch, lengths = -(-len(corpus.rows) // N_BATCH), list[float]()
    n_epochs = -(-n_batches // n_of_epoch)
    saved, best = recorded.load("checkpoint"), recorded.load("best")
    if (
        saved is not None
        and saved.keys() == trainer.saved().keys() | {"lengths"}
        and (best is not None or not len(saved["lengths"]))
    ):  # those of a damaged best are trained again
        lengths = saved.pop("lengths").tolist()
        trainer.restore(saved)
        if best is not None:
            keep(best)

    def judge(when: str) -> None:
        shares = corpus.accepted(trainer)
        lengths.append(1 + sum(shares))
        say(f"{when}: {percent(shares)} of drafts are right up to token 1, 2, ... in the texts held out")
        if lengths[-1] == max(lengths):
            recorded.save("best", trainer.weights)
            keep(trainer.weights)
        recorded.save("checkpoint", {**trainer.saved(), "lengths": np.array(lengths)})

    if is_head and not lengths:
        judge("before")
    saved_at = monotonic()
    while (n := len(lengths) - is_head) < n_epochs and max(lengths[-_PATIENCE:], default=0) >= max(lengths, default=0):
        if lengths and is_over():
            break
        order = np.random.default_rng([seed, n]).permutation(len(corpus.rows))
        stage = n_stages if is_head else 1 + n_stages * n // n_epochs
        for i in range(max(trainer.n_steps - n * n_of_epoch, 0), min(n_of_epoch, n_batches - n * n_of_epoch)):
            if is_over():
                break
            progress("training", trainer.n_steps, n_batches)
            trainer.step(corpus.batch([corpus.rows[j] for j in order[i * N_BATCH : (i + 1) * N_BATCH]]), stage)
            if monotonic() - saved_at > _SAVE_EVERY_S:
                recorded.save("checkpoint", {**trainer.saved(), "lengths": np.array(lengths)})
                saved_at = monotonic()
        judge(f"epoch {n + 1}")


def percent(shares: Sequence[float]) -> str:
    """Shares as a text.

    >>> percent([0.5, 0.257])
    '50 %, 26 %'
    """
    return ", ".join(f"{share:.0%}".replace("%", " %") for share in shares)
