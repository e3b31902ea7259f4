"""A cluster of two nodes for all tests of the room, and `kill -9`. Ray is not imported where they are only collected."""

import os
import signal
from pathlib import Path

import pytest

NAMES = ("first", "second")  # of the nodes
HEAD = {"include_dashboard": False, "no_monitor": True}  # of the head node
ARGS = {"include_log_monitor": False, "num_cpus": 1, "object_store_memory": 80 << 20}


class Nodes:
    """The cluster, and the processes of its actors."""

    def __init__(self, cluster):
        self.address = cluster.address
        self.ids = [node.node_id for node in cluster.list_all_nodes()]
        raylets = (node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes())
        self._raylets = dict(zip(raylets, NAMES, strict=True))

    def workers(self, name, *nodes):
        """The ids of the processes whose title begins so, on these nodes or on any."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title, parent = (
                    (folder / "cmdline").read_bytes(),
                    int((folder / "stat").read_text().rpartition(")")[2].split()[1]),
                )
            except (OSError, IndexError):
                continue
            if self._raylets.get(parent) in (nodes or NAMES) and title.startswith(name.encode()):
                found.append(int(folder.name))
        return found

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def nodes():
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}.items():
        os.environ[name] = value
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"node_name": NAMES[0], **HEAD, **ARGS})
    cluster.add_node(node_name=NAMES[1], **ARGS)
    yield Nodes(cluster)
    ray.shutdown()
    cluster.shutdown()
