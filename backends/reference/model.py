"""A model that runs its plan block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from augury.backends.reference import blocks, recurrent
from augury.backends.reference.cache import LayerCache
from augury.backends.reference.lowered import ChosenPositions, LoweredBlock, Run
from augury.backends.reference.operations import lowered_block
from augury.backends.reference.residual import read, write
from augury.backends.reference.weights import Weights, each_normed
from augury.batch import Batch, Tree, check_batch
from augury.blocks import (
    Attention,
    Block,
    Embedding,
    Injection,
    LatentAttention,
    LayerInput,
    MixtureOfExperts,
    ModelPlan,
    MtpInput,
    Output,
)
from augury.errors import AuguryError
from augury.interfaces import Model
from augury.passes import ArrayPass, NamedPass, Pass
from augury.types import Allocation, ModelInfo, ModelOptions, StateSpec

MIXERS: dict[type, Any] = {Attention: blocks.attention, LatentAttention: blocks.latent_attention, **recurrent.MIXERS}
"""The addition to x of mixers with caches or states, by type."""
KNOWN = frozenset({Embedding, Injection, LayerInput, MixtureOfExperts, MtpInput, Output, *blocks.STATELESS, *MIXERS})
"""Blocks that have a function, which computes all that they may have; of others the operations are computed."""


def has_function(block: Block) -> bool:
    """Whether a block has a function, which knows no choice of positions."""
    return type(block) in KNOWN and not (getattr(block, "indexer", None) or getattr(block, "reuses_choice", 0))


class ReferenceModel(Model):
    """Weights and KV cache, and passes through them.

    The residual streams (n, S, E) float64 hold a row or more per token of the pass, to which every layer adds (`blocks`,
    `residual`); x (n, E) is the last of them.
    """

    def __init__(self, info: ModelInfo, spec: StateSpec, plan: ModelPlan, weights: Weights, options: ModelOptions) -> None:
        self.info = info
        self.state_spec = spec
        self.features, self.options = plan.features, options
        self._plan, self._layers = plan, plan.every_layer
        self._weights: Weights | None = weights
        every = [(i, block) for i, layer in enumerate(self._layers) for block in layer.blocks]
        every += [(0, block) for block in (plan.embedding, plan.output)]
        self._caches: dict[tuple[int, Block], Any] = {
            (i, block): self._cache_for(block) for i, block in every if type(block) in MIXERS or not has_function(block)
        }
        self._chosen: list[ChosenPositions] = []

    def forward(self, batch: Batch) -> Pass:
        weights = self._open()
        given, n_known = self._plan.embedding.weight is None, self._plan.embedding.n_vocab
        known = (n_known, self.info, self.state_spec, self.features)
        check_batch(batch, *known, n_hidden=self._plan.n_hidden, takes_hidden=given)
        self._plan.check_start(0 if batch.layers is None else batch.layers[0])
        tree, mtp = None if batch.parents is None else Tree(batch, self.state_spec.n_ctx), self._plan.mtp_of(batch.layers)
        for (i, _), cache in self._caches.items() if mtp is None or batch.accepted is not None else ():
            if i < self.info.n_layers:  # layers that predict further tokens compute accepted tokens anew
                cache.begin(batch)
        ends, n_streams = self._plan if mtp is None else mtp, self._plan.embedding.n_streams
        embedded, inputs = self._embed(ends.embedding, batch, tree)
        streams = np.repeat(embedded[:, None], n_streams, axis=1)
        if mtp is not None and batch.hidden is not None:
            if type(mtp.input) is MtpInput:
                begun = blocks.mtp_streams(mtp.input, weights, embedded, batch.hidden.astype(np.float64))
            else:
                begun = np.stack(self._end(mtp.input, batch, tree, embedded), axis=1)
            streams = np.broadcast_to(begun, (len(begun), n_streams, begun.shape[2]))
        elif batch.hidden is not None:
            streams = batch.hidden.astype(np.float64).reshape(len(batch.tokens), n_streams, -1)
        features = {"embedding": streams.reshape(len(streams), -1).astype(np.float32)}
        injections = () if batch.hidden is None else self._plan.injections
        for injection in injections:
            blocks.inject(injection, weights, self._cache_of(injection.layer), batch, streams[:, -1])
        for i in range(*(batch.layers or (0, self.info.n_layers))) if not injections else ():
            hidden = self._through(i, batch, tree, streams, embedded, inputs).astype(np.float32)
            features[f"layer.{i}"] = hidden.reshape(len(hidden), -1)
            streams = hidden.astype(np.float64)  # so that a pass from here on, which is given a feature, computes the same
        x = read(ends.output.connection, weights, streams)
        normed, linear = each_normed(x, ends.output.norm, weights), ends.output.given
        features["output"] = (normed if linear is None else weights.product(linear, normed)).astype(np.float32)
        if has_function(ends.output):
            logits = blocks.output(ends.output, weights, normed[batch.rows])
        else:
            logits = self._end(ends.output, batch, tree, x)[0].astype(np.float32)
        passed = ArrayPass(logits, {name: features[name] for name in batch.features})
        if (tokens := self._plan.output.tokens) is None:
            return passed
        return NamedPass(passed, weights.integers(tokens.weight), self.info.n_vocab)

    def slot_memory(self, slot: int, n: int) -> Sequence[np.ndarray]:
        self._open()
        return [array for cache in self._caches.values() for array in cache.slot_memory(slot, n)]

    def memory_table(self) -> Sequence[Allocation]:
        table = {"weights": self._open().n_bytes}
        for cache in self._caches.values():
            table[cache.purpose] = table.get(cache.purpose, 0) + cache.n_bytes
        return [Allocation(*line) for line in table.items()]

    def close(self) -> None:
        self._weights = None
        self._caches = {}

    def _through(
        self, i: int, batch: Batch, tree: Tree | None, before: np.ndarray, embedded: np.ndarray, inputs: np.ndarray
    ) -> np.ndarray:
        """The residual streams (n, S, E) after a layer.

        Args:
            i: The layer.
            batch: The pass.
            tree: The tree of the batch, where it has one.
            before: The streams before.
            embedded: The embeddings of the tokens, (n, E).
            inputs: Its inputs for layers, (n, layers, P).
        """
        weights = self._open()
        layer, streams = self._layers[i], before
        for block in layer.blocks:
            x = read(block.connection, weights, before if block.is_parallel else streams)
            if not has_function(block):
                y = lowered_block(self._run(self._caches[i, block], batch, tree, (x, before[:, -1], embedded), inputs))
            elif (i, block) in self._caches:
                besides = (embedded,) if block.reads_embedding else ()
                source = block.source if isinstance(block, Attention) else None
                kept = self._caches[i, block] if source is None else self._cache_of(source)
                y = MIXERS[type(block)](block, weights, kept, batch, tree, x, *besides)
            elif isinstance(block, LayerInput):
                y = blocks.layer_input(block, weights, x, inputs)
            elif isinstance(block, MixtureOfExperts):
                y = blocks.mixture(block, weights, batch, x, before[:, -1])
            else:
                y = blocks.STATELESS[type(block)](block, weights, x)
            streams = write(block.connection, weights, streams, y)
        x = each_normed(layer.scale * streams[:, -1], layer.norm, weights)
        return np.concatenate([streams[:, :-1], x[:, None]], axis=1)

    def _embed(self, block: Embedding, batch: Batch, tree: Tree | None) -> tuple[np.ndarray, np.ndarray]:
        """An embedding of tokens: x (n, E), and inputs of layers (n, layers, P)."""
        if has_function(block):
            x = blocks.embed(block, self._open(), batch)
            return x, blocks.layer_inputs(block, self._open(), batch, x)
        *made, x = self._end(block, batch, tree, np.zeros((len(batch.tokens), block.n_embd)))
        size = 1 if block.layer_inputs is None else block.layer_inputs.norm.size
        return x, np.hstack([np.empty((len(x), 0)), *made]).reshape(len(x), -1, size)

    def _end(self, block: Block, batch: Batch, tree: Tree | None, x: np.ndarray) -> list[np.ndarray]:
        """The result of a model's first or last block, computed by its operations."""
        lowered = self._caches.get((0, block)) or LoweredBlock(block, self.options, self._open(), x.shape[1])
        run = self._run(lowered, batch, tree, (x, x, x), np.empty((len(x), 0)))
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

    def _cache_for(self, block: Block) -> Any:
        """The caches and states of a block, empty."""
        if not has_function(block):
            return LoweredBlock(block, self.options, self._open(), self._plan.n_seen(block))
        return recurrent.LayerStates(block, self.options, self._open()) if block.states() else LayerCache(block, self.options)

    def _cache_of(self, layer: int) -> LayerCache:
        """The cache of a layer's mixer."""
        cache = next(self._caches[layer, mixer] for mixer in self._layers[layer].mixers if mixer.cached())
        return cache.cache if isinstance(cache, LoweredBlock) else cache

    def _open(self) -> Weights:
        if self._weights is None:
            raise AuguryError(f"model {self.info.name!r} is closed")
        return self._weights
