"""The blocks of plans: a file each, with the kernels that are a block's own and the emitter that writes its records."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.attention import AttentionEmitter
from augury.backends.numba_cpu.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cpu.blocks.feed_forward import FeedForwardEmitter
from augury.backends.numba_cpu.blocks.output import OutputEmitter
from augury.backends.numba_cpu.blocks.short_convolution import ShortConvolutionEmitter
from augury.blocks import (
    Activation,
    Attention,
    Convolution,
    Embedding,
    FeedForward,
    Layer,
    Linear,
    Norm,
    NormKind,
    Output,
    Rope,
    ShortConvolution,
)

if TYPE_CHECKING:
    from augury.backends.numba_cpu.blocks.emitter import Emitter
    from augury.blocks import Block
    from augury.types import ModelOptions

__all__ = ["EMITTERS", "KNOWN"]

EMITTERS: dict[type[Block], Callable[[Any, ModelOptions], Emitter]] = {
    Embedding: EmbeddingEmitter,
    Attention: AttentionEmitter,
    FeedForward: FeedForwardEmitter,
    ShortConvolution: ShortConvolutionEmitter,
    Output: OutputEmitter,
}
KNOWN: dict[type, Container[Any]] = {
    Embedding: {"scale"},
    Attention: {"q_norm", "k_norm", "post_norm", "window"},
    FeedForward: {"post_norm"},
    ShortConvolution: (),
    Convolution: {"bias"},
    Output: (),
    Layer: {"feed_forward", "is_parallel"},
    Linear: {"bias", "scale", "bias_scale"},
    Norm: (),
    Rope: {"magnitude", "is_interleaved"},
    Activation: {Activation.SILU, Activation.GELU},
    NormKind: {NormKind.RMS},
}
"""What kernels compute; see `ModelPlan.check_blocks`."""
