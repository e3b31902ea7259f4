"""The backend's class, and a model that runs its plan block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from augury.backends.reference.cache import LayerCache
from augury.backends.reference.lowered import ChosenPositions, LoweredBlock, Run
from augury.backends.reference.operations import check_operations, lowered_block
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch, Tree, check_batch
from augury.blocks import Block, Connection, Embedding, Linear, ModelPlan, Norm, Vector
from augury.errors import AuguryError, CapacityError
from augury.interfaces import Backend, Model, Progress
from augury.passes import ArrayPass, NamedPass, Pass
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec

if TYPE_CHECKING:
    from augury.files.gguf import ModelFile


class Reference(Backend):
    """Plain numpy: the meaning of every operation in a form to read, and the oracle for other backends.

    Slow: some tokens per second with 135 million weights, which take four bytes each for any type of the file. BLAS chooses
    its own number of threads; `ModelOptions.threads` has no effect, and no thread count changes a result.
    """

    name = "reference"
    computes_mtp = True

    def state_spec(self, plan: ModelPlan, options: ModelOptions) -> StateSpec:
        plan.for_context(options.n_ctx)  # refuses one that is too long
        options.check_cache_types(plan)
        for block in plan.blocks():
            check_operations(block, plan.n_seen(block))
        n_bytes = sum(LayerCache.bytes_per_position(block, options) for layer in plan.every_layer for block in layer.blocks)
        n_floats = sum(state.size for block in plan.blocks() for state in block.states())
        if not n_floats:
            return StateSpec(options.n_slots, options.n_ctx, n_bytes)
        return StateSpec(options.n_slots, options.n_ctx, n_bytes, 8 * n_floats, draft_max=options.draft_max)

    def load(self, file: ModelFile, plan: ModelPlan, options: ModelOptions, progress: Progress) -> Model:
        spec, plan = self.state_spec(plan, options), plan.for_context(options.n_ctx)
        info = ModelInfo.of(file, plan)
        try:
            return ReferenceModel(info, spec, plan, Weights.load(file, plan, progress), options)
        except MemoryError as error:
            raise CapacityError(f"no memory for the weights of {file.path.name} as float32; use backend numba-cpu") from error


class ReferenceModel(Model):
    """Weights and KV cache, and passes through them.

    The residual streams (n, S, E) float64 hold a row or more per token of the pass, to which every layer adds; x (n, E) is the
    last of them. See `Connection`.
    """

    def __init__(self, info: ModelInfo, spec: StateSpec, plan: ModelPlan, weights: Weights, options: ModelOptions) -> None:
        self.info = info
        self.state_spec = spec
        self.features, self.options = plan.features, options
        self._plan, self._layers = plan, plan.every_layer
        self._weights: Weights | None = weights
        self._blocks = [[self._lowered(block) for block in layer.blocks] for layer in self._layers]
        ends = (plan.embedding, plan.output, *plan.injections)
        of_mtp = (end for each in plan.mtp for end in (each.embedding, each.input, each.output))
        self._ends = {block: self._lowered(block) for block in (*ends, *of_mtp)}
        self._chosen: list[ChosenPositions] = []

    def forward(self, batch: Batch) -> Pass:
        weights, plan = self._open(), self._plan
        check_batch(batch, plan.embedding.n_vocab, self.info, self.state_spec, self.features)
        plan.check_start(0 if batch.layers is None else batch.layers[0])
        tree, mtp = None if batch.parents is None else Tree(batch, self.state_spec.n_ctx), plan.heads.get(batch.part)
        if mtp is None or batch.accepted is not None:  # layers that predict further tokens compute accepted tokens anew
            for block in chain(*self._blocks[: len(plan.layers)], (self._ends[plan.embedding], self._ends[plan.output])):
                block.begin(batch)
        if not len(batch.tokens):  # that was all there is to do
            of_none = {name: np.empty((0, self.features[name]), np.float32) for name in batch.features}
            return ArrayPass(np.empty((0, self.info.n_vocab), np.float32), of_none)
        ends, n_streams, n = plan if mtp is None else mtp, plan.embedding.n_streams, len(batch.tokens)
        embedded, inputs = self._embed(ends.embedding, batch, tree)
        streams = np.repeat(embedded[:, None], n_streams, axis=1)
        if mtp is not None and batch.hidden is not None:
            begun = np.stack(self._end(mtp.input, batch, tree, embedded), axis=1)
            streams = np.broadcast_to(begun, (n, n_streams, begun.shape[2]))
        elif batch.hidden is not None:
            streams = batch.hidden.astype(np.float64).reshape(n, n_streams, -1)
        features = {"embedding": streams.reshape(n, -1).astype(np.float32)}
        is_injected = batch.part == "inject"
        for injection in plan.injections if is_injected else ():
            self._end(injection, batch, tree, streams[:, -1])
        for i in range(*(batch.layers or self.info.parts[batch.part].layers)) if not is_injected else ():
            hidden = self._through(i, batch, tree, streams, embedded, inputs).astype(np.float32)
            features[f"layer.{i}"] = hidden.reshape(n, -1)
            streams = hidden.astype(np.float64)  # so that a pass from here on, which is given a feature, computes the same
        x = read(ends.output.connection, weights, streams)
        if "output" in batch.features:
            normed, linear = each_normed(x, ends.output.norm, weights), ends.output.given
            features["output"] = (normed if linear is None else weights.product(linear, normed)).astype(np.float32)
        (logits,) = self._end(ends.output, batch, tree, x) or (np.empty((len(batch.rows), 0)),)
        passed = ArrayPass(logits.astype(np.float32), {name: features[name] for name in batch.features})
        if (tokens := plan.output.tokens) is None:
            return passed
        return NamedPass(passed, weights.integers(tokens.weight), self.info.n_vocab)

    def slot_memory(self, slot: int, n: int, start: int | None = None) -> Sequence[np.ndarray]:
        self._open()
        return [array for block in self._every() for array in block.slot_memory(slot, n, start)]

    def memory_table(self) -> Sequence[Allocation]:
        table = {"weights": self._open().n_bytes}
        table["KV cache"] = sum(block.cache.n_bytes for block in self._every())
        table["states"] = sum(state.n_bytes for block in self._every() for state in block.states)
        return [Allocation(*line) for line in table.items() if line[1]]

    def close(self) -> None:
        self._weights = None
        self._blocks, self._ends = [], {}

    def _every(self) -> Iterator[LoweredBlock]:
        return chain(*self._blocks, self._ends.values())

    def _through(
        self, i: int, batch: Batch, tree: Tree | None, before: np.ndarray, embedded: np.ndarray, inputs: np.ndarray
    ) -> np.ndarray:
        """The residual streams (n, S, E) after a layer; `embedded` are tokens' embeddings (n, E), inputs (n, layers, P)."""
        weights = self._open()
        layer, streams = self._layers[i], before
        for block, lowered in zip(layer.blocks, self._blocks[i], strict=True):
            x = read(block.connection, weights, before if block.is_parallel else streams)
            y = lowered_block(self._run(lowered, batch, tree, (x, before[:, -1], embedded), inputs))
            streams = write(block.connection, weights, streams, y)
        x = each_normed(layer.scale * streams[:, -1], layer.norm, weights)
        return np.concatenate([streams[:, :-1], x[:, None]], axis=1)

    def _embed(self, block: Embedding, batch: Batch, tree: Tree | None) -> tuple[np.ndarray, np.ndarray]:
        """An embedding of tokens: x (n, E), and inputs of layers (n, layers, P)."""
        given = np.zeros((len(batch.tokens), block.n_embd))
        *made, x = self._end(block, batch, tree, given) or (given,)
        size = 1 if block.layer_inputs is None else block.layer_inputs.norm.size
        return x, np.hstack([np.empty((len(x), 0)), *made]).reshape(len(x), -1, size)

    def _end(self, block: Block, batch: Batch, tree: Tree | None, x: np.ndarray) -> list[np.ndarray]:
        """What a block before or after the layers gives: inputs of layers, streams, or logits."""
        run = self._run(self._ends[block], batch, tree, (x, x, x), np.empty((len(x), 0)))
        lowered_block(run)
        return run.given

    def _run(
        self,
        block: LoweredBlock,
        batch: Batch,
        tree: Tree | None,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray],
        inputs: np.ndarray,
    ) -> Run:
        """A block in a pass, of rows: x (n, E), x as it was at the beginning of its layer, and the embeddings."""
        sources = {layer: self._cache_of(layer) for layer in block.sources}
        given = dict(zip((block.x, block.before, block.embedded), rows, strict=True))
        return Run(self._open(), block, batch, tree, inputs, np.zeros_like(rows[0]), given, sources, self._chosen)

    def _lowered(self, block: Block) -> LoweredBlock:
        """A block with its caches and states, empty."""
        return LoweredBlock(block, self.options, self._open(), self._plan.n_seen(block))

    def _cache_of(self, layer: int) -> LayerCache:
        """The cache of a layer's mixer."""
        mixers = zip(self._layers[layer].mixers, self._blocks[layer], strict=False)
        return next(lowered.cache for mixer, lowered in mixers if mixer.cached())

    def _open(self) -> Weights:
        if self._weights is None:
            raise AuguryError(f"model {self.info.name!r} is closed")
        return self._weights


def read(connection: Connection | None, weights: Weights, streams: np.ndarray) -> np.ndarray:
    """The input of a block, (n, E)."""
    return streams[:, -1] if connection is None else connection.read(partial(_given, weights), streams)


def write(connection: Connection | None, weights: Weights, streams: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The streams once a block has given y (n, E)."""
    if connection is None:
        return np.concatenate([streams[:, :-1], streams[:, -1:] + y[:, None]], axis=1)
    return connection.write(partial(_given, weights), streams, y)


def _given(weights: Weights, part: Any) -> Any:
    """See `Connection.read`."""
    match part:
        case Vector():
            return weights.vector(part.weight).reshape(-1)
        case Linear():
            return partial(weights.product, part)
        case Norm():
            return partial(each_normed, block=part, weights=weights)
    return part
