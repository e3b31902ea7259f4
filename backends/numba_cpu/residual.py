"""How the connections of blocks with residual streams come onto a tape; see `augury.blocks.Connection`."""

from __future__ import annotations

from collections.abc import Mapping

from augury.backends.numba_cpu.kernels import step
from augury.backends.numba_cpu.tape import Tape, ThreadRows, row_bytes, row_stride
from augury.blocks import AllStreams, Connection, ModelPlan
from augury.lowering import ConnectionEmitter, connection_emitters


class AllStreamsEmitter(ConnectionEmitter):
    """Lets a block see all streams, one after the other, and adds as many values to them."""

    kernels = (step.add_rows,)

    def read(self, tape: Tape) -> None:
        tape.seen = tape.streams

    def write(self, tape: Tape) -> None:
        for y in tape.take_added():
            tape.add_rows(tape.streams, ThreadRows(y.address, row_stride(tape.streams.width)))


class Streams:
    """The residual streams of a plan. Several lie side by side, and x is the row that the next block sees; of one it is that.

    Attributes:
        emitters: The emitters of its connections.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self._connections = connection_emitters(plan, "numba-cpu", {AllStreams: AllStreamsEmitter})
        self._n, self._width, self.emitters = plan.embedding.n_streams, plan.n_hidden, [*self._connections.values()]

    def buffers(self) -> Mapping[str, int]:
        """Bytes of the memory of several streams, by name."""
        return {"streams": row_bytes(self._width)} if self._n > 1 else {}

    def place(self, tape: Tape) -> None:
        """Tell a tape where they lie."""
        if self._n > 1:
            tape.streams = tape.space.named("streams", self._width)

    def begin(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write their initial values: hidden states, or each as x."""
        self.place(tape)
        if takes_hidden:
            tape.take_hidden(tape.streams)
        elif self._n > 1:
            tape.norm_x(None)
            tape.copy(tape.space.x, tape.streams)

    def all(self, tape: Tape) -> ThreadRows:
        """The rows that go on to the next layer: x with all that was left to be added to it, or the streams side by side."""
        return tape.norm(None) if self._n == 1 else tape.streams

    def read(self, tape: Tape, connection: Connection | None) -> None:
        """Write the rows that the next block sees."""
        tape.seen = tape.space.x
        if connection is not None:
            self._connections[connection].read(tape)

    def write(self, tape: Tape, connection: Connection | None) -> None:
        """Write the streams with the rows that the block left."""
        tape.seen = tape.space.x
        if connection is not None:
            self._connections[connection].write(tape)
