"""The blocks of plans: a file each, with the kernels that are a block's own and the emitter that writes its records."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.attention import GATES, AttentionEmitter
from augury.backends.numba_cpu.blocks.compressed import CompressedAttentionEmitter
from augury.backends.numba_cpu.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cpu.blocks.latent import LatentAttentionEmitter
from augury.backends.numba_cpu.blocks.ngram import NgramMemoryEmitter
from augury.backends.numba_cpu.blocks.output import OutputEmitter
from augury.blocks import (
    AllStreams,
    Attention,
    AttentionResidual,
    BlockIndexer,
    CompressedAttention,
    Convolution,
    Embedding,
    GatedHyperConnection,
    GateKind,
    HyperConnection,
    Indexer,
    Integers,
    LatentAttention,
    Layer,
    LayerInputs,
    Linear,
    LinearRecurrence,
    Matrices,
    NextnLayer,
    NgramMemory,
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
    from augury.backends.numba_cpu.blocks.emitter import Emitter
    from augury.blocks import Block
    from augury.types import ModelOptions

__all__ = ["EMITTERS", "KNOWN"]

EMITTERS: dict[type[Block], Callable[[Any, ModelOptions], Emitter]] = {
    Embedding: EmbeddingEmitter,
    Attention: AttentionEmitter,
    LatentAttention: LatentAttentionEmitter,
    CompressedAttention: CompressedAttentionEmitter,
    NgramMemory: NgramMemoryEmitter,
    Output: OutputEmitter,
}
KNOWN: dict[type, Container[Any]] = {
    Embedding: {"weight", "scale", "positions", "norm", "other", "layer_inputs", "n_streams"},
    Attention: {
        *("norm", "rope", "q_norm", "k_norm", "v_norm", "out_norm", "post_norm", "has_joint_norms"),
        *(
            "is_rope_first",
            "window",
            "chunk",
            "clamp",
            "temperature",
            "softcap",
            "slopes",
            "sinks",
            "gate",
            "gate_kind",
            "indexer",
            "source",
            "embedded_norm",
        ),
    },
    LatentAttention: {
        *("rope", "q_down", "q_norm", "temperature", "gate", "turned_norm", "window", "indexer", "reuses_choice", "sinks"),
    },
    CompressedAttention: {"pooling", "indexer"},
    Indexer: (),
    BlockIndexer: (),
    Pooling: {"value_norm", "weights", "places", "norm", "rope", "overlaps"},
    PoolIndexer: {"rope", "q_norm", "weights"},
    LayerInputs: (),
    Matrices: {"first", "n_stored", "bias", "scales", "is_transposed", "is_flat"},
    NgramMemory: (),
    LinearRecurrence: {"is_tiled", "is_by_channel", "is_by_key"},
    Convolution: {"bias", "stored", "dilation"},
    Output: {"norm", "weight", "softcap", "residual", "tokens"},
    Layer: {"mixer", "feed_forward", "is_parallel", "skip", "norm", "beside", "turn", "apart", "scale", "residual"},
    NextnLayer: {"hidden"},
    Residual: {"feed_forward"},
    AllStreams: (),
    AttentionResidual: {"norm", "begins"},
    HyperConnection: {"post_scale", "post_eps", "n_rounds"},
    GatedHyperConnection: {"inject"},
    StreamMean: (),
    Linear: {"bias", "scale", "bias_scale", "rows", "has_own_bias"},
    Norm: {"weight", "bias", "weight_shape"},
    Rope: {"magnitude", "is_interleaved", "offset"},
    Rows: (),
    Temperature: {"offset"},
    Vector: {"stored"},
    Integers: (),
    GateKind: tuple(GATES),
    NormKind: tuple(NormKind),
    Turn: tuple(Turn),
}
"""What kernels compute; see `ModelPlan.check_blocks`."""
