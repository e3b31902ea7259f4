"""A cluster of two nodes for all tests of the room, and `kill -9`. Ray is not imported where they are only collected."""

import os
import signal
from pathlib import Path

import pytest

ARGS = {"num_cpus": 1, "object_store_memory": 80 << 20}


class Nodes:
    """The cluster, and the processes of its actors."""

    def __init__(self, cluster):
        self.address = cluster.address
        self.ids = [node.node_id for node in cluster.list_all_nodes()]
        self._raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}

    def workers(self, name):
        """The ids of the processes whose title begins so."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title, parent = (
                    (folder / "cmdline").read_bytes(),
                    int((folder / "stat").read_text().rpartition(")")[2].split()[1]),
                )
            except (OSError, IndexError):
                continue
            if parent in self._raylets and title.startswith(name.encode()):
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

    cluster = Cluster(initialize_head=True, head_node_args={"node_name": "first", "include_dashboard": False, **ARGS})
    cluster.add_node(node_name="second", **ARGS)
    yield Nodes(cluster)
    ray.shutdown()
    cluster.shutdown()
