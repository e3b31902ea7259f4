"""The blocks of plans: a file each, with the emitter that writes its steps."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cuda.blocks.attention import AttentionEmitter
from augury.backends.numba_cuda.blocks.compressed import CompressedAttentionEmitter
from augury.backends.numba_cuda.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cuda.blocks.feed_forward import FeedForwardEmitter
from augury.backends.numba_cuda.blocks.gated_delta_net import GatedDeltaNetEmitter
from augury.backends.numba_cuda.blocks.kimi_delta_attention import KimiDeltaAttentionEmitter
from augury.backends.numba_cuda.blocks.latent import LatentAttentionEmitter
from augury.backends.numba_cuda.blocks.layer_input import LayerInputEmitter
from augury.backends.numba_cuda.blocks.lightning_attention import LightningAttentionEmitter
from augury.backends.numba_cuda.blocks.mamba import Mamba2Emitter, MambaEmitter
from augury.backends.numba_cuda.blocks.mixture import GATINGS, MixtureEmitter
from augury.backends.numba_cuda.blocks.ngram import NgramMemoryEmitter
from augury.backends.numba_cuda.blocks.output import OutputEmitter
from augury.backends.numba_cuda.blocks.projection import ProjectionEmitter
from augury.backends.numba_cuda.blocks.short_convolution import ShortConvolutionEmitter
from augury.backends.numba_cuda.kernels.activation import ACTIVATIONS
from augury.blocks import (
    Activation,
    AllStreams,
    Attention,
    AttentionResidual,
    BlockIndexer,
    CompressedAttention,
    Convolution,
    Embedding,
    FeedForward,
    GatedDeltaNet,
    GatedHyperConnection,
    GateKind,
    Gating,
    HyperConnection,
    Indexer,
    Integers,
    KimiDeltaAttention,
    LatentAttention,
    Layer,
    LayerInput,
    LayerInputs,
    LightningAttention,
    Linear,
    LinearRecurrence,
    Mamba,
    Mamba2,
    Matrices,
    MixtureOfExperts,
    NgramMemory,
    Norm,
    NormKind,
    Output,
    PoolIndexer,
    Pooling,
    Projection,
    Residual,
    Rope,
    Router,
    Rows,
    ShortConvolution,
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
    Attention: AttentionEmitter,
    CompressedAttention: CompressedAttentionEmitter,
    LatentAttention: LatentAttentionEmitter,
    Projection: ProjectionEmitter,
    FeedForward: FeedForwardEmitter,
    MixtureOfExperts: MixtureEmitter,
    LayerInput: LayerInputEmitter,
    NgramMemory: NgramMemoryEmitter,
    ShortConvolution: ShortConvolutionEmitter,
    GatedDeltaNet: GatedDeltaNetEmitter,
    KimiDeltaAttention: KimiDeltaAttentionEmitter,
    LightningAttention: LightningAttentionEmitter,
    Mamba: MambaEmitter,
    Mamba2: Mamba2Emitter,
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
    Router: {"bias", "is_normalised", "scale", "n_groups", "n_groups_used", "n_alike", "norm", "is_early", "token_experts"},
    Integers: (),
    Indexer: (),
    Matrices: {"first", "n_stored", "bias", "scales", "is_transposed", "is_flat"},
    LinearRecurrence: {"is_tiled", "is_by_channel", "is_by_key"},
    Convolution: {"bias", "stored", "dilation"},
    Linear: {"bias", "scale", "bias_scale", "rows", "has_own_bias"},
    Norm: {"weight", "bias", "weight_shape"},
    Pooling: {"value_norm", "weights", "places", "norm", "rope", "overlaps"},
    PoolIndexer: {"rope", "q_norm", "weights"},
    Rope: {"magnitude", "is_interleaved", "offset"},
    Rows: (),
    Temperature: {"offset"},
    Vector: {"stored"},
    Activation: tuple(each for each in Activation if each.value in ACTIVATIONS),
    GateKind: tuple(GateKind),
    Gating: tuple(GATINGS),
    NormKind: tuple(NormKind),
    Turn: tuple(Turn),
}
"""What kernels compute; see `ModelPlan.check_blocks`."""
