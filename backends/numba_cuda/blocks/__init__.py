"""The blocks of plans: a file each, with the emitter that writes its steps."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cuda.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cuda.blocks.output import OutputEmitter
from augury.blocks import (
    AllStreams,
    AttentionResidual,
    BlockIndexer,
    Convolution,
    Embedding,
    GatedHyperConnection,
    GateKind,
    HyperConnection,
    Indexer,
    Integers,
    Layer,
    LayerInputs,
    Linear,
    Matrices,
    Norm,
    NormKind,
    Output,
    PoolIndexer,
    Pooling,
    Residual,
    Rope,
    Rows,
    StreamMean,
    Temperature,
    Turn,
    Vector,
)

if TYPE_CHECKING:
    from augury.backends.numba_cuda.blocks.emitter import Emitter
    from augury.blocks import Block

__all__ = ["EMITTERS", "KNOWN"]

EMITTERS: dict[type[Block], type[Emitter]] = {
    Embedding: EmbeddingEmitter,
    Output: OutputEmitter,
}
KNOWN: dict[type, Container[Any]] = {block: emitter.known for block, emitter in EMITTERS.items()} | {
    Layer: {"mixer", "feed_forward", "is_parallel", "skip", "norm", "beside", "turn", "apart", "scale", "residual"},
    LayerInputs: (),
    BlockIndexer: (),
    Residual: {"feed_forward"},
    AllStreams: (),
    AttentionResidual: {"norm", "begins"},
    HyperConnection: {"post_scale", "post_eps", "n_rounds"},
    GatedHyperConnection: {"inject"},
    StreamMean: (),
    Integers: (),
    Indexer: (),
    Matrices: {"first", "n_stored", "bias", "scales", "is_transposed", "is_flat"},
    Convolution: {"bias", "stored", "dilation"},
    Linear: {"bias", "scale", "bias_scale", "rows", "has_own_bias"},
    Norm: {"weight", "bias", "weight_shape"},
    Pooling: {"value_norm", "weights", "places", "norm", "rope", "overlaps"},
    PoolIndexer: {"rope", "q_norm", "weights"},
    Rope: {"magnitude", "is_interleaved", "offset"},
    Rows: (),
    Temperature: {"offset"},
    Vector: {"stored"},
    GateKind: tuple(GateKind),
    NormKind: tuple(NormKind),
    Turn: tuple(Turn),
}
"""What kernels compute; see `ModelPlan.check_blocks`."""
