"""Nodes on loopback: on a thread of this process, or in a process of their own that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

from augury import Registry
from augury.backends.remote.node import Node


@contextmanager
def node_on_thread(**how):
    """A node with one thread; its address."""
    node = Node("127.0.0.1:0", **{"registry": Registry.discover(), "threads": 1, **how})
    thread = threading.Thread(target=node.run)
    thread.start()
    try:
        yield node
    finally:
        node.stop()
        thread.join()


class NodeOnThread:
    """A node that can go, and come back at the same address."""

    def __init__(self, **how):
        self._how = {"registry": Registry.discover(), "threads": 1, **how}
        self.address = "127.0.0.1:0"
        self.start()

    def start(self, **how):
        node = self._node = Node(self.address, **(self._how | how))
        self.address = node.address
        self._thread = threading.Thread(target=node.run)
        self._thread.start()

    def stop(self):
        self._node.stop()
        self._thread.join()


class NodeProcess:
    """A node in a process of its own."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.start()

    def start(self):
        command = [sys.executable, "-m", "augury", "node", "--listen", self.address, "-t", "1"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert "listening" in self._process.stderr.readline()

    def send(self, number):
        """Send a signal."""
        os.kill(self._process.pid, number)

    def stop(self):
        """Kill it, as a loss of power does."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
            self._process.wait()
            self._process.stderr.close()
