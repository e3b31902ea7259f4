"""The blocks of plans: a file each, with the kernels that are a block's own and the emitter that writes its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.attention import AttentionEmitter
from augury.backends.numba_cpu.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cpu.blocks.feed_forward import FeedForwardEmitter
from augury.backends.numba_cpu.blocks.output import OutputEmitter
from augury.blocks import Attention, Embedding, FeedForward, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cpu.blocks.emitter import Emitter
    from augury.blocks import Block
    from augury.types import ModelOptions

__all__ = ["EMITTERS"]

EMITTERS: dict[type[Block], Callable[[Any, ModelOptions], Emitter]] = {
    Embedding: EmbeddingEmitter,
    Attention: AttentionEmitter,
    FeedForward: FeedForwardEmitter,
    Output: OutputEmitter,
}
