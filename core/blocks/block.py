"""The declaration of a block, its connections to the residual streams, and indexers, which choose positions for attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, fields, frozen

from augury.errors import PluginError, UnsupportedError
from augury.guard import describe
from augury.lowering.attention import PositionChoice
from augury.lowering.builder import Builder
from augury.lowering.operation import HasKernels, Value
from augury.lowering.parts import Convolution, HasParts, LinearRecurrence, SequenceState
from augury.lowering.rewrites import with_low_ranks

if TYPE_CHECKING:
    import numpy as np


@frozen
class Connection(HasKernels, HasParts, ABC):
    """How a block reads and writes the residual streams, where there are several, or where it is not merely added to them.

    A block sees one row x (E,) that its connection makes of a token's S streams, and gives one row y (E,). A connection defines
    the computation of `reference`, for all n rows of a pass; its `kernels` are the emitters of other backends.
    """

    @abstractmethod
    def read(self, given: Callable[[Any], Any], streams: np.ndarray) -> np.ndarray:
        """The rows x (n, E) that the block sees of streams (n, S, E) float64.

        Args:
            given: A function: a vector → its numbers (n,), a matrix or norm → a function of rows (n, …), None → None.
            streams: As they were before the block.
        """

    def write(self, given: Callable[[Any], Any], streams: np.ndarray, y: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """The streams once the block has given y (n, E); as they are, if it writes nothing."""
        return streams


@frozen
class AllStreams(Connection):
    """X are all streams, one after the other, and y of as many values is added to them. All backends compute it."""

    def read(self, given: Callable[[Any], Any], streams: np.ndarray) -> np.ndarray:  # noqa: ARG002 - as its parent's
        return streams.reshape(len(streams), -1)

    def write(self, given: Callable[[Any], Any], streams: np.ndarray, y: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return streams + y.reshape(streams.shape)


@frozen
class Block(HasParts):
    """A step of the computation: matrices, norms, and how they act together.

    A block declares its tensors, its caches per position and states per sequence, and says once, by `lower`, how it is
    computed.

    Attributes:
        is_parallel: Whether it reads x as it was before its layer, without the other blocks' outputs.
        connection: How it reads and writes residual streams; None: it sees x, the last of them, and adds to it.
    """

    is_parallel: bool = field(default=False, kw_only=True)
    connection: Connection | None = field(default=None, kw_only=True)

    @property
    def reads_embedding(self) -> bool:
        """Whether it reads the embedding's output, beside the residual stream."""
        return False

    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """Its caches per position: a type, or the option of `ModelOptions` that gives it, how many heads, values of each."""
        return ()

    def states(self) -> tuple[SequenceState, ...]:
        """Its states per sequence: those of its convolutions and recurrences in the order of its fields."""
        values = (getattr(self, each.name) for each in fields(type(self)))
        return tuple(value.state for value in values if isinstance(value, Convolution | LinearRecurrence))

    def lower(self, build: Builder) -> None:  # noqa: ARG002 - for blocks that say it
        """Write operations that read x, the residual stream, and add to it. Raises UnsupportedError: it does not say how."""
        raise UnsupportedError(f"block {type(self).__name__} does not say how it is computed; define its `lower`")

    def lowered(self, n_embd: int) -> Builder:
        """The operations that `lower` writes for rows of `n_embd` values, checked against each other and the block.

        Raises PluginError: operands are of other kinds, do not fit each other or the block, or `lower` fails. UnsupportedError:
        `lower`'s.
        """
        build, name, package = Builder(n_embd), type(self).__name__, type(self).__module__.partition(".")[0]
        try:
            given: object = self.lower(build)  # type: ignore[func-returns-value]
            flaw = next(build.flaws(self.states(), self.cached()), None)
        except (KeyboardInterrupt, UnsupportedError):
            raise
        except BaseException as error:
            message = f"{name} cannot be lowered: {describe(error)}; correct the `lower` of this block of package {package}"
            raise PluginError(message) from error
        if given is not None and not build.operations:
            flaw = f"`lower` returns {given!r:.80} and writes no operations, expected them on `build`"
        if flaw is not None:
            raise PluginError(f"block {name}: {flaw}; correct its `lower` in package {package}, or the sizes in the plan")
        build.operations = [*with_low_ranks(build.operations)]
        return build


@frozen
class PositionIndexer(HasParts, ABC):
    """Chooses the positions that a token attends to, of all positions that it sees.

    It writes operations as blocks do (`Block.lower`), on the products of its `linears`: the first multiplies the values that
    attention's queries are made of, the others norm(x).
    """

    @property
    @abstractmethod
    def reach(self) -> int:
        """Context length up to which everything is chosen."""

    @abstractmethod
    def cached(self) -> tuple[tuple[str, int, int], ...]:
        """Its caches, see `Block.cached`."""

    @abstractmethod
    def choose(self, build: Builder, made: Sequence[Value], cache: int) -> PositionChoice:
        """Write operations that choose, on the products; its caches are those of the block from place `cache` on."""
