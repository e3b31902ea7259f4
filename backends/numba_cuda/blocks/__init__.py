"""The blocks of plans: a file each, with the emitter that writes its steps."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cuda.blocks.attention import AttentionEmitter
from augury.backends.numba_cuda.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cuda.blocks.feed_forward import ACTIVATIONS, FeedForwardEmitter
from augury.backends.numba_cuda.blocks.mixture import GATINGS, MixtureEmitter
from augury.backends.numba_cuda.blocks.output import OutputEmitter
from augury.backends.numba_cuda.blocks.projection import ProjectionEmitter
from augury.blocks import (
    Activation,
    Attention,
    Embedding,
    FeedForward,
    GateKind,
    Gating,
    Layer,
    Linear,
    Matrices,
    MixtureOfExperts,
    Norm,
    NormKind,
    Output,
    Projection,
    Rope,
    Router,
    Rows,
    Vector,
)

if TYPE_CHECKING:
    from augury.backends.numba_cuda.blocks.emitter import Emitter
    from augury.blocks import Block
    from augury.types import ModelOptions

__all__ = ["EMITTERS", "KNOWN"]

EMITTERS: dict[type[Block], Callable[[Any, ModelOptions], Emitter]] = {
    Embedding: EmbeddingEmitter,
    Attention: AttentionEmitter,
    Projection: ProjectionEmitter,
    FeedForward: FeedForwardEmitter,
    MixtureOfExperts: MixtureEmitter,
    Output: OutputEmitter,
}
KNOWN: dict[type, Container[Any]] = {
    Embedding: {"scale"},
    Attention: {"rope", "q_norm", "k_norm", "window"},
    Projection: (),
    FeedForward: {"gate"},
    MixtureOfExperts: {"gate", "limit", "limits_activated", "weighs_input", "shared", "shared_gate"},
    Router: {"bias", "is_normalised", "scale", "n_groups", "n_groups_used", "n_alike"},
    Matrices: {"first", "n_stored", "bias", "scales", "is_transposed", "is_flat"},
    Output: (),
    Layer: {"mixer", "feed_forward"},
    Linear: {"bias", "scale", "bias_scale", "rows", "has_own_bias"},
    Norm: {"weight"},
    Rope: {"magnitude", "is_interleaved"},
    Rows: (),
    Vector: {"stored"},
    Activation: ACTIVATIONS,
    GateKind: tuple(GateKind),
    Gating: tuple(GATINGS),
    NormKind: (NormKind.RMS,),
}
"""What kernels compute; see `ModelPlan.check_blocks`."""
