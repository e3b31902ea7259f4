"""What every block says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, fields, frozen

from augury.blocks.parts import Part
from augury.errors import PluginError, UnsupportedError

if TYPE_CHECKING:
    from augury.blocks.parts import SequenceState
    from augury.lowering.builder import Builder

__all__ = ["Block"]


@frozen
class Block:
    """A step of the computation: matrices, norms, and how they act together.

    A block declares what it has of the file, what it keeps per position and per sequence, and says once, by `lower`, how it is
    computed.

    Attributes:
        is_parallel: Whether it sees x as it was before its layer, whatever other blocks have added.
        connection: How it reads and writes residual streams, a `Connection`; None: it sees x, the last of them, and adds to it.
    """

    is_parallel: bool = field(default=False, kw_only=True)
    connection: Block | None = field(default=None, kw_only=True)

    def tensors(self) -> tuple[Part, ...]:
        """What it has of the model file, in the order of its fields, and its connection's."""
        parts = (getattr(self, each.name) for each in fields(type(self)))
        of_connection = () if self.connection is None else self.connection.tensors()
        return (*(part for part in parts if isinstance(part, Part)), *of_connection)

    @property
    def reads_embedding(self) -> bool:
        """Whether it reads the embedding's output, beside the residual stream."""
        return False

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """Its caches per position: a type, or the option of `ModelOptions` that gives it, how many heads, values of each."""
        return ()

    def states(self) -> tuple[SequenceState, ...]:
        """Its states per sequence."""
        return ()

    def lower(self, build: Builder) -> None:  # noqa: ARG002 - for blocks that say it
        """Say how the block is computed: write operations that read x, the residual stream, and add to it.

        Raises:
            UnsupportedError: It does not say.
        """
        raise UnsupportedError(f"block {type(self).__name__} does not say how it is computed; define its `lower`")

    def lowered(self, n_embd: int) -> Builder:
        """The operations that `lower` writes for rows of `n_embd` values, checked against each other and the block.

        Raises:
            PluginError: Operations do not fit each other, or the block's states and caches.
            UnsupportedError: The block does not say how it is computed.
        """
        from augury.lowering.builder import Builder

        build = Builder(n_embd)
        self.lower(build)
        for flaw in build.flaws(self.states(), self.cached()):
            raise PluginError(f"block {type(self).__name__}: {flaw}; correct its `lower`, or the sizes in the plan")
        return build
