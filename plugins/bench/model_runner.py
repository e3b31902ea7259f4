"""Times a model's passes without the engine."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from augury.batch import Batch
from augury.errors import CapacityError
from augury.interfaces import Model, Progress
from augury.plugins.bench.timing import Measurement, Runner

_CHUNK = 512  # tokens per pass while a slot is filled
_SEED = 1


class ModelRunner(Runner):
    """Passes of a model over random tokens, in its first slot.

    Attributes:
        tokens: (n_ctx,) int32, the token at each position; generated ones differ.
    """

    def __init__(self, model: Model, progress: Progress | None = None) -> None:
        """Take over a loaded model; `progress` is called with how far its slot is filled."""
        self._model = model
        self._progress = progress or Progress()
        n_ctx = model.state_spec.n_ctx
        self.tokens = np.random.default_rng(_SEED).integers(0, model.info.n_vocab, n_ctx, dtype=np.int32)
        self._n_filled = 0

    def prepare(self, depth: int) -> None:
        """Fill the slot; the contents of earlier measurements are as good as any."""
        for start in range(self._n_filled, depth, _CHUNK):
            self._progress("fill the slot", start, depth)
            self._model.forward(self.batch(start, min(_CHUNK, depth - start), n_rows=0))
        if depth > self._n_filled:
            self._progress("fill the slot", depth, depth)
            self._n_filled = depth

    def seconds(self, measurement: Measurement) -> float:
        """Run a measurement once. Batches are made before the clock starts.

        Raises:
            CapacityError: It does not fit into a slot.
        """
        end, n_ctx = measurement.depth + measurement.n, self._model.state_spec.n_ctx
        if end > n_ctx:
            raise CapacityError(
                f"{measurement.n} tokens at depth {measurement.depth} do not fit into a slot of {n_ctx} positions"
            )
        if measurement.kind == "decode":
            return self._decode([self.batch(position, 1, n_rows=1) for position in range(measurement.depth, end)])
        batch = self.batch(measurement.depth, measurement.n, n_rows=measurement.n if measurement.kind == "curve" else 1)
        start = perf_counter()
        self._model.forward(batch).argmax()
        return perf_counter() - start

    def _decode(self, batches: list[Batch]) -> float:
        start = perf_counter()
        token = batches[0].tokens[0]
        for batch in batches:
            batch.tokens[0] = token
            token = max(self._model.forward(batch).argmax()[0], 0)
        return perf_counter() - start

    def batch(self, start: int, n: int, *, n_rows: int) -> Batch:
        """Tokens `start` to `start + n`, of which the last `n_rows` have logits."""
        return Batch.chain(self.tokens[start : start + n], start=start, rows=np.arange(n - n_rows, n, dtype=np.int32))
