"""A socket to a node: one question at a time, and word within seconds when the node is gone."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from attrs import define

from augury.backends.remote.keys import known_key, lock, zmq_library
from augury.backends.remote.wire import FRAME_BYTES, Message
from augury.errors import AuguryError, CapacityError, LostDeviceError, ModelFileError, OptionError, UnsupportedError

if TYPE_CHECKING:
    import zmq

_CONNECT_S = 5.0  # until a node is there; one that is may take as long as it needs for an answer
_LAST_PORT = 65535
_BEAT_MS = 1000  # between signs of life, which the other side's library answers while it computes
_SILENCE_MS = 2500  # after one of them, until the other side counts as gone: 3.5 s in all
_ERRORS = {kind.__name__: kind for kind in (AuguryError, CapacityError, ModelFileError, OptionError, UnsupportedError)}


def check_port(address: str) -> None:
    """Raises OptionError where an address has a port that there cannot be: the library takes it for another."""
    if (port := address.rpartition(":")[2]).isdecimal() and int(port) > _LAST_PORT:
        raise OptionError(f"{address} has port {port}, expected one up to {_LAST_PORT}")


def tune(socket: zmq.Socket[bytes], address: str) -> None:
    """Set what both sides have: limits of messages, signs of life, and no wait at the end."""
    zmq = zmq_library()
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)


@define(eq=False)
class Endpoint:
    """A node by its address, which was started by hand."""

    address: str

    @property
    def name(self) -> str:
        """The device's."""
        return f"node:{self.address}"

    def connect(self, wait_s: float | None = None) -> Connection:  # noqa: ARG002 - for nodes whose address has yet to be known
        """Begin to connect, after `wait_s` seconds at most.

        Raises:
            LostDeviceError: There is no such node just now.
        """
        return Connection(self.address, known_key())

    def close(self) -> None:
        """End what was started for this endpoint alone: nothing."""


class Connection:
    """A connection to the node at an address. One thread at a time may use it."""

    def __init__(self, address: str, key: bytes | None) -> None:
        """Begin to connect, and wait for nothing."""
        zmq = zmq_library()
        check_port(address)
        self._address, self._is_up = address, False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        tune(self._socket, address)
        if key is not None:
            lock(self._socket, key, is_node=False)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise OptionError(f"node:{address} is no address ({error}), expected node:HOST:PORT") from None

    def ask(self, message: Message) -> Message:
        """Send a message and wait for the answer, however busy the node is.

        Raises:
            LostDeviceError: There is no node within 5 s, or it is gone.
            AuguryError: By its kind, what the node answers instead.
        """
        self.send(message)
        timeout_s: float | None = _CONNECT_S
        while (answer := self.receive(timeout_s)) is None:
            if not self._is_up:
                raise LostDeviceError(f"no answer from a node at {self._address}; is `augury node --listen` running there?")
            timeout_s = None
        return answer

    def send(self, message: Message) -> None:
        """Send a message, or keep it until there is a connection."""
        self._socket.send(message.frame())

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The answer to what was sent, or None if none has come so far."""
        end = None if timeout_s is None else monotonic() + timeout_s
        while True:
            ready = dict(self._poller.poll(None if end is None else max(end - monotonic(), 0) * 1000))
            if self._monitor in ready:  # before an answer: it may be that of another node, to which the socket went on
                self._heed()
            if self._socket in ready:
                answer = Message.of(self._socket.recv_multipart())
                if answer.kind == "error":
                    raise _ERRORS.get(answer.text("error"), AuguryError)(f"node {self._address}: {answer.text('text')}")
                if answer.kind != "done":
                    continue  # the node sees who is still there
                return answer
            if not ready:
                return None

    def _heed(self) -> None:
        from zmq.utils.monitor import recv_monitor_message

        zmq, event = zmq_library(), recv_monitor_message(self._monitor)["event"]
        if event == zmq.EVENT_DISCONNECTED:
            why = "is gone" if self._is_up else "does not take this key, or is no node; name its key file in AUGURY_NODE_KEY"
            raise LostDeviceError(f"the node at {self._address} {why}")
        self._is_up = True

    def close(self) -> None:
        """End the connection. May be called twice."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)
