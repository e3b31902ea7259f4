"""A socket to a node: one question at a time, and word within seconds when the node is gone; and the keys of nodes."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from attrs import define

from augury.backends.remote.wire import FRAME_BYTES, Message
from augury.errors import AuguryError, CapacityError, LostDeviceError, ModelFileError, OptionError, UnsupportedError
from augury.extras import install_command

if TYPE_CHECKING:
    import zmq

KEY_FILE = "AUGURY_NODE_KEY"
"""The environment variable that names the file on the user's machine, or on both."""
_N_CHARACTERS = 40  # of a key of CURVE, as text
_CONNECT_S = 5.0  # until a node is there; one that is may take as long as it needs for an answer
_LAST_PORT = 65535
_BEAT_MS = 1000  # between signs of life, which the other side's library answers while it computes
_SILENCE_MS = 2500  # after one of them, until the other side counts as gone: 3.5 s in all
_ERRORS = {kind.__name__: kind for kind in (AuguryError, CapacityError, ModelFileError, OptionError, UnsupportedError)}


def zmq_library() -> Any:
    """The library ZeroMQ, imported when a node is asked for. Raises UnsupportedError: it is not installed."""
    try:
        import zmq
    except ImportError:
        raise UnsupportedError(f"nodes need pyzmq, which is not installed; {install_command('nodes')}") from None
    return zmq


def secret_key(path: Path, *, may_make: bool = False) -> bytes:
    """The secret key in a file, made by `augury node --key FILE` where there is none.

    Raises:
        OptionError: There is no such file, others may read it, or it holds something else.
    """
    try:
        if may_make and not path.exists():
            _, made = zmq_library().curve_keypair()
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(made + b"\n")
        key, mode = path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise OptionError(
            f"key file {path}: {error.strerror}; augury node --key FILE makes one, copy it to both machines"
        ) from None
    if mode & 0o077:
        raise OptionError(f"key file {path} can be read by others than its owner; chmod 600 {path}")
    if len(key) != _N_CHARACTERS:
        raise OptionError(f"key file {path} holds {len(key)} bytes, expected a key of {_N_CHARACTERS} characters")
    return key


def known_key() -> bytes | None:
    """The key that this process's environment names, or None where it names none."""
    name = os.environ.get(KEY_FILE)
    return secret_key(Path(name)) if name else None


def lock(socket: zmq.Socket[bytes], key: bytes, *, is_node: bool) -> None:
    """Encrypt and authenticate a socket before it is bound or connected: both sides prove that they have the key."""
    public = zmq_library().curve_public(key)
    socket.curve_secretkey, socket.curve_publickey = key, public
    if is_node:
        socket.curve_server = True
    else:
        socket.curve_serverkey = public


class Doorkeeper:
    """Lets those connect to a node who have its key."""

    def __init__(self, context: zmq.Context[Any], key: bytes) -> None:
        from zmq.auth.thread import ThreadAuthenticator

        self._public = zmq_library().curve_public(key)
        self._thread = ThreadAuthenticator(context)
        self._thread.start()
        self._thread.configure_curve_callback(credentials_provider=self)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a public key, as text, is that of the node's key; the library asks."""
        return key == self._public

    def stop(self) -> None:
        """End its thread."""
        self._thread.stop()


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
        """Begin to connect, after `wait_s` seconds at most. Raises LostDeviceError: there is no such node just now."""
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
