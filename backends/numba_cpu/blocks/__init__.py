"""The blocks that say no operations yet: a file each, with a block's own kernels and the emitter of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.backends.numba_cpu.blocks.embedding import EmbeddingEmitter
from augury.backends.numba_cpu.blocks.output import OutputEmitter
from augury.blocks import Embedding, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from augury.backends.numba_cpu.blocks.emitter import Emitter
    from augury.blocks import Block
    from augury.types import ModelOptions

__all__ = ["EMITTERS"]

EMITTERS: dict[type[Block], Callable[[Any, ModelOptions], Emitter]] = {
    Embedding: EmbeddingEmitter,
    Output: OutputEmitter,
}
