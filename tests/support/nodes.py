"""Nodes on loopback: on a thread of this process, or in a process of their own that can be killed."""

from __future__ import annotations

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
