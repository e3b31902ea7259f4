"""The deployment that computes: replicas, their size and who routes to them."""

from __future__ import annotations

import argparse
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from augury.plugins.ray import cluster, replica, routing

REPLICA = "replica"
"""The name of the deployment that computes."""
N_MOST = 1 << 16
"""Requests of a replica: the engine's queue has its own limit."""


def replicas_of(args: argparse.Namespace) -> Any:
    """The deployment of a command's flags that computes."""
    least, _, most = (args.replicas or "1").partition("-")
    n_replicas = {"num_replicas": int(least)}
    if most:
        scaling = {"min_replicas": int(least), "max_replicas": int(most), "target_ongoing_requests": args.parallel}
        n_replicas = {"autoscaling_config": scaling}  # type: ignore[dict-item]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    n_each = -(-int(most or least) // max(len(nodes), 1))
    n_cpus = args.threads or max(int(min((node["CPU"] for node in nodes), default=1)) // n_each, 1)
    return (
        serve.deployment(replica.Replica)
        .options(
            **n_replicas,
            name=REPLICA,
            ray_actor_options={"num_cpus": n_cpus, "num_gpus": min((node.get("GPU", 0) for node in nodes), default=0) / n_each},
            max_ongoing_requests=N_MOST,
            graceful_shutdown_timeout_s=args.shutdown_timeout,
            health_check_period_s=2,
            request_router_config=RequestRouterConfig(
                request_router_class=routing.Router, request_router_kwargs={"n_slots": args.parallel}
            ),
        )
        .bind({**cluster.sent(args), "threads": n_cpus})
    )
