"""How the connections of blocks with residual streams come onto a tape; see `augury.blocks.Connection`."""

from __future__ import annotations

from collections.abc import Mapping

from augury.backends.numba_cuda.kernels.inputs import MAX_TOKENS
from augury.backends.numba_cuda.rows import DeviceRows
from augury.backends.numba_cuda.tape import Tape
from augury.blocks import AllStreams, Connection, ModelPlan
from augury.lowering import ConnectionEmitter, connection_emitters

_ALL, _ADDED = "streams", "added to streams"


class AllStreamsEmitter(ConnectionEmitter):
    """Lets a block see all streams, one after the other, and add as many values to them."""

    def read(self, tape: Tape) -> None:
        tape.x = tape.seen = tape.streams

    def write(self, tape: Tape) -> None:
        tape.x = DeviceRows(tape.buffers[_ADDED], self.size)


class Streams:
    """The residual streams of a plan. Several lie side by side, and x is the row that a block adds to them; of one it is that.

    Attributes:
        emitters: The emitters of its connections.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self._connections = connection_emitters(plan, "numba-cuda", {AllStreams: AllStreamsEmitter})
        self._n, self._n_embd = plan.embedding.n_streams, plan.embedding.n_embd
        self.emitters = [*self._connections.values()]

    def buffers(self) -> Mapping[str, int]:
        """Bytes of the memory of several streams, by name."""
        row = 4 * MAX_TOKENS * self._n_embd
        return {_ADDED: row, _ALL: row * self._n} if self._n > 1 else {}

    def begin(self, tape: Tape, *, takes_hidden: bool) -> None:
        """Write that all streams begin as x, unless they are given."""
        if self._n == 1:
            return
        x, size, streams = tape.x, self._n_embd, tape.streams
        tape.add_pending()
        for i in range(0 if takes_hidden else self._n):
            tape.blend(DeviceRows(streams.at.at(4 * i * size), streams.width), x, 0.0, 1.0, width=size)
        tape.x = tape.seen = DeviceRows(tape.buffers[_ADDED], size)

    def read(self, tape: Tape, connection: Connection | None) -> None:
        """Write the rows that the next block sees."""
        if connection is not None:
            self._connections[connection].read(tape)

    def write(self, tape: Tape, connection: Connection | None) -> None:
        """Write the streams with the rows that a block added."""
        if connection is not None:
            tape.add_pending()
            self._connections[connection].write(tape)
