"""The training of a head by JAX, whose output stays the target's own, on the recorded texts; it can be taken up anywhere.

It goes through the texts again and again until those held out are predicted no better.

Source: Kingma and Ba 2015 (Adam).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from augury.files.gguf_writer import EPSILON
from augury.interfaces import Progress
from augury.plugins.learn.block_head import BlockSizes
from augury.plugins.learn.head import N_BATCH, N_ROW, N_STEPS, HeadSizes, Sample, TargetTensors, Weights
from augury.plugins.learn.hidden_states import Piece
from augury.plugins.learn.losses import Product, TrainingBatch, block_losses, eagle_losses, exact_product, rounded_product
from augury.plugins.learn.recorded import Recorded

_BETAS = (0.9, 0.95)
_WARMUP = 0.1  # of all steps: until then the learning rate rises
_MAX_NORM = 1.0  # of the gradient
_N_TIMED, _N_MULTIPLIED = 4, 1024  # products, and the width of their rows: of any model's, as both take alike for a tiny one
_CLEARLY = 0.8  # of the time: such products once took half of it, and once 1.9 times as long
_STRIDE = 2  # of the positions after which a block is learnt from; they change from batch to batch


def quicker_product(recorded: Recorded) -> Product:
    """Products that round where this machine is clearly quicker at these; as a training began that is taken up."""
    if (kept := recorded.load("product")) is None:
        x, rows = jnp.ones((N_BATCH * N_ROW, _N_MULTIPLIED)), jnp.ones((2 * _N_MULTIPLIED, _N_MULTIPLIED))
        of_rounded, of_exact = (_seconds(jax.jit(each), x, rows) for each in (rounded_product, exact_product))
        kept = {"is_rounded": np.array(of_rounded < _CLEARLY * of_exact)}
        if not recorded.is_fresh:
            recorded.save("product", kept)
    return rounded_product if kept["is_rounded"] else exact_product


def _seconds(compute: Callable[..., Any], *given: Any) -> float:
    """The least of a few calls, after a first one."""
    times = [monotonic()]
    for _ in range(_N_TIMED):
        compute(*given).block_until_ready()
        times.append(monotonic())
    return float(np.diff(times)[1:].min())


class Trainer:
    """A head's weights, with the optimizer's state."""

    def __init__(
        self,
        sizes: HeadSizes,
        weights: Weights,
        rows: np.ndarray,
        target: TargetTensors,
        rate: float,
        n_total: int,
        product: Product,
    ) -> None:
        """Take over first weights, all but the output's; they are not mutated.

        `rows` (V_d, E) float32 are the target's output of the tokens that are drafted. The learning rate falls from `rate`, at
        its highest, to a tenth of that in `n_total` steps.
        """
        self._state: dict[str, Any] = {
            "weights": weights,
            "optimizer": (optimizer := _optimizer(rate, n_total)).init(weights),
            "n_steps": np.int32(0),
        }
        self._rows = jnp.asarray(rows)
        losses, judged = _losses_of(sizes, target, product)
        self._losses = jax.jit(judged)
        self._update = jax.jit(partial(_update, losses=losses, optimizer=optimizer), static_argnames="stage")

    @property
    def n_steps(self) -> int:
        """How many batches it has learnt of."""
        return int(self._state["n_steps"])

    @property
    def weights(self) -> Weights:
        """The weights of the present head."""
        return {name: np.asarray(values) for name, values in self._state["weights"].items()}

    def step(self, batch: TrainingBatch, stage: int) -> float:
        """Learn of a batch, in a stage from 1 to `HeadSizes.n_stages`; returns its loss before that."""
        made = self._update(self._state, self._rows, batch, stage=stage)
        self._state, loss = made  # at once: Ctrl-C may come any time
        return float(loss)

    def accepted(self, batch: TrainingBatch) -> np.ndarray:
        """(N + 1,): drafts of N tokens, and in how many of them at least the first 1, 2, ... are right."""
        _, right = self._losses(self._state["weights"], self._rows, batch)
        return np.asarray(right)

    def saved(self) -> dict[str, np.ndarray]:
        """All that `restore` needs, by name."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self._state)
        return {jax.tree_util.keystr(path): np.asarray(values) for path, values in leaves}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from a checkpoint."""
        self._state = jax.tree_util.tree_map_with_path(lambda path, _: saved[jax.tree_util.keystr(path)], self._state)


def _optimizer(rate: float, n_total: int) -> optax.GradientTransformation:
    """Adam, with a bounded gradient and a rate that rises first and falls then."""

    def rate_of(n_before: Any) -> Any:
        share = (n_before + 1.0) / n_total
        falling = 0.55 + 0.45 * jnp.cos(jnp.pi * jnp.minimum(share, 1.0))
        return rate * jnp.minimum(share / _WARMUP, 1.0) * falling

    return optax.chain(optax.clip_by_global_norm(_MAX_NORM), optax.adam(rate_of, *_BETAS))


def _losses_of(sizes: HeadSizes, target: TargetTensors, product: Product) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loss by weights, rows, batch, batches before and stage; and by the first three, of all drafts, without rounding."""
    if not isinstance(sizes, BlockSizes):
        losses = partial(eagle_losses, sizes=sizes, softcap=target.softcap)
        return (
            lambda *given, n_before, stage: losses(*given, n_unrolled=stage, product=product),  # noqa: ARG005 - as below
            partial(losses, n_unrolled=N_STEPS, product=exact_product),
        )
    mask, every = target.embedding(np.array(sizes.mask, np.int32)), np.arange(N_ROW)
    of_block = partial(block_losses, mask=mask, sizes=sizes, softcap=target.softcap)
    return (
        lambda *given, n_before, stage: of_block(*given, anchors=every[::_STRIDE] + n_before % _STRIDE, product=product),  # noqa: ARG005
        partial(of_block, anchors=every, product=exact_product),
    )


def _update(
    state: dict[str, Any],
    rows: Any,
    batch: TrainingBatch,
    *,
    losses: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    stage: int,
) -> tuple[dict[str, Any], Any]:
    weights = state["weights"]
    of_weights = jax.value_and_grad(partial(losses, n_before=state["n_steps"], stage=stage), has_aux=True)
    (loss, _), gradients = of_weights(weights, rows, batch)
    moves, of_optimizer = optimizer.update(gradients, state["optimizer"], weights)
    made = {"weights": optax.apply_updates(weights, moves), "optimizer": of_optimizer, "n_steps": state["n_steps"] + 1}
    return made, loss


_SAVE_EVERY_S = 120.0
_PATIENCE = 2  # epochs without a better one, after which it ends
_N_SAMPLED = 64  # texts that tell how large features are
_N_FIRST = 8  # tokens that do not


_Window = tuple[int, int, int]


class Corpus:
    """Recorded texts as batches of rows, which are full: a row holds windows of several texts, where one does not fill it.

    `rows` are windows of the pieces to learn from (number of a piece, start in it, and length), `held_out` those of the others.
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
                is_drafted[here] = np.isin(piece[places + 1], self._drafted, kind="table")
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

    The epochs go through all stages, each as long; the last may be a part of one. What is a head already (`is_head`) is in the
    last stage from the beginning. The trainer goes on from the checkpoint where there is one. `say` is called with the result
    of each epoch, also of one that `is_over` ends, and `keep` with the weights that are the best so far, those of most tokens
    accepted.
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
