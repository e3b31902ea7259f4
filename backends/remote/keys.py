"""Keys of nodes: one file, the same on all machines, without which nobody connects and nothing is read on the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.errors import OptionError, UnsupportedError
from augury.extras import install_command

if TYPE_CHECKING:
    import zmq

KEY_FILE = "AUGURY_NODE_KEY"
"""The environment variable that names the file on the user's machine, or on both."""
_N_CHARACTERS = 40  # of a key of CURVE, as text


def zmq_library() -> Any:
    """The library ZeroMQ, imported when a node is asked for.

    Raises:
        UnsupportedError: It is not installed.
    """
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
